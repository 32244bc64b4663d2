"""Hourly traffic in the ledger's rollups, as its writer would have left it."""

import gzip
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.utils import timezone

from capacity.forecasts.imports import import_table
from capacity.forecasts.rules.series import hour_of
from capacity.forecasts.services import begin_run, finish_run, forecast_next
from capacity.models import Forecast
from tenants.models import ApiKey, UsageRollup
from tests import factories

SOON = hour_of(timezone.now()) + timedelta(minutes=30)  # a moment that no hour ends near
ROOT = Path(__file__).parent
DEMO_DAYS = ROOT.parent / "console" / "demo" / "data" / "servegen_9_days.csv"
M_LARGE = ROOT / "data" / "servegen_m-large_demand_10min_days0-8.csv.gz"


def daily(at: datetime) -> tuple[int, int, int]:
    """Requests, input and output tokens of an hour: busy from 8 to 18, never quite the same."""
    jitter = int(at.timestamp()) // 3600 * 7919 % 13
    requests = 100 + (200 if 8 <= at.hour < 18 else 0) + jitter
    return requests, requests * 900, requests * 150


def roll_hours(
    world: factories.World,
    slug: str,
    until: datetime,
    hours: int,
    *,
    model: str = "llama-8b",
    pool: str = "p-a",
    amounts: Callable[[datetime], tuple[int, int, int]] = daily,
) -> None:
    """Whole hours before `until`, oldest first."""
    key = ApiKey.objects.get(pk=world.keys[slug].id)
    rows = []
    for back in range(hours, 0, -1):
        at = until - timedelta(hours=back)
        requests, given, output = amounts(at)
        rows.append(
            UsageRollup(
                grain="h", start_at=at, tenant_id=key.tenant_id, project_id=key.project_id,
                key_id=key.pk, model=model, pool=pool, work_class="standard", region="eu",
                requests=requests, input_tokens=given, output_tokens=output,
                spend_nanousd=given * 600 + output * 2400,
            )
        )  # fmt: skip
    UsageRollup.objects.bulk_create(rows)


def roll_minutes(world: factories.World, slug: str, *, minutes: int, requests: int) -> None:
    """The last minutes before `SOON`, the last one whole, with the hour that they add up to."""
    key = ApiKey.objects.get(pk=world.keys[slug].id)
    starts = [("m", SOON - timedelta(minutes=back), 1) for back in range(1, minutes + 1)]
    UsageRollup.objects.bulk_create(
        UsageRollup(
            grain=grain, start_at=at, tenant_id=key.tenant_id, project_id=key.project_id,
            key_id=key.pk, model="llama-8b", pool="p-a", work_class="standard", region="eu",
            requests=requests * count, input_tokens=900 * requests * count,
            output_tokens=150 * requests * count, spend_nanousd=0,
        )
        for grain, at, count in [*starts, ("h", hour_of(SOON), minutes)]
    )  # fmt: skip


def make_forecast(
    world: factories.World, *, as_of: datetime | None = None, hours: int = 6 * 24, **to_roll: Any
) -> int:
    """A finished run by the floors alone over fresh history of the first tenant.

    The id of its band of all tenants' requests a day ahead.
    """
    end = as_of or hour_of(timezone.now())
    roll_hours(world, next(iter(world.tenants)), end, hours, **to_roll)
    run_id = begin_run(now=end)
    while forecast_next(run_id, lambda: False) is not None:
        pass
    finish_run(run_id, now=end)
    return Forecast.objects.get(
        source="ledger", tenant="", measure="requests", horizon_h=24, as_of=end
    ).pk


def import_servegen(source: str = "servegen", path: Path = DEMO_DAYS, model: str = "") -> int:
    """Nine days of real demand, ending with the last whole hour."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as lines:
        return import_table(source=source, lines=lines, model=model, actor=factories.ACTOR)
