"""What hooks hear of streams, and how one hook at a gateway is asked, counted and left alone."""

import asyncio
import json
import threading

import pytest

from routing.contracts.hooks import HookEntry, HookKind, HookVerdict, signature
from routing.decision.breaker import Phase
from routing.gateway.dialects.heard import heard
from routing.gateway.hooks.asked import MAX_RUNNING, AskedHook, HookError
from routing.gateway.hooks.python import MAX_WAITING, THREADS, PythonHook, reason_of


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def events(*payloads: object) -> bytes:
    return b"".join(
        b"data: %b\n\n" % (one if isinstance(one, bytes) else json.dumps(one).encode())
        for one in payloads
    )


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (events({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}), {}),
        (
            events(
                {"choices": [{"index": 0, "delta": {"content": "a"}}]},
                {"choices": [{"index": 1, "delta": {"content": "x"}}]},
                {"choices": [{"index": 0, "delta": {"content": "b"}}]},
                {"choices": [], "usage": {"prompt_tokens": 1}},
                b"[DONE]",
            ),
            {0: "ab", 1: "x"},
        ),
        (events({"choices": [{"index": 0, "text": "it", "finish_reason": "stop"}]}), {0: "it"}),
        (events({"choices": [{"delta": {"reasoning_content": "hm", "content": None}}]}), {0: "hm"}),
        (
            events(
                {
                    "choices": [
                        {
                            "delta": {
                                "tool_calls": [
                                    {"id": "c1", "function": {"name": "f", "arguments": "{1}"}}
                                ]
                            }
                        }
                    ]
                }
            ),
            {0: "f{1}"},
        ),
        (
            events(
                {"type": "message_start", "message": {"role": "assistant"}},
                {"type": "content_block_delta", "index": 1, "delta": {"type": "t", "text": "hi"}},
                {"type": "content_block_delta", "index": 2, "delta": {"partial_json": "{}"}},
                {"type": "message_stop"},
            ),
            {1: "hi", 2: "{}"},
        ),
        (
            events(
                {"type": "response.output_text.delta", "output_index": 0, "delta": "one"},
                {"type": "response.output_text.done", "output_index": 0, "text": "one"},
            ),
            {0: "one"},
        ),
        (events({"choices": [{"delta": {"content": "\ud800"}}]}), {0: "\ud800"}),
        (events(b'{"choices": [{"delta"'), {0: '{"choices": [{"delta"'}),
        (b": a comment\n\n", {}),
    ],
)  # fmt: skip
def test_hooks_hear_every_text_of_every_dialect_by_choice(
    data: bytes, texts: dict[int, str]
) -> None:
    assert heard(data) == texts


class Guard:
    """Answers as it is told."""

    problem = ""

    def __init__(self) -> None:
        self.answers: list[object] = []
        self.asked = 0

    async def ask(self, payload: bytes) -> str | None:
        self.asked += 1
        said = self.answers.pop(0) if self.answers else None
        if isinstance(said, Exception):
            raise said
        if isinstance(said, float):
            await asyncio.sleep(said)
            return None
        return said if isinstance(said, str) else None

    def close_idle(self, now_s: float) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is kept."""


def made() -> tuple[AskedHook, Guard]:
    guard = Guard()
    return AskedHook(HookEntry("pii", HookKind.PYTHON, entry_point="x"), guard), guard


@pytest.mark.anyio
async def test_each_verdict_is_counted_and_timed() -> None:
    hook, guard = made()
    guard.answers = [None, "no", HookError("HTTP 500"), ConnectionRefusedError(111, "refused"), 5.0]
    verdicts = [(await hook.ask(b"{}", 0.02, 7)).verdict for _ in range(5)]
    assert verdicts == ["pass", "refuse", "failed", "failed", "failed"]
    report = hook.report(0.0)
    assert report.verdicts == {"pass": 1, "refuse": 1, "failed": 3}
    assert (report.error, report.error_at_ms) == ("no answer within 20 ms", 7)
    assert sum(count for _, count in report.seconds) == 5


@pytest.mark.anyio
async def test_a_failing_hook_is_skipped_until_a_call_finds_it_well_again() -> None:
    hook, guard = made()
    guard.answers = [HookError("x")] * 5
    for _ in range(5):
        await hook.ask(b"{}", 1, 0)
    skipped = await hook.ask(b"{}", 1, 0)
    assert (skipped.verdict, guard.asked) == (HookVerdict.SKIPPED, 5)
    assert skipped.wait_s is not None
    assert 0 < skipped.wait_s <= 6
    hook.breaker.open_until_s = 0.0
    guard.answers = [HookError("x")]
    assert (await hook.ask(b"{}", 1, 0)).verdict is HookVerdict.FAILED  # the probe found it ill
    assert (await hook.ask(b"{}", 1, 0)).verdict is HookVerdict.SKIPPED
    hook.breaker.open_until_s = 0.0
    for _ in range(4):
        assert (await hook.ask(b"{}", 1, 0)).verdict is HookVerdict.PASS
    assert hook.breaker.phase is Phase.CLOSED


@pytest.mark.anyio
async def test_calls_at_once_are_bounded_and_the_wait_counts_against_the_deadline() -> None:
    hook, guard = made()
    guard.answers = [10.0] * MAX_RUNNING
    running = [asyncio.ensure_future(hook.ask(b"{}", 10, 0)) for _ in range(MAX_RUNNING)]
    while guard.asked < MAX_RUNNING:
        await asyncio.sleep(0)
    assert (await hook.ask(b"{}", 0.02, 0)).verdict is HookVerdict.FAILED
    assert guard.asked == MAX_RUNNING
    for task in running:
        task.cancel()


@pytest.mark.anyio
async def test_a_probe_that_is_cancelled_does_not_run_for_ever() -> None:
    hook, guard = made()
    guard.answers = [HookError("x")] * 5
    for _ in range(5):
        await hook.ask(b"{}", 1, 0)
    hook.breaker.open_until_s = 0.0
    guard.answers = [10.0]
    task = asyncio.ensure_future(hook.ask(b"{}", 10, 0))
    while guard.asked < 6:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert not hook.breaker.is_probing


@pytest.mark.anyio
async def test_calls_that_wait_for_a_hooks_threads_are_bounded() -> None:
    hook = PythonHook("none")
    release = threading.Event()
    for _ in range(THREADS):
        hook._submit(release.wait)
    while hook._jobs.qsize():
        await asyncio.sleep(0)
    waiting = [hook._submit(lambda: None) for _ in range(MAX_WAITING)]
    with pytest.raises(HookError):
        hook._submit(lambda: None)
    assert len(hook._threads) == THREADS
    release.set()
    await asyncio.wait(waiting)
    hook.close()


@pytest.mark.parametrize("said", [True, False, 0, {"verdict": "pass"}, b"no"])
def test_only_nothing_and_a_text_are_verdicts(said: object) -> None:
    with pytest.raises(HookError):
        reason_of(said)
    assert (reason_of(None), reason_of("")) == (None, "")


def test_a_signature_is_what_the_documentation_says() -> None:
    # printf 'v1.1700000000.{}' | openssl dgst -sha256 -hmac secret
    digest = "2240ee481df694a29d15b03e6cf9592e621407f9ce735fcd3cd027f6b77085eb"
    assert signature(b"secret", "1700000000", b"{}") == f"v1={digest}"
