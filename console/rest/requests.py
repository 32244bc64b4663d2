"""What a view reads from a request: its id, its strict JSON body, its idempotency key."""

import codecs
import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from django.core.exceptions import RequestDataTooBig
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser
from rest_framework.request import Request

MAX_BODY_BYTES = 512 * 1024  # a policy document (256 KiB) with room for escapes
_UNSTORABLE_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")  # how JSON has to write them
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
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
        """The value. Raises `ParseError`, or `RequestDataTooBig` (413)."""
        raw = stream.read(MAX_BODY_BYTES + 1)
        if len(raw) > MAX_BODY_BYTES:
            raise RequestDataTooBig
        try:
            text = codecs.decode(raw, "utf-8")
            value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
            if _UNSTORABLE_ESCAPE.search(text):
                _refuse_unstorable(value)
        except (ValueError, RecursionError) as error:
            raise ParseError(f"The body is not JSON that this accepts: {error}") from error
        return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is said twice")
        found[key] = value
    return found


def _refuse_unstorable(value: Any) -> None:
    """Raise `ValueError` for text that PostgreSQL cannot hold: NUL, or half of a surrogate pair."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            waiting += [*found.keys(), *found.values()]
        elif isinstance(found, list):
            waiting += found
        elif isinstance(found, str) and _UNSTORABLE.search(found):
            raise ValueError("a text holds NUL or half of a surrogate pair")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
