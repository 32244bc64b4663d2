"""R17: cache-friendly routing spreads out when a popular prefix overloads its home."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import redis

from routing.contracts.process import decode_gateway_status
from routing.store import keys
from tests.gatewaying import serving, streaming
from tests.stack import ACME_KEY, GatewayProcess, make_snapshot, publish, wait_until
from tests.upstream import (
    Hang,
    Send,
    UpstreamThread,
    delta,
    event,
    framed,
    json_script,
    sse_head,
)

SYSTEM = "You answer for the help desk of a large shop. " * 220  # 10 kB: about 2000 tokens
LONG = [sse_head(), Send(framed(event(delta("first")))), Hang()]


def said(user: str, system: str = SYSTEM) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def ask_all(
    gateway: GatewayProcess, bodies: list[dict[str, Any]], at_once: int, session: str = ""
) -> None:
    """Send all, `at_once` at a time; each with a session of its own if `session` begins one."""

    async def run() -> None:
        left = iter(enumerate(bodies))
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:

            async def work() -> None:
                for number, body in left:
                    headers = {"authorization": f"Bearer {ACME_KEY}"}
                    if session:
                        headers["x-session-id"] = f"{session}-{number}"
                    response = await client.post(
                        f"{gateway.url}/v1/chat/completions", json=body, headers=headers
                    )
                    assert response.status_code == 200, response.text

            await asyncio.gather(*(work() for _ in range(at_once)))

    asyncio.run(run())


def four(stack: contextlib.ExitStack, delay_s: float) -> list[UpstreamThread]:
    script = json_script(delay_s=delay_s)
    return [stack.enter_context(UpstreamThread(script)) for _ in range(4)]


def test_a_popular_prefix_is_spread(tmp_path: Path, store: "redis.Redis[bytes]") -> None:
    with contextlib.ExitStack() as stack:
        replicas = four(stack, delay_s=0.5)
        gateway = stack.enter_context(serving(tmp_path, *replicas))
        bodies = [
            {"model": "alpha-8b", "messages": said(f"question {i}"), "max_tokens": 5}
            for i in range(200)
        ]
        ask_all(gateway, bodies, at_once=40)
        shares = [len(one.completions) / 200 for one in replicas]
        assert sum(shares) == 1
        assert max(shares) <= 0.4, shares
        assert min(shares) >= 0.1, shares


def test_a_growing_conversation_stays(tmp_path: Path, store: "redis.Redis[bytes]") -> None:
    with contextlib.ExitStack() as stack:
        replicas = four(stack, delay_s=0.0)
        gateway = stack.enter_context(serving(tmp_path, *replicas))
        messages = said("Where is my order?", "You are the help desk. " * 20)
        for turn in range(20):
            response = gateway.chat(messages=list(messages), max_tokens=5)
            assert response.status_code == 200
            messages += [
                {"role": "assistant", "content": "It is on its way. " * 5},
                {"role": "user", "content": f"And order {turn}?"},
            ]
        assert max(len(one.completions) for one in replicas) >= 18


def test_work_in_progress_counts_not_completions(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with contextlib.ExitStack() as stack:
        replicas = four(stack, delay_s=0.1)
        busy = replicas[0]
        for one in replicas:
            one.choose = lambda seen: LONG if seen.json.get("stream") else None
        gateway = stack.enter_context(serving(tmp_path, busy))
        open_streams = []  # an iterator that is dropped closes its response
        for number in range(5):
            response = stack.enter_context(
                streaming(gateway, messages=said(f"long {number}"), max_tokens=1000)
            )
            open_streams.append(response.iter_bytes())
            next(open_streams[-1])
        publish(store, make_snapshot([one.address for one in replicas], number=2))
        wait_until(lambda: _snapshot(store) == 2, 10, "all four in force")
        before = [len(one.completions) for one in replicas]
        assert before == [5, 0, 0, 0]
        bodies = [
            {"model": "alpha-8b", "messages": said(f"short {i}", "Be brief."), "max_tokens": 5}
            for i in range(40)
        ]
        ask_all(gateway, bodies, at_once=40, session="new")
        busys, *others = [
            len(one.completions) - count for one, count in zip(replicas, before, strict=True)
        ]
        assert busys + sum(others) == 40
        assert busys < min(others), (busys, others)


def _snapshot(store: "redis.Redis[bytes]") -> int:
    raw = store.hget(keys.GATEWAYS, "g0")
    return decode_gateway_status(raw).snapshot_number if raw else 0
