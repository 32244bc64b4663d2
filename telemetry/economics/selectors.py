"""GPU time, energy and carbon of a period with every input and its source."""

from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from capacity.fleet.gpu_time import gpu_time
from telemetry.economics import reference
from telemetry.economics.rules import Economics, PoolFacts, Stated, economics
from tenants.ledger.bill import PoolTokens, tokens_by_pool
from tenants.work.rules import Outcomes, work_units
from tenants.work.selectors import ended_work

MAX_INPUTS = 4000  # regions and kinds of hardware that people stated


@dataclass(frozen=True, slots=True)
class Inputs:
    """Stated figures, by region and hardware."""

    grids: dict[str, tuple[Stated, Stated]]
    powers: dict[str, Stated]

    def grid(self, region: str) -> tuple[Stated, Stated] | None:
        """Intensity and PUE: as stated, else the reference's for a cloud region of that name."""
        if region in self.grids:
            return self.grids[region]
        found = reference.grids().get(region)
        if found is None:
            return None
        pue = Stated(reference.DEFAULT_PUE, reference.PUE_SOURCE, is_own=False)
        return Stated(found.value, found.source, is_own=False), pue

    def power(self, hardware: str) -> Stated | None:
        """Watts a GPU: as stated, else the reference's for a GPU of that name."""
        if hardware in self.powers:
            return self.powers[hardware]
        found = reference.powers().get(hardware)
        return None if found is None else Stated(found.value, found.source, is_own=False)


@dataclass(frozen=True, slots=True)
class Period:
    """A period's economics with what they were made from."""

    economics: Economics
    outcomes: Outcomes
    tokens: tuple[PoolTokens, ...]
    inputs: Inputs


def inputs() -> Inputs:
    """What people stated: one query over both tables."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 'grid', region, g_co2e_per_kwh, pue, source FROM telemetry_gridinput"
            " UNION ALL SELECT 'power', hardware, power_w, NULL, source FROM telemetry_powerinput"
            " ORDER BY 1, 2 LIMIT %s",
            [MAX_INPUTS],
        )
        rows = cursor.fetchall()
    grids, powers = {}, {}
    for kind, name, value, pue, source in rows:
        stated = Stated(float(value), source, is_own=True)
        if kind == "grid":
            grids[name] = (stated, Stated(float(pue), source, is_own=True))
        else:
            powers[name] = stated
    return Inputs(grids, powers)


def period(since: datetime, until: datetime) -> Period:
    """GPU time and carbon of [since, until), and per task that ended in it: four queries.

    A pool's GPU-seconds are shared out by work units; a named resource takes no GPU time.
    """
    known = inputs()
    outcomes, task_work = ended_work(tenant_ids=None, since=since, until=until)
    tokens = tokens_by_pool(since, until)
    own = {
        one.pool: work_units(one.uncached_tokens, one.cached_tokens, one.output_tokens)
        for one in task_work
    }
    whole = {
        one.pool: work_units(one.uncached_tokens, one.cached_tokens, one.output_tokens)
        for one in tokens
    }
    facts = [
        PoolFacts(
            pool=one.pool,
            region=one.region,
            hardware=one.hardware,
            gpu_s=one.gpu_s,
            work=whole.get(one.pool, 0.0),
            task_work=own.get(one.pool, 0.0),
        )
        for one in gpu_time(since, until)
    ]
    grids = {one.region: grid for one in facts if (grid := known.grid(one.region))}
    powers = {one.hardware: power for one in facts if (power := known.power(one.hardware))}
    return Period(economics(facts, grids, powers, outcomes.ended), outcomes, tokens, known)
