"""Playbooks in tests: a clock that can be moved, what the collector would publish, rows of runs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone

from capacity.models import Playbook, PlaybookAct, PlaybookRun
from capacity.playbooks.services import ensure_shipped
from routing.contracts.enums import WorkClass
from routing.contracts.live import (
    SLICES_BY_TENANT,
    SLICES_TOTAL,
    LiveSlice,
    LiveSlices,
    encode_live,
)
from routing.contracts.override import OverrideKind
from routing.overrides.rules import Wanted
from routing.overrides.services import apply_override
from routing.store import keys
from telemetry.models import SliceMinute
from tests.factories import ACTOR, World


class Clock:
    """`timezone.now` of the console, moved by hand."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@contextmanager
def clock(patch: pytest.MonkeyPatch) -> Iterator[Clock]:
    moved = Clock()
    with patch.context() as inner:
        inner.setattr(timezone, "now", lambda: moved.now)
        yield moved


def offers(store: "redis.Redis[bytes]", tokens_per_min: dict[int, int], **total: Any) -> None:
    """What the collector publishes of the last minute: input tokens by tenant."""
    at_ms = time.time_ns() // 1_000_000

    def row(tenant_id: str, tokens: int, **fields: Any) -> LiveSlice:
        base: dict[str, Any] = {
            "id": tenant_id, "tenant_id": tenant_id, "tenant": f"t{tenant_id}", "model": "",
            "pool": "", "requests": 60, "failed": 0, "refused": 0, "input_tokens": tokens,
            "output_tokens": 100, "ttft_count": 60, "ttft_p50_s": 0.2, "ttft_p95_s": 0.4,
            "ttft_p99_s": None, "spend_nanousd": 0,
        }  # fmt: skip
        return LiveSlice(**(base | fields))

    def live(rows: list[LiveSlice]) -> bytes:
        return encode_live(LiveSlices("e", 1, at_ms, 60, at_ms - 900_000, at_ms, rows))

    rows = [row(str(tenant_id), tokens) for tenant_id, tokens in tokens_per_min.items()]
    store.hset(keys.LIVE, SLICES_BY_TENANT, live(rows))
    store.hset(keys.LIVE, SLICES_TOTAL, live([row("", sum(tokens_per_min.values()), **total)]))


def minutes_before(tenant_id: int, now: datetime, tokens: list[int]) -> None:
    """Rolled-up minutes of a tenant, the last of them two minutes ago."""
    last = now.replace(second=0, microsecond=0) - timedelta(minutes=2)
    SliceMinute.objects.bulk_create(
        SliceMinute(
            minute_at=last - timedelta(minutes=at),
            tenant_id=tenant_id,
            model="llama-8b",
            pool="p-a",
            work_class="standard",
            requests=60,
            input_tokens=amount,
            ttft_sketch=b"",
            itl_sketch=b"",
            e2e_sketch=b"",
        )
        for at, amount in enumerate(tokens)
    )


def make_runs(world: World, count: int = 1, **fields: Any) -> int:
    """Runs of the shipped noisy tenant, the first still running, an override each; the newest."""
    ensure_shipped()
    playbook = Playbook.objects.get(name="noisy-tenant")
    now = timezone.now()
    newest = 0
    is_first = not PlaybookRun.objects.filter(ended_at=None).exists()
    for number in range(count):
        started = now - timedelta(minutes=5)
        is_running = is_first and number == 0
        values: dict[str, Any] = {
            "version": 1,
            "is_dry_run": False,
            "subject": f"s{number}",
            "label": "acme",
            "depth": 1,
            "started_at": started,
            "ended_at": None if is_running else now,
            "end_reason": "" if is_running else "The signal has ended.",
            "baseline": 40_000,
            "start_value": 4.2,
            "peak_value": 6.0,
            "last_value": 2.1,
            "samples": [
                [started.timestamp() + 5 * at, None if at == 9 else 4.2 - at * 0.1]
                for at in range(40)
            ],
        }
        run = PlaybookRun.objects.create(playbook=playbook, **(values | fields))
        made = apply_override(
            wanted=Wanted(OverrideKind.OUTPUT_CAP, work_class=WorkClass.BATCH, amount=99 + number),
            hold_s=600,
            reason="Capacity is reduced.",
            actor=ACTOR,
            source="playbook:noisy-tenant",
            run_id=run.pk,
        )
        for title, undone in (("Cap its prompts", None), ("Cap more", now)):
            PlaybookAct.objects.create(
                run=run,
                step=0,
                title=title,
                at=started + timedelta(seconds=20),
                value=4.2,
                overrides=[{"id": made.id, "words": made.words}],
                before={"ttft_p95_s": 0.9, "refused_per_min": 3.0, "kv_max_ratio": 0.95},
                after={"ttft_p95_s": 0.3, "refused_per_min": 40.0, "kv_max_ratio": 0.6},
                undone_at=undone,
                undone_by="ana" if undone else "",
            )
        newest = run.pk
    return newest
