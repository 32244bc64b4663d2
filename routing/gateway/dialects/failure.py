"""What an upstream's error says: code, message, when to come back. All of it is distrusted."""

import re
from email.utils import parsedate_to_datetime

import msgspec

MAX_MESSAGE = 500  # characters of an upstream's words that may reach a caller
MAX_WAIT_S = 86_400.0
# A quote inside a JSON text is escaped, so no prompt or answer can look like this.
_CUT_OFF = re.compile(rb'"finish_reason"\s*:\s*"(?:abort|error)"')


class _Error(msgspec.Struct):
    message: str | None = None
    code: int | str | None = None


class _Envelope(msgspec.Struct):
    error: _Error | str | None = None
    message: str | None = None
    code: int | str | None = None


_decode = msgspec.json.Decoder(_Envelope).decode


def _envelope(body: bytes) -> _Envelope | None:
    try:
        return _decode(body)
    except msgspec.MsgspecError:
        return None


def error_message(body: bytes) -> str:
    """The upstream's own words, cut and made printable; empty when it has none."""
    found = _envelope(body)
    if found is None:
        return ""
    error = found.error
    message = error.message if isinstance(error, _Error) else error or found.message
    text = "".join(c if c.isprintable() else " " for c in (message or "")[:MAX_MESSAGE])
    return text.strip()


def error_code(body: bytes) -> int | None:
    """HTTP-like code of an error object, 400-599, or None."""
    found = _envelope(body)
    if found is None:
        return None
    code = found.error.code if isinstance(found.error, _Error) else found.code
    if isinstance(code, str):
        code = int(code) if code.isdigit() and len(code) == 3 else None
    return code if code is not None and 400 <= code <= 599 else None


def is_cut_off(body: bytes) -> bool:
    """Whether a whole answer is one that the engine gave up, as vLLM does when it shuts down."""
    return _CUT_OFF.search(body) is not None


def retry_after_s(headers: dict[bytes, bytes], now_s: float) -> float | None:
    """Seconds that a response asks to wait: `retry-after-ms`, seconds, or an HTTP date."""
    try:
        if (exact := headers.get(b"retry-after-ms")) is not None:
            return _bounded(float(exact) / 1000)
        if (stated := headers.get(b"retry-after")) is None:
            return None
        if stated[:1].isdigit() and b":" not in stated:
            return _bounded(float(stated))
        return _bounded(parsedate_to_datetime(stated.decode("latin-1")).timestamp() - now_s)
    except (ValueError, TypeError, OverflowError):
        return None


def _bounded(wait_s: float) -> float | None:
    """Between nothing and a day; not a number is nothing said."""
    return min(max(wait_s, 0.0), MAX_WAIT_S) if wait_s == wait_s else None  # noqa: PLR0124 NaN
