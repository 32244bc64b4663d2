"""`Idempotency-Key` on every write: a repeated call is answered as the first one was.

The row that keeps the answer commits with the act, so a repeat either finds it or finds nothing
done; a second call that comes while the first runs waits for it. Refusals keep nothing: the same
key may be sent again with the fault mended. Answers may hold a secret, so they lie encrypted under
a key that is derived from the caller's own `Idempotency-Key`, which is not stored.
"""

import hmac
import json
import os
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar, cast

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from django.conf import settings
from django.db import OperationalError, transaction
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder

from console.errors import Conflict
from console.models import KeptAnswer, User
from console.outage.lost import SLOW, lost_by
from console.rest.requests import idempotency_key_of

KEPT_FOR = timedelta(hours=24)
MAX_FORGOTTEN = 50  # old answers deleted by one keyed call: more than it adds
REPLAYED_HEADER = "Idempotency-Replayed"
_KEPT_HEADERS = ("ETag", "Location")
_NONCE_BYTES = 12

Method = TypeVar("Method", bound=Callable[..., Any])


def once(method: Method) -> Method:
    """Make a write carry out an act at most once for each `Idempotency-Key` of a person."""

    @wraps(method)
    def guarded(view: Any, request: Request, *args: Any, **kwargs: Any) -> Response:
        key = idempotency_key_of(request)
        if not key:
            return cast("Response", method(view, request, *args, **kwargs))
        user = cast("User", request.user)
        secret = _derived(f"{user.pk}\0{key}")
        asked = _digest(secret, request)
        with transaction.atomic():
            row = _claimed(user, _derived(f"name\0{user.pk}\0{key}").hex(), asked)
            if row.sealed:
                return _replayed(row, secret, asked)
            answer: Response = method(view, request, *args, **kwargs)
            row.sealed = _sealed(answer, secret)
            row.save(update_fields=["sealed"])
        return answer

    return cast("Method", guarded)


def _claimed(user: User, key_digest: str, call_digest: str) -> KeptAnswer:
    """The row of this key, made now or found answered. Raises `Conflict` if it stays busy."""
    now = timezone.now()
    oldest = KeptAnswer.objects.filter(created_at__lt=now - KEPT_FOR).order_by("created_at")
    stale = oldest.select_for_update(skip_locked=True).values_list("pk", flat=True)
    KeptAnswer.objects.filter(pk__in=list(stale[:MAX_FORGOTTEN])).delete()
    wanted = KeptAnswer(user=user, key_digest=key_digest, call_digest=call_digest, created_at=now)
    try:
        # Waits for a first call that still runs, as long as any statement may wait for a lock.
        KeptAnswer.objects.bulk_create([wanted], ignore_conflicts=True)
        return KeptAnswer.objects.select_for_update().get(user=user, key_digest=key_digest)
    except KeptAnswer.DoesNotExist as error:  # it was old, and another call deleted it just now
        raise _busy() from error
    except OperationalError as error:
        if lost_by(error) is SLOW:
            raise _busy() from error
        raise


def _busy() -> Conflict:
    return Conflict(
        "The first call with this Idempotency-Key still runs.",
        code="idempotency_busy",
        field="Idempotency-Key",
        hint="Send the same call again shortly.",
    )


def _replayed(row: KeptAnswer, secret: bytes, asked: str) -> Response:
    if row.call_digest != asked:
        raise Conflict(
            "This Idempotency-Key was used for another call.",
            code="idempotency_conflict",
            field="Idempotency-Key",
            hint="Take a new key for a new act.",
        )
    sealed = bytes(row.sealed)
    raw = AESGCM(secret).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], b"")
    status, headers, data = json.loads(raw)
    return Response(data, status=status, headers={**headers, REPLAYED_HEADER: "true"})


def _sealed(answer: Response, secret: bytes) -> bytes:
    headers = {name: answer.headers[name] for name in _KEPT_HEADERS if name in answer.headers}
    raw = json.dumps([answer.status_code, headers, answer.data], cls=JSONEncoder).encode()
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + AESGCM(secret).encrypt(nonce, raw, b"")


def _digest(secret: bytes, request: Request) -> str:
    """What is asked: method, address, precondition and body, whatever the order of its fields."""
    asked = [
        request.method,
        request.get_full_path(),
        request.headers.get("If-Match", ""),
        request.data,
    ]
    return hmac.digest(secret, json.dumps(asked, sort_keys=True).encode(), "sha256").hex()


def _derived(purpose: str) -> bytes:
    pepper = settings.KEY_PEPPER.encode()
    return hmac.digest(pepper, f"headrace rest once v1\0{purpose}".encode(), "sha256")
