"""What a view reads from a request: its id, its strict JSON body, its idempotency key."""

import codecs
import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from django.core.exceptions import RequestDataTooBig
from rest_framework.exceptions import ErrorDetail, ParseError, ValidationError
from rest_framework.parsers import JSONParser
from rest_framework.request import Request

from console.characters import first_refused, said_of

MAX_BODY_BYTES = 512 * 1024  # a policy document (256 KiB) with room for escapes
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{8,200}")


def request_id_of(request: Request) -> str:
    """The id that the middleware (`console.web.csp`) gave this request; empty without it."""
    return str(getattr(request._request, "request_id", ""))


def idempotency_key_of(request: Request) -> str:
    """The `Idempotency-Key` header, or empty. Raises `ParseError` when it has another form."""
    sent = request.headers.get("Idempotency-Key", "")
    if sent and not _IDEMPOTENCY_KEY.fullmatch(sent):
        raise ParseError("An Idempotency-Key has 8 to 200 visible characters.")
    return sent


class StrictJSONParser(JSONParser):
    """JSON as the standard has it: bounded, UTF-8, no key twice, no NaN."""

    def parse(
        self,
        stream: Any,
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """The value. Raises `ParseError`, `ValidationError`, or `RequestDataTooBig` (413)."""
        raw = stream.read(MAX_BODY_BYTES + 1)
        if len(raw) > MAX_BODY_BYTES:
            raise RequestDataTooBig
        try:
            text = codecs.decode(raw, "utf-8")
            value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ParseError(f"The body is not JSON that this accepts: {error}") from error
        _refuse_unshowable(value)
        return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is said twice")
        found[key] = value
    return found


def _refuse_unshowable(value: Any) -> None:
    """Raise `ValidationError` naming the field whose text holds what no text may hold."""
    found = first_refused(value)
    if found is None:
        return
    path, character = found
    fault = ErrorDetail(said_of(character), code="refused_character")
    raise ValidationError({path: [fault]} if path else [fault])


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
