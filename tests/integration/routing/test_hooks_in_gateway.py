"""Hooks before real requests, whole answers and streams, at a real gateway: what they see."""

import time
from typing import Any

import anthropic
import msgspec
import openai
import pytest

from tests.gatewaying import ACME, body_of, connect, error_of, payloads, raw_request, text_of
from tests.hooking import LONG, Gate, if_text, said, signed, use, webhook
from tests.stack import ACME_KEY, publish, shape_rows, usage_events, wait_until
from tests.upstream import (
    Close,
    Hang,
    Send,
    Wait,
    answer,
    delta,
    event,
    framed,
    head,
    json_script,
    sse_head,
    stream_script,
    usage,
)


def test_a_hook_is_asked_with_a_signed_body_and_its_verdict_is_on_record(gate: Gate) -> None:
    gate.ask(use("signed"))
    gate.guard.plan(said("pass"))
    gate.engine.plan(json_script(answer("hey", usage(7, 3))))
    first, second = gate.post(), gate.post(messages=[{"role": "user", "content": "é \U0001f600"}])
    assert (first.status_code, second.status_code) == (200, 200)
    assert len(gate.guard.requests) == 2
    assert gate.guard.requests[1].json["request"]["messages"][0]["content"] == "é \U0001f600"
    seen = gate.guard.requests[0]
    assert (seen.method, seen.path) == ("POST", "/check?v=1")
    assert signed(seen)
    assert abs(int(seen.header("x-headrace-timestamp") or 0) - time.time()) < 60
    assert seen.header("x-headrace-hook") == "signed"
    assert seen.json == {
        "at": "before",
        "request_id": first.headers["x-request-id"],
        "tenant": "acme",
        "model": "alpha-8b",
        "class": "standard",
        "operation": "chat",
        "stream": False,
        "request": body_of(),
    }
    assert ACME_KEY not in str(seen.headers) + seen.body.decode()
    row = gate.row(first)
    assert row.status == "ok"
    assert [name for name, took in row.hops_us.items() if took > 0] == ["hook.signed.before.pass"]
    assert gate.metric('headrace_hook_calls_total{hook="signed",verdict="pass"}') == 2
    assert gate.metric('headrace_hook_duration_seconds_count{hook="signed"}') == 2
    report = gate.status().hooks["signed"]
    assert (report.verdicts, report.breaker, report.error) == ({"pass": 2}, "closed", "")
    assert sum(count for _, count in report.seconds) == 2


def test_r19_a_request_that_a_hook_refuses_costs_nothing_and_reaches_nobody(gate: Gate) -> None:
    gate.ask(use("pii"), use("tone"))
    gate.guard.plan(said("pass"))
    gate.engine.plan(json_script(answer("hey")))
    before = int(gate.post().headers["x-ratelimit-remaining-requests"])
    gate.engine.requests.clear()
    gate.guard.requests.clear()
    gate.guard.plan(said("refuse", "a card number\r\nx-evil: 1 " + "y" * 500))
    refused = gate.post()
    assert refused.status_code == 403
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("hook_refused", "permission_error")
    assert error["message"].startswith("The hook pii refused this: a card number x-evil: 1 yyy")
    assert len(error["message"]) < 240
    assert refused.headers["x-should-retry"] == "false"
    assert refused.headers["x-headrace-limit"] == "pii"
    assert (gate.engine.completions, len(gate.guard.requests)) == ([], 1)  # the next is not asked
    shape = gate.shape(refused)
    assert (shape.refused_code, shape.refused_limit) == ("hook_refused", "pii")
    name = refused.headers["x-request-id"]
    assert all(row.request_id != name for _, row in usage_events(gate.store, ACME))
    gate.guard.plan(said("pass"))
    assert int(gate.post().headers["x-ratelimit-remaining-requests"]) == before - 1


FAILURES: dict[str, Any] = {
    "error": json_script({"verdict": "pass"}, 500),
    "elsewhere": json_script({"verdict": "pass"}, 302, [("location", "http://127.0.0.1:9/")]),
    "no-json": json_script(b"<html>"),
    "no-verdict": json_script({"ok": True}),
    "other-word": json_script({"verdict": "maybe"}),
    "huge": json_script(b'{"verdict": "pass", "x": "' + b"x" * 100_000 + b'"}'),
    "cut": [Send(head(200, [("content-length", "100")]) + b'{"verdict"'), Close()],
    "silent": [Close()],
    "late": [Hang()],
    "no-http": [Send(b"hello\r\n\r\n"), Close()],
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_hook_that_fails_refuses_or_passes_as_the_policy_says(gate: Gate, name: str) -> None:
    ms = 100 if name == "late" else 5000
    gate.engine.plan(json_script(answer("hey")))
    gate.ask(use(name, ms=ms))
    gate.guard.plan(FAILURES[name])
    closed = gate.post()
    assert (closed.status_code, error_of(closed.json())) == (503, "hook_failed")
    assert closed.headers["x-should-retry"] == "true"
    assert gate.engine.completions == []
    gate.ask(use(name, ms=ms, fails_open=True))
    passed = gate.post()
    assert passed.status_code == 200, passed.text
    assert list(gate.row(passed).hops_us) == [f"hook.{name}.before.failed"]
    report = gate.status().hooks[name]
    assert report.verdicts == {"failed": 2}
    assert report.error
    assert gate.metric(f'headrace_hook_calls_total{{hook="{name}",verdict="failed"}}') == 2
    if name == "elsewhere":
        assert "redirects are not followed" in report.error


def test_a_guard_that_does_not_know_the_secret_answers_401(gate: Gate) -> None:
    other = webhook("strange", gate.guard.address, "another-secret-of-the-tests")
    gate.ask(use("strange"), strange=other)
    gate.guard.choose = lambda seen: said("pass") if signed(seen) else json_script({}, 401)
    assert error_of(gate.post().json()) == "hook_failed"
    assert gate.status().hooks["strange"].error == "HTTP 401"
    foreign = webhook("strange", gate.guard.address, sealed_secret=other.sealed_secret[:-1] + b"x")
    gate.ask(use("strange"), strange=foreign)  # sealed by another deployment
    assert error_of(gate.post().json()) == "hook_failed"
    assert gate.guard.requests == []


def test_r25_no_address_inside_is_called_unless_the_operator_allows_its_host(gate: Gate) -> None:
    inside = ("localhost", gate.guard.port)
    for number, has_tls in enumerate((False, True)):
        name = f"inside-{number}"
        gate.ask(use(name), one=webhook(name, inside, has_tls=has_tls))
        assert error_of(gate.post().json()) == "hook_failed"
    gate.ask(use("gone"))
    bare = msgspec.structs.replace(gate.snapshot, number=gate.snapshot.number + 1, hooks={})
    gate.snapshot = bare
    publish(gate.store, bare)
    wait_until(lambda: gate.status().snapshot_number == bare.number, LONG, "hooks without rows")
    assert error_of(gate.post().json()) == "hook_failed"  # named by the policy, and nowhere
    assert gate.guard.requests == []


def test_a_hook_that_keeps_failing_costs_no_deadline_any_more(gate: Gate) -> None:
    gate.engine.plan(json_script(answer("hey")))
    gate.ask(use("slow", ms=100, fails_open=True))
    gate.guard.plan([Hang()])
    for _ in range(5):
        assert gate.post().status_code == 200
    asked = len(gate.guard.requests)
    skipped = gate.post()
    assert skipped.status_code == 200
    assert len(gate.guard.requests) == asked == 5
    assert gate.row(skipped).hops_us == {"hook.slow.before.skipped": 0}
    report = gate.status().hooks["slow"]
    assert (report.breaker, report.verdicts["skipped"]) == ("open", 1)
    assert gate.metric('headrace_hook_breaker_open{hook="slow"}') == 1
    gate.ask(use("slow", ms=100))  # the same hook, now failing closed
    refused = gate.post()
    assert error_of(refused.json()) == "hook_failed"
    assert 0 < int(refused.headers["retry-after"]) <= 6
    assert gate.guard.requests == []


def test_a_caller_that_leaves_while_a_hook_looks_holds_nothing(gate: Gate) -> None:
    gate.ask(use("pii", ms=2000))
    gate.guard.plan([Wait(0.3), *said("pass")])
    raw = raw_request(msgspec.json.encode(body_of()), headers="x-headrace-task-id: leaver\r\n")
    with connect(gate.gateway) as sock:
        sock.sendall(raw)
        wait_until(lambda: len(gate.guard.requests) == 1, LONG, "the hook is asked")

    def outcomes() -> list[str]:
        return [one.outcome for one in shape_rows(gate.store) if one.task_id == "leaver"]

    wait_until(lambda: outcomes() == ["cancelled"], LONG, "its shape row")
    assert gate.engine.completions == []
    assert all(event.task_id != "leaver" for _, event in usage_events(gate.store, ACME))
    assert gate.status().in_flight == 0


# -- whole answers


def test_an_answer_that_a_hook_refuses_is_charged_and_not_given(gate: Gate) -> None:
    gate.ask(use("tone", "after"))
    gate.engine.plan(json_script(answer("a rude word", usage(7, 3))))
    gate.guard.plan(said("refuse", "rude"))
    refused = gate.post()
    assert (refused.status_code, error_of(refused.json())) == (403, "hook_refused")
    assert "a rude word" not in refused.text
    assert gate.guard.requests[0].json["answer"] == answer("a rude word", usage(7, 3))
    row = gate.row(refused)
    assert (row.status, row.error_code, row.http_status) == ("failed", "hook_refused", 403)
    assert (row.input_tokens, row.output_tokens, row.usage_source) == (7, 3, "reported")
    assert row.spend_nanousd > 0
    assert not row.has_failed  # as the operator wants it
    assert list(row.hops_us) == ["hook.tone.after.refuse"]
    gate.guard.plan(said("pass"))
    passed = gate.post()
    assert passed.json() == answer("a rude word", usage(7, 3))


def test_official_clients_understand_a_refusal(gate: Gate) -> None:
    gate.ask(use("pii"))
    gate.guard.plan(said("refuse", "personal data"))
    url, messages = gate.gateway.url, [{"role": "user", "content": "hi"}]
    one = openai.OpenAI(base_url=f"{url}/v1", api_key=ACME_KEY)
    with pytest.raises(openai.PermissionDeniedError) as told:
        one.chat.completions.create(model="alpha-8b", messages=messages)
    assert told.value.code == "hook_refused"
    other = anthropic.Anthropic(base_url=url, api_key=ACME_KEY)
    with pytest.raises(anthropic.PermissionDeniedError) as said_so:
        other.messages.create(model="alpha-8b", max_tokens=10, messages=messages)
    assert said_so.value.body["error"]["type"] == "permission_error"
    assert "personal data" in said_so.value.message
    assert len(gate.guard.requests) == 2  # neither sent it again


# -- streams


def test_a_stream_that_passes_is_the_same_and_hooks_see_all_of_it(gate: Gate) -> None:
    texts = [f"word{number} " for number in range(60)]
    gate.engine.plan(stream_script(texts, gap_s=0.002))
    gate.ask()
    plain = gate.post(stream=True)
    gate.ask(use("tone", "stream"))
    gate.guard.plan([Wait(0.03), *said("pass")])
    watched = gate.post(stream=True)
    assert watched.content == plain.content
    asked = [seen.json["choices"] for seen in gate.guard.requests]
    assert "".join(one["text"] for (one,) in asked) == "".join(texts)
    assert asked[0][0]["before"] == ""
    assert asked[1][0]["before"] == asked[0][0]["text"]
    assert len(asked) < len(texts)  # what came meanwhile is asked about at once
    row = gate.row(watched)
    assert (row.status, row.output_tokens, row.usage_source) == ("ok", 60, "reported")
    assert list(row.hops_us) == ["hook.tone.stream.pass"]


def test_a_stream_is_stopped_with_a_typed_event_and_its_engine_too(gate: Gate) -> None:
    gate.ask(use("tone", "stream"))
    gate.guard.choose = if_text("secret")
    words = ["all ", "is ", "well ", "sec", "ret ", "never ", "seen "]
    steps: list[Any] = [sse_head(), Send(framed(event(delta("", role="assistant"))))]
    for word in words:
        steps += [Send(framed(event(delta(word)))), Wait(0.1)]
    gate.engine.plan([*steps, Hang()])
    found = gate.post(stream=True)
    assert found.status_code == 200
    events = payloads(found.content)
    assert events[-1]["error"]["code"] == "hook_refused"
    assert "not that word" in events[-1]["error"]["message"]
    assert "[DONE]" not in events
    text = text_of(events)
    assert "all is well ".startswith(text.removesuffix("sec"))
    assert "ret" not in text
    engine = gate.engine.completions[0]
    wait_until(lambda: engine.closed_at is not None, LONG, "the engine's slot is free")
    row = gate.row(found)
    assert (row.status, row.error_code) == ("incomplete", "hook_refused")
    assert 4 <= row.output_tokens <= len(words)
    assert not row.has_failed
    assert "hook.tone.stream.refuse" in row.hops_us
    assert gate.status().in_flight == 0


def test_a_stream_refused_at_its_first_text_is_a_plain_refusal_that_is_charged(gate: Gate) -> None:
    gate.ask(use("tone", "stream"))
    gate.guard.plan(said("refuse"))
    gate.engine.plan(stream_script(["he", "llo"]))
    found = gate.post(stream=True)
    assert (found.status_code, error_of(found.json())) == (403, "hook_refused")
    row = gate.row(found)
    assert (row.status, row.error_code) == ("failed", "hook_refused")
    assert row.output_tokens >= 1


def test_a_hung_hook_of_a_stream_passes_each_piece_at_its_deadline(gate: Gate) -> None:
    gate.ask(use("tone-hung", "stream", ms=60, fails_open=True))
    gate.guard.plan([Hang()])
    gate.engine.plan(stream_script(["one ", "two ", "three "], gap_s=0.01))
    found = gate.post(stream=True)
    assert text_of(payloads(found.content)) == "one two three "
    assert gate.row(found).status == "ok"
    gate.ask(use("tone-closed", "stream", ms=60))
    gate.guard.plan([Hang()])
    assert (gate.post(stream=True).status_code, gate.status().in_flight) == (503, 0)


def test_a_slow_hook_holds_its_stream_back_and_the_engine_waits(gate: Gate) -> None:
    gate.ask(use("tone", "stream", ms=10_000))
    gate.guard.plan([Wait(1.0), *said("pass")], said("pass"))
    texts = ["x" * 8_000] * 700  # more than sockets and buffers between them take
    gate.engine.plan(stream_script(texts))
    found = gate.post(stream=True, max_tokens=1000)
    assert text_of(payloads(found.content)) == "".join(texts)
    sizes = [len(one["text"]) for seen in gate.guard.requests for one in seen.json["choices"]]
    assert sum(sizes) == 5_600_000
    assert max(sizes) < 1_000_000


def test_a_caller_that_leaves_a_watched_stream_stops_the_engine(gate: Gate) -> None:
    gate.ask(use("tone", "stream"))
    gate.guard.plan(said("pass"))
    gate.engine.plan([sse_head(), Send(framed(event(delta("one ")))), Hang()])
    with connect(gate.gateway) as sock:
        sock.sendall(raw_request(msgspec.json.encode(body_of(stream=True))))
        wait_until(lambda: b"one " in sock.recv(65536), LONG, "its first text")
    engine = gate.engine.completions[0]
    wait_until(lambda: engine.closed_at is not None, LONG, "the engine's slot is free")
    wait_until(lambda: gate.status().in_flight == 0, LONG, "nothing in flight")
    assert usage_events(gate.store, ACME)[-1][1].status == "cancelled"
