"""Callers that never pause, and what the ledger and the store say of their calls."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import psycopg
import redis

from routing.store.packed import read_counter

CALLERS = 4
QUIET_S = 60.0  # lease 15 s + sweep 5 s, and the restarts before it
STOCK_ANSWERS = 5


@dataclass
class Callers:
    """Threads that call the gateway without pause; `answered` are ids of complete answers."""

    url: str
    secret: str
    answered: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, number: int) -> None:
        body = {
            "model": "llama-8b",
            "messages": [{"role": "user", "content": f"caller {number} " * 20}],
            "max_tokens": 24,
            "stream": number % 2 == 0,
        }
        headers = {"Authorization": f"Bearer {self.secret}"}
        with httpx.Client(timeout=30) as client:
            while not self.stop.is_set():
                try:
                    answer = client.post(self.url, json=body, headers=headers)
                except httpx.HTTPError as error:
                    self.failed[type(error).__name__] += 1
                    self.stop.wait(0.2)
                    continue
                is_complete = not body["stream"] or answer.text.endswith("data: [DONE]\n\n")
                if answer.status_code == 200 and is_complete:
                    self.answered.append(answer.headers["x-request-id"])
                else:
                    self.failed[str(answer.status_code)] += 1
                    self.stop.wait(0.2)

    def grows(self) -> Callable[[], bool]:
        """A condition: some more answers than now."""
        goal = len(self.answered) + STOCK_ANSWERS
        return lambda: len(self.answered) >= goal


@contextmanager
def calling(stack: Any) -> Iterator[Callers]:
    secret = stack.credentials["demo_callers"][0]["secret"]
    callers = Callers(f"{stack.gateway_url}/v1/chat/completions", secret)
    threads = [threading.Thread(target=callers.run, args=(n,)) for n in range(CALLERS)]
    for thread in threads:
        thread.start()
    try:
        yield callers
    finally:
        callers.stop.set()
        for thread in threads:
            thread.join(40)


def holds(store: redis.Redis) -> dict[str, int]:
    """Everything that is held anywhere in the store, by counter and dimension."""
    return {
        f"{key.decode()} {name}": amount
        for key in store.scan_iter("{b*}:*:[wg]:*", count=500)
        for name, amount in read_counter(store.get(key)).items()
        if name.endswith("_h") and amount
    }


def booked(stack: Any, request_ids: list[str]) -> Counter[str]:
    with psycopg.connect(stack.settings["DATABASE_URL"]) as connection:
        rows = connection.execute(
            "SELECT request_id::text FROM tenants_usage WHERE request_id = ANY(%s::uuid[])",
            [request_ids],
        ).fetchall()
    return Counter(row[0] for row in rows)
