"""A stream whose replica is lost goes on at another, and its caller cannot tell where."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from routing.contracts.enums import RequestStatus
from routing.contracts.pricing import spend_nanousd
from routing.contracts.snapshot import FailurePolicy
from tests.gatewaying import body_of, error_of, payloads, row, rows, serving, text_of
from tests.stack import ACME_KEY, ALPHA, GatewayProcess, policy
from tests.upstream import (
    Hang,
    Reset,
    Send,
    Step,
    UpstreamThread,
    chunk,
    delta,
    event,
    framed,
    sse_head,
    usage,
)

TOKENS = ["Hello", " wor", "ld,\n", "\n", "this \u00e9t\u00e9 ", " is", ' "it" \\.']
WHOLE = "".join(TOKENS)
PROMPT_TOKENS = 12  # as the engines count the caller's own, fewer than are held
PROMPT = "Say it in these words, without a change: "
GOES_ON = policy(failures=FailurePolicy(continue_lost=True), deadlines=(20.0, 1.0, 60.0))


def beginning(tokens: int, is_chat: bool = True, number: int = 1) -> list[bytes]:
    """Events of a stream up to so many tokens."""
    named = {"id": f"cmpl-{number}", "created": number}
    found = [event(delta("", role="assistant") | named)] if is_chat else []
    for text in TOKENS[:tokens]:
        one = delta(text) if is_chat else chunk([{"index": 0, "text": text}])
        found.append(event(one | named))
    return found


def rest(sent: str, is_chat: bool = True) -> list[Step]:
    """What a deterministic engine streams after `sent`, in tokens of its own; usage included."""
    assert WHOLE.startswith(sent)
    left = WHOLE[len(sent) :]
    pieces = [left[at : at + 3] for at in range(0, len(left), 3)]
    named = {"id": "cmpl-2", "created": 2}
    events = [event(delta("", role="assistant") | named)] if is_chat else []
    for text in pieces:
        one = delta(text) if is_chat else chunk([{"index": 0, "text": text}])
        events.append(event(one | named))
    end = delta(finish="stop") if is_chat else chunk([{"text": "", "finish_reason": "stop"}])
    events.append(event(end | named))
    sent_tokens = next(n for n in range(8) if "".join(TOKENS[:n]).startswith(sent))
    used = usage(PROMPT_TOKENS + sent_tokens, len(pieces))
    events += [event(chunk([], usage=used) | named), event("[DONE]")]
    return [sse_head(), *(Send(framed(one)) for one in events), Send(b"0\r\n\r\n")]


class Engines:
    """Two replicas; whichever is asked first plays `lost`, the other goes on from what it is sent.

    A body that is to be continued is checked, and counted.
    """

    def __init__(self) -> None:
        self.lost: list[Step] = []
        self.asked: list[Any] = []
        self.servers = (UpstreamThread(), UpstreamThread())
        for server in self.servers:
            server.choose = self._choose  # type: ignore[assignment]

    def _choose(self, seen: Any) -> list[Step]:
        body = seen.json
        self.asked.append(body)
        if len(self.asked) == 1:
            return self.lost
        if "prompt" in body:
            assert body["prompt"].startswith(PROMPT)
            return rest(body["prompt"].removeprefix(PROMPT), is_chat=False)
        assert body["continue_final_message"] is True
        assert body["add_generation_prompt"] is False
        assert [one["role"] for one in body["messages"]] == ["user", "assistant"]
        return rest(body["messages"][1]["content"])

    def plan(self, *steps: Step) -> None:
        """What the first one plays, for a new request."""
        self.lost, self.asked = [sse_head(), *steps], []


@pytest.fixture
def engines() -> Iterator[Engines]:
    made = Engines()
    with contextlib.ExitStack() as stack:
        for server in made.servers:
            stack.enter_context(server)
        yield made


def ask(gateway: GatewayProcess, is_chat: bool = True, **fields: Any) -> tuple[list[Any], str]:
    """(payloads, text) of one stream."""
    body = body_of(stream=True, **fields)
    path = "/v1/chat/completions"
    if not is_chat:
        path = "/v1/completions"
        body = {"prompt": PROMPT} | {k: v for k, v in body.items() if k != "messages"}
    headers = {"authorization": f"Bearer {ACME_KEY}"}
    found = httpx.post(gateway.url + path, json=body, headers=headers, timeout=30, trust_env=False)
    assert found.status_code == 200, found.text
    events = payloads(found.content)
    if is_chat:
        return events, text_of(events)
    choices = [c for e in events if isinstance(e, dict) for c in e.get("choices", [])]
    return events, "".join(choice.get("text") or "" for choice in choices)


@pytest.mark.parametrize("is_chat", [True, False], ids=["chat", "completion"])
def test_no_character_is_missing_or_repeated_wherever_the_stream_is_cut(
    tmp_path: Path, store: "redis.Redis[bytes]", engines: Engines, is_chat: bool
) -> None:
    with serving(tmp_path, *engines.servers, policy=GOES_ON) as gateway:
        for sent in range(1, len(TOKENS)):
            cut = event(delta("never seen"))[: 9 * (sent % 3)]  # some are cut inside an event
            steps = [Send(framed(one)) for one in beginning(sent, is_chat)]
            engines.plan(*steps, Send(framed(cut) if cut else b""), Reset())
            events, text = ask(gateway, is_chat, stream_options={"include_usage": True})
            assert text == WHOLE, sent
            assert events[-1] == "[DONE]"
            assert {(one["id"], one["created"]) for one in events[:-1]} == {("cmpl-1", 1)}
            if is_chat:
                roles = [
                    choice["delta"].get("role") for one in events[:-1] for choice in one["choices"]
                ]
                assert roles.count("assistant") == 1
            used = [one["usage"] for one in events[:-1] if one.get("usage")]
            bodies = engines.asked
            assert [body["max_tokens"] for body in bodies] == [100, 100 - sent]
            assert len(used) == 1
            found = rows(store, sent)[-1]
            assert (found.status, found.attempts) == (RequestStatus.OK, 2)
            assert found.output_tokens == used[0]["completion_tokens"] > sent
            assert found.input_tokens == used[0]["prompt_tokens"]
            assert used[0]["total_tokens"] == found.input_tokens + found.output_tokens
            assert found.input_tokens in (PROMPT_TOKENS, PROMPT_TOKENS - 1), "white space left out"
            told = (found.input_tokens, found.cached_tokens, found.output_tokens)
            assert found.spend_nanousd == spend_nanousd(ALPHA, *told)


def test_a_replica_that_falls_silent_is_lost_too(
    tmp_path: Path, store: "redis.Redis[bytes]", engines: Engines
) -> None:
    with serving(tmp_path, *engines.servers, policy=GOES_ON) as gateway:
        engines.plan(*(Send(framed(one)) for one in beginning(2)), Hang())
        events, text = ask(gateway)
        assert (text, events[-1]) == (WHOLE, "[DONE]")
        assert not any(one.get("usage") for one in events[:-1]), "usage only if asked for"
        assert row(store).attempts == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"logprobs": True},
        {"n": 2},
        {"response_format": {"type": "json_object"}},
    ],
    ids=["tools", "logprobs", "n", "grammar"],
)
def test_more_than_plain_text_ends_with_an_error(
    tmp_path: Path, store: "redis.Redis[bytes]", engines: Engines, fields: dict[str, Any]
) -> None:
    with serving(tmp_path, *engines.servers, policy=GOES_ON) as gateway:
        engines.plan(*(Send(framed(one)) for one in beginning(2)), Reset())
        events, _ = ask(gateway, **fields)
        assert error_of(events[-1]) == "upstream_error"
        assert "after 2 output tokens" in events[-1]["error"]["message"]
        assert len(engines.asked) == 1
        assert row(store).status is RequestStatus.INCOMPLETE


def test_when_the_second_is_lost_too_the_error_counts_both(
    tmp_path: Path, store: "redis.Redis[bytes]", engines: Engines
) -> None:
    with serving(tmp_path, *engines.servers, policy=GOES_ON) as gateway:
        lost = [Send(framed(one)) for one in beginning(2)]
        engines.plan(*lost, Reset())
        more = [event(delta(text)) for text in ("a", "b", "c")]
        for server in engines.servers:
            first = server.choose

            def choose(seen: Any, first: Any = first) -> list[Step]:
                found: list[Step] = first(seen)
                if len(engines.asked) == 1:
                    return found
                return [sse_head(), *(Send(framed(one)) for one in more), Reset()]

            server.choose = choose  # type: ignore[assignment]
        events, text = ask(gateway)
        assert text == "Hello worabc"
        assert error_of(events[-1]) == "upstream_error"
        assert "after 5 output tokens" in events[-1]["error"]["message"]
        assert "[DONE]" not in events
        found = row(store)
        assert (found.status, found.attempts) == (RequestStatus.INCOMPLETE, 2)
        assert found.output_tokens == 5


def test_with_nobody_to_go_on_the_caller_is_told_what_was_sent(
    tmp_path: Path, store: "redis.Redis[bytes]", engines: Engines
) -> None:
    with serving(tmp_path, engines.servers[0], policy=GOES_ON) as gateway:
        engines.plan(*(Send(framed(one)) for one in beginning(3)), Reset())
        events, _ = ask(gateway)
        assert error_of(events[-1]) == "upstream_error"
        assert "after 3 output tokens" in events[-1]["error"]["message"]
        assert row(store).output_tokens == 3


def test_a_whole_answer_in_place_of_the_rest_is_an_error(
    tmp_path: Path, store: "redis.Redis[bytes]", engines: Engines
) -> None:
    with serving(tmp_path, *engines.servers, policy=GOES_ON) as gateway:
        engines.plan(*(Send(framed(one)) for one in beginning(2)), Reset())
        body = json.dumps({"object": "chat.completion", "choices": []}).encode()
        head = b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        for server in engines.servers:
            first = server.choose

            def choose(seen: Any, first: Any = first) -> list[Step]:
                found: list[Step] = first(seen)
                return found if len(engines.asked) == 1 else [Send(head % len(body) + body)]

            server.choose = choose  # type: ignore[assignment]
        events, _ = ask(gateway)
        assert error_of(events[-1]) == "upstream_error"
        assert row(store).status is RequestStatus.INCOMPLETE


THREE = 3  # tokens that each event carries


def test_several_tokens_an_event_are_counted_on_both_sides_of_the_seam(
    tmp_path: Path, store: "redis.Redis[bytes]", engines: Engines
) -> None:
    """Engines may stream in steps: what was lost is told from how much an event of the rest had."""
    sent, left = ["one two three "] * 4, ["four five six "] * 5
    more = THREE * len(left) + 1  # the last one ends the answer and has no text
    used = usage(PROMPT_TOKENS + THREE * len(sent), more, cached=PROMPT_TOKENS + 4)
    ending = [event(delta(finish="stop")), event(chunk([], usage=used)), event("[DONE]")]
    beginning_of = [Send(framed(event(delta(text)))) for text in sent]
    whole_rest = [*(event(delta(text)) for text in left), *ending]
    going_on = [sse_head(), *(Send(framed(one)) for one in whole_rest), Send(b"0\r\n\r\n")]
    for server in engines.servers:

        def choose(seen: Any) -> list[Step]:
            engines.asked.append(seen.json)
            return engines.lost if len(engines.asked) == 1 else going_on

        server.choose = choose  # type: ignore[assignment]
    with serving(tmp_path, *engines.servers, policy=GOES_ON) as gateway:
        for place in (1, 2, 3):
            engines.plan(*beginning_of, Reset())
            events, text = ask(gateway, stream_options={"include_usage": True})
            assert text == "".join(sent + left)
            (told,) = [one["usage"] for one in events[:-1] if one.get("usage")]
            found = rows(store, place)[-1]
            assert found.usage_source == "counted"
            assert found.input_tokens == told["prompt_tokens"] == PROMPT_TOKENS
            assert found.output_tokens == told["completion_tokens"] == THREE * len(sent) + more
            assert found.cached_tokens == PROMPT_TOKENS
            counts = (found.input_tokens, found.cached_tokens, found.output_tokens)
            assert found.spend_nanousd == spend_nanousd(ALPHA, *counts)
            assert not found.is_above_hold


def test_an_engine_that_goes_past_the_bound_is_not_the_callers_cost(
    tmp_path: Path, store: "redis.Redis[bytes]", engines: Engines
) -> None:
    """Nobody knew how many tokens an event had: the row ends at what was held."""
    lost = [Send(framed(event(delta("one two three ")))) for _ in range(8)]
    used = usage(PROMPT_TOKENS + 24, 22)
    rest_events = [*(event(delta("more and more ")) for _ in range(7)), event(delta(finish="stop"))]
    rest_events += [event(chunk([], usage=used)), event("[DONE]")]
    for server in engines.servers:

        def choose(seen: Any) -> list[Step]:
            engines.asked.append(seen.json)
            if len(engines.asked) == 1:
                return engines.lost
            return [sse_head(), *(Send(framed(one)) for one in rest_events), Send(b"0\r\n\r\n")]

        server.choose = choose  # type: ignore[assignment]
    with serving(tmp_path, *engines.servers, policy=GOES_ON) as gateway:
        engines.plan(*lost, Reset())
        ask(gateway, max_tokens=30)
        assert [body["max_tokens"] for body in engines.asked] == [30, 22]
        found = row(store)
        assert (found.output_tokens, found.held_output_tokens) == (30, 30)
        assert not found.is_above_hold


def test_an_engine_known_to_stream_in_steps_is_told_what_is_left_in_tokens(
    tmp_path: Path, store: "redis.Redis[bytes]", engines: Engines
) -> None:
    said = [Send(framed(event(delta("one two three ")))) for _ in range(4)]
    used = usage(PROMPT_TOKENS, THREE * len(said) + 1)
    ends = (delta(finish="stop"), chunk([], usage=used), "[DONE]")
    finished = [sse_head(), *said, *(Send(framed(event(one))) for one in ends), Send(b"0\r\n\r\n")]
    lost = [sse_head(), *said, Reset()]
    served: set[int] = set()
    for number, server in enumerate(engines.servers):

        def choose(seen: Any, number: int = number) -> list[Step]:
            engines.asked.append(seen.json)
            served.add(number)
            return engines.lost if len(engines.asked) == 1 else finished

        server.choose = choose  # type: ignore[assignment]
    with serving(tmp_path, *engines.servers, policy=GOES_ON) as gateway:
        for turn in range(40):
            if len(served) == 2:
                break
            engines.lost, engines.asked = finished, []
            ask(gateway, messages=[{"role": "user", "content": f"number {turn}"}])
        engines.lost, engines.asked = lost, []
        ask(gateway)
        assert [body["max_tokens"] for body in engines.asked] == [100, 100 - THREE * len(said)]
