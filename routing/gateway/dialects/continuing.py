"""A lost answer that goes on elsewhere: who may, the request for the rest, the seam of the streams.

The new replica gets the caller's request with the text already sent as the beginning of its answer
(chat: a last assistant message that is to be continued; completions: behind the prompt). Its events
are passed on under the first stream's id, without a second beginning, with usage of the whole.
"""

from typing import Any, NamedTuple

import msgspec

from routing.decision.seam import Held, Whole, whole
from routing.gateway.dialects.body import Call
from routing.gateway.dialects.openai import CHAT, COMPLETIONS
from routing.gateway.sse import payloads_of

CONDENSE_BYTES = 16_384  # of events kept raw: about 64 tokens; then only their text is kept
MAX_TEXT_BYTES = 1 << 20  # an answer that is longer is not continued
_NOTHING = (b"null", b"false", b"[]", b"{}", b"0", b'"none"', b"1")
# What makes an answer more than plain text, or its beginning unlike an ordinary prompt.
_NOT_PLAIN = frozenset((
    "tools", "functions", "function_call", "tool_choice", "logprobs", "top_logprobs",
    "prompt_logprobs", "response_format", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "echo", "suffix", "continue_final_message",
    "add_generation_prompt", "min_tokens", "use_beam_search", "return_token_ids", "modalities",
    "n", "best_of", "truncate_prompt_tokens",
))  # fmt: skip


class _Event(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw(b"")
    created: msgspec.Raw = msgspec.Raw(b"")
    choices: list[dict[str, Any]] = []


_event = msgspec.json.Decoder(_Event).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode


def may_continue(call: Call) -> bool:
    """Whether the answer to this call could go on from its text: one plain stream."""
    if call.operation not in (CHAT, COMPLETIONS) or not call.is_stream:
        return False
    if call.choices != 1 or call.ask.choices != 1:
        return False
    for name in _NOT_PLAIN.intersection(call.spans):
        begin, end = call.spans[name]
        if call.body[begin:end] not in _NOTHING:
            return False
    return call.operation is CHAT or call.prompt.startswith(b'"')


class Rest(NamedTuple):
    """Changes to the body that ask for the rest: (begin, end, bytes) and new members."""

    edits: list[tuple[int, int, bytes]]
    added: bytes


WHOLE = Rest([], b"")  # a request as it came


def rest_of(call: Call, text: str) -> Rest:
    """The request for what follows `text`; call and text as `may_continue` and `Sent` allow."""
    if call.operation is COMPLETIONS:
        end = call.spans["prompt"][1] - 1
        return Rest([(end, end, msgspec.json.encode(text)[1:-1])], b"")
    end = call.spans["messages"][1] - 1
    message = msgspec.json.encode({"role": "assistant", "content": text})
    added = b',"continue_final_message":true,"add_generation_prompt":false'
    return Rest([(end, end, b"," + message)], added)


class Sent:
    """What a caller has of a stream that may go on elsewhere; whole events are fed."""

    __slots__ = (
        "_gap",
        "_held",
        "_new_names",
        "_pieces",
        "_raw_bytes",
        "_text",
        "_text_bytes",
        "created",
        "events",
        "id",
        "is_plain",
        "tokens",
    )

    def __init__(self, held: Held) -> None:
        self._held = held
        self.is_plain = True
        self.id = self.created = b""
        self.events = 0  # with output, of the streams that were lost
        self.tokens = 0  # in them, as far as is known while the stream runs
        self._pieces: list[bytes] = []
        self._raw_bytes = 0
        self._text: list[str] = []
        self._text_bytes = 0
        self._gap = ""
        self._new_names: list[tuple[bytes, bytes]] | None = None

    def feed(self, out: bytes) -> None:
        """Events that the caller gets."""
        if self.is_plain:
            self._pieces.append(out)
            self._raw_bytes += len(out)
            if self._raw_bytes > CONDENSE_BYTES:
                self._condense()

    def text(self, call: Call) -> str | None:
        """The text to go on from; None if it is empty, or more than text was sent.

        White space at both ends of a message is the chat template's to write, or to cut: it is left
        out. What was sent of it at the end is taken off the new stream if that begins with it.
        """
        self._condense()
        whole = "".join(self._text)
        if not self.is_plain or not whole:
            return None
        self._new_names = None
        if call.operation is not CHAT:
            return whole
        self._gap = whole[len(whole.rstrip()) :]
        return whole.strip() or None

    def whole(self, prompt_tokens: int, output_tokens: int, rest_events: int) -> Whole:
        """Usage of all parts, from what the last one reports and how many events it had."""
        return whole(
            prompt_tokens,
            output_tokens,
            events=self.events,
            rest_events=rest_events,
            held=self._held,
        )

    def joined(self, out: bytes, rest_events: int) -> bytes:
        """Events of the new stream, which has had `rest_events`, as the caller gets them."""
        if self._new_names is None:
            self._new_names = self._names_in(out)
        for new, old in self._new_names:
            out = out.replace(new, old)
        if self._gap:
            out = self._without_gap(out)
        if b'"usage":{' in out or b'"usage": {' in out:
            out = b"".join(
                self._with_whole_usage(raw, data, rest_events) for raw, data in payloads_of(out)
            )
        return out

    def _condense(self) -> None:
        raw, self._pieces, self._raw_bytes = b"".join(self._pieces), [], 0
        try:
            for _, payload in payloads_of(raw):
                if payload and payload != b"[DONE]":
                    self._read(_event(payload))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self.is_plain = False  # text that a decoder refuses, half a surrogate pair for one
        if self._text_bytes > MAX_TEXT_BYTES:
            self.is_plain = False
        if not self.is_plain:
            self._text.clear()

    def _read(self, event: _Event) -> None:
        if not self.id:
            self.id, self.created = bytes(event.id), bytes(event.created)
        for choice in event.choices:
            delta = choice.get("delta") or {}
            text = delta.get("content") or choice.get("text") or ""
            others = any(value for name, value in delta.items() if name not in ("role", "content"))
            if others or choice.get("finish_reason") or not isinstance(text, str):
                self.is_plain = False
                return
            self._text.append(text)
            self._text_bytes += len(text)

    def _names_in(self, out: bytes) -> list[tuple[bytes, bytes]]:
        """Members that name a stream: the second one's, and the first one's in their place."""
        for _, payload in payloads_of(out):
            if payload and payload != b"[DONE]":
                event = _event(payload)
                pairs = ((b"id", event.id, self.id), (b"created", event.created, self.created))
                return [
                    (b'"%b":%b' % (name, new), b'"%b":%b' % (name, old))
                    for name, new, old in pairs
                    if new and old and bytes(new) != old
                ]
        return []

    def _without_gap(self, out: bytes) -> bytes:
        """White space that was sent is not sent again."""
        found: list[bytes] = []
        for raw, payload in payloads_of(out):
            found.append(self._cut_gap(raw, payload) if self._gap else raw)
        return b"".join(found)

    def _cut_gap(self, raw: bytes, payload: bytes) -> bytes:
        if not payload or payload == b"[DONE]":
            return raw
        event = _object(payload)
        for choice in event.get("choices") or ():
            place, name = (choice, "text") if "text" in choice else (choice.get("delta"), "content")
            text = place.get(name) if isinstance(place, dict) else None
            if not text:
                continue
            same = 0
            while same < min(len(text), len(self._gap)) and text[same] == self._gap[same]:
                same += 1
            self._gap = self._gap[same:] if same == len(text) else ""
            place[name] = text[same:]
            return b"data: %b\n\n" % msgspec.json.encode(event)
        return raw

    def _with_whole_usage(self, raw: bytes, payload: bytes, rest_events: int) -> bytes:
        if b'"usage"' not in payload:
            return raw
        event = _object(payload)
        usage = event.get("usage")
        if not isinstance(usage, dict):
            return raw
        prompt, output = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if isinstance(prompt, int) and isinstance(output, int):
            found = self.whole(prompt, output, rest_events)
            usage["prompt_tokens"] = found.input_tokens
            usage["completion_tokens"] = found.output_tokens
            usage["total_tokens"] = found.input_tokens + found.output_tokens
            details = usage.get("prompt_tokens_details")
            if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
                cached = min(details["cached_tokens"], usage["prompt_tokens"])
                details["cached_tokens"] = cached
        return b"data: %b\n\n" % msgspec.json.encode(event)
