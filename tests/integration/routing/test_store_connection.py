"""The batching store connection: order, deadlines, loss, and never another's reply (R29)."""

import asyncio
import random
import time
from contextlib import suppress
from pathlib import Path

import hiredis
import msgspec
import pytest
import redis

from routing.store import keys
from routing.store.client import (
    NO_REPLY,
    NOT_SENT,
    StoreAwayError,
    StoreConnection,
)
from routing.store.clock import StoreClock
from routing.store.listener import NudgeListener
from routing.store.pooled import sync_client
from routing.store.scripts import COUNTERS
from routing.store.wire import wire_key
from tests.accounting import PrivateStore, redis_url, until
from tests.store_wires import Relay, connected, through

pytestmark = pytest.mark.anyio


async def test_replies_come_back_in_the_order_of_the_commands(store: "redis.Redis"):
    async with connected(redis_url()) as connection:
        replies = await asyncio.gather(*(connection.call("ECHO", str(n)) for n in range(500)))
        assert replies == [str(n).encode() for n in range(500)]
        assert connection.pending == 0
        assert connection.run_id == keys.run_name(store.info("server")["run_id"])


async def test_commands_of_one_loop_turn_leave_in_one_write(store: "redis.Redis"):
    async with connected(redis_url()) as connection:
        before = store.info("stats")["total_reads_processed"]
        await asyncio.gather(*(connection.call("PING") for _ in range(50)))
        after = store.info("stats")["total_reads_processed"]
        assert after - before <= 3, "our one read, and the two INFO commands"


async def test_forgotten_scripts_are_sent_again(store: "redis.Redis"):
    async with connected(redis_url()) as connection:
        store.script_flush()
        future = asyncio.get_running_loop().create_future()
        argument = msgspec.msgpack.encode(["pos", "{b1}", connection.run_id, 1, "0-0"])
        connection.script(COUNTERS, wire_key("{b1}:meta"), argument, future.set_result)
        assert await future == b"OLD"


async def test_error_reply_is_the_callers_alone(store: "redis.Redis"):
    async with connected(redis_url()) as connection:
        results = await asyncio.gather(
            connection.call("GET", "a"),
            connection.call("NOSUCH"),
            connection.call("ECHO", "x"),
            return_exceptions=True,
        )
        assert results[0] is None
        assert isinstance(results[1], hiredis.ReplyError)
        assert results[2] == b"x"


async def test_cancelled_callers_never_shift_anothers_reply(store: "redis.Redis"):
    port = store.connection_pool.connection_kwargs["port"]
    draw = random.Random(7)
    async with Relay(port, 0.02) as relay, connected(through(relay)) as conn:

        async def ask(number: int) -> None:
            owner = "acme" if number % 2 else "globex"
            task = asyncio.ensure_future(conn.call("ECHO", f"{owner}:{number}"))
            if draw.random() < 0.5:
                await asyncio.wait([task], timeout=draw.uniform(0, 0.06))
                task.cancel()
            with suppress(asyncio.CancelledError):
                assert await task == f"{owner}:{number}".encode()

        for start in range(0, 1000, 50):
            await asyncio.gather(*(ask(n) for n in range(start, start + 50)))
        replies = await asyncio.gather(*(conn.call("ECHO", f"calm:{n}") for n in range(200)))
        assert replies == [f"calm:{n}".encode() for n in range(200)]
        assert conn.pending == 0
        assert (conn.connects, relay.connections) == (1, 1), "none was lost on the way"


async def test_late_reply_drops_the_connection_and_reaches_nobody(store: "redis.Redis"):
    port = store.connection_pool.connection_kwargs["port"]
    async with Relay(port) as relay:
        url = through(relay)
        async with connected(url, reply_timeout_s=0.1) as connection:
            relay.delay_s = 0.3
            first, second = await asyncio.gather(
                connection.call("ECHO", "late-1"),
                connection.call("ECHO", "late-2"),
                return_exceptions=True,
            )
            assert isinstance(first, StoreAwayError)
            assert isinstance(second, StoreAwayError)
            assert first.was_sent
            relay.delay_s = 0.0
            assert await connection.wait_ready(5)
            assert connection.connects == 2
            assert await connection.call("ECHO", "mine") == b"mine"


async def test_commands_without_a_connection_fail_at_once_as_not_sent(tmp_path: Path):
    server = PrivateStore(tmp_path).start()
    try:
        async with connected(server.url) as connection:
            lost: list[int] = []
            connection.on_lost.append(lambda _: lost.append(1))
            waiting: list[object] = []
            server.client.execute_command("CLIENT", "PAUSE", 5000)
            connection.command("PING", callback=waiting.append)
            await asyncio.sleep(0)
            server.kill()
            await until(lambda: waiting == [NO_REPLY])
            answers: list[object] = []
            connection.command("PING", callback=answers.append)
            assert answers == [NOT_SENT]
            assert lost == [1]
            before = connection.run_id
            server.start()
            assert await connection.wait_ready(5)
            assert connection.run_id != before, "another process"
    finally:
        server.stop()


async def test_more_commands_than_the_bound_are_refused_not_queued(store: "redis.Redis"):
    async with connected(redis_url(), max_pending=10) as connection:
        replies: list[object] = []
        for _ in range(15):
            connection.command("PING", callback=replies.append)
        assert replies == [NOT_SENT] * 5
        await until(lambda: len(replies) == 15)
        assert replies[5:] == [b"PONG"] * 10


async def test_password_and_database_of_the_url_are_used(tmp_path: Path):
    server = PrivateStore(tmp_path).start()
    try:
        server.client.config_set("requirepass", "p@ss:/w")
        url = f"redis://:p%40ss%3A%2Fw@127.0.0.1:{server.port}/3"
        async with connected(url) as connection:
            await connection.call("SET", "where", "three")
        with sync_client(url) as client:
            assert client.get("where") == b"three"
        with redis.Redis(port=server.port, password="p@ss:/w") as zero:
            assert zero.get("where") is None
    finally:
        server.stop()


async def test_wrong_password_never_becomes_ready(tmp_path: Path):
    server = PrivateStore(tmp_path).start()
    try:
        server.client.config_set("requirepass", "right")
        clock = StoreClock(time.monotonic, 0)
        url = f"redis://:wrong@127.0.0.1:{server.port}/0"
        connection = StoreConnection(url, name="t", clock=clock)
        connection.start()
        assert not await connection.wait_ready(0.4)
        with pytest.raises(StoreAwayError) as caught:
            await connection.call("PING")
        assert not caught.value.was_sent
        await connection.close()
    finally:
        server.stop()


async def test_listener_hears_nudges_again_after_a_reconnect(store: "redis.Redis"):
    heard: list[bytes] = []
    listener = NudgeListener(
        redis_url(),
        name="n",
        clock=StoreClock(time.monotonic, 0),
        channel="test:nudges",
        heard=lambda _, payload: heard.append(payload),
    )
    listener.start()
    await until(lambda: store.publish("test:nudges", "one"))
    await until(lambda: b"one" in heard)
    store.client_kill_filter(_type="pubsub")
    await until(lambda: listener.connects == 2)
    await until(lambda: store.publish("test:nudges", "two"))
    await until(lambda: b"two" in heard)
    await listener.close()
