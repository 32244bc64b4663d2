"""The gateway's soak: callers at a share of the capacity, faults among them, and what must hold.

Memory and descriptors of each gateway are read when nothing runs: once at `mark_s` and once at the
end, so that work in progress is no leak. What callers saw is compared with the ledger's rows.
"""

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from tests.soak.callers import Callers, Seen
from tests.soak.farm import Farm, Trouble, met
from tests.soak.kinds import (
    AWAY,
    AWAY_RATIO_MAX,
    CUT_LOST,
    CUT_SILENT,
    KILLS,
    KILLS_FIRST,
    KINDS,
    LEFT,
    OK,
    may_end,
    may_end_spent,
)
from tests.soak.replica import OUTPUT_TOKENS, PROMPT_TOKENS
from tests.stack import GatewayProcess

LOAD_RATIO = 0.6
# The widest step is more than ever runs at once later: allocators have grown before minute five.
WIDTHS = (4, 8, 16, 32, 64, 128)
GROWTH_MAX = 0.03
QUIET_S = 6.0  # above the 4 s after which unused connections to replicas are closed
SAMPLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each part takes, in seconds.

    `mark_s` 0: the first sizes are those before any call. `per_s` 0: a share of what a ramp finds.
    """

    duration_s: float
    mark_s: float
    trouble_every_s: float
    ramp_step_s: float = 3.0
    per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Size:
    """A gateway at one moment."""

    rss_bytes: int
    descriptors: int


@dataclass(slots=True)
class Report:
    """What the run measured; `table` is for people."""

    seed: int
    ramp: dict[int, float] = field(default_factory=dict)  # width -> answers a second
    capacity_per_s: float = 0.0
    load_per_s: float = 0.0
    first: list[Size] = field(default_factory=list)
    last: list[Size] = field(default_factory=list)
    busy: list[list[Size]] = field(default_factory=list)  # a gateway's samples under load
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    unclassified: list[str] = field(default_factory=list)
    troubles: Counter[str] = field(default_factory=Counter)
    late: int = 0
    took_s: float = 0.0

    def growth(self) -> list[tuple[float, float]]:
        """Of each gateway: (memory, descriptors) at the end over those at the mark, minus 1."""
        return [
            (b.rss_bytes / a.rss_bytes - 1, b.descriptors / a.descriptors - 1)
            for a, b in zip(self.first, self.last, strict=True)
        ]

    def head(self) -> str:
        """How much is asked of the gateways."""
        ramp = ", ".join(f"{width}: {rate:.0f}" for width, rate in self.ramp.items())
        found = f"answers/s by calls at once {ramp}; capacity {self.capacity_per_s:.0f}/s, "
        return f"seed {self.seed}; {found if ramp else ''}load {self.load_per_s:.0f}/s"

    def table(self) -> str:
        """Everything, as Markdown."""
        lines = [
            f"{self.head()}; {self.took_s:.0f} s, {sum(self.outcomes.values())} calls,"
            f" {self.late} late, troubles {dict(self.troubles)}",
        ]
        for n, (rss, open_) in enumerate(self.growth()):
            a, b, busy = self.first[n], self.last[n], self.busy[n]
            lines.append(
                f"gateway {n}: RSS {a.rss_bytes / 2**20:.1f} -> {b.rss_bytes / 2**20:.1f} MiB"
                f" ({rss:+.1%}; at most {max(s.rss_bytes for s in busy) / 2**20:.1f}),"
                f" descriptors {a.descriptors} -> {b.descriptors} ({open_:+.1%}; under load"
                f" {median(s.descriptors for s in busy):.0f},"
                f" at most {max(s.descriptors for s in busy)})"
            )
        lines += ["", "| fault | outcome | calls |", "|---|---|---|"]
        lines += [f"| {f} | {o} | {n} |" for (f, o), n in sorted(self.outcomes.items())]
        return "\n".join(lines)


def size_of(gateway: GatewayProcess) -> Size:
    return Size(gateway.rss_bytes(), len(os.listdir(f"/proc/{gateway.process.pid}/fd")))


async def run(
    plan: Plan, gateways: list[GatewayProcess], farm: Farm, callers: Callers, seed: int
) -> Report:
    """Calibrate, load, break, and measure when quiet."""
    report = Report(seed, busy=[[] for _ in gateways])
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        keeper = group.create_task(farm.keep())
        report.first = [size_of(one) for one in gateways]
        if not plan.per_s:
            await _calibrate(plan, callers, report)
        report.load_per_s = plan.per_s or LOAD_RATIO * report.capacity_per_s
        print(report.head(), flush=True)
        callers.one_of_each()
        for until_s in (plan.mark_s, plan.duration_s):
            if not until_s:
                continue
            end_s = began_s + until_s
            beside = [
                group.create_task(_sample(gateways, report)),
                group.create_task(_trouble(plan, farm, callers, end_s)),
            ]
            await callers.at_rate(report.load_per_s, end_s)
            await beside[1]
            beside[0].cancel()
            await callers.quiet()
            sizes = await _when_quiet(gateways)
            if until_s == plan.mark_s:
                report.first = sizes
            else:
                report.last = sizes
        keeper.cancel()
    report.late = callers.late
    report.troubles = Counter(one.kind for one in farm.troubles())
    report.took_s = time.monotonic() - began_s
    return report


async def _calibrate(plan: Plan, callers: Callers, report: Report) -> None:
    for width in WIDTHS:
        report.ramp[width] = await callers.at_once(width, plan.ramp_step_s)
    report.capacity_per_s = max(report.ramp.values())


async def _sample(gateways: list[GatewayProcess], report: Report) -> None:
    while True:
        for samples, gateway in zip(report.busy, gateways, strict=True):
            samples.append(size_of(gateway))
        await asyncio.sleep(SAMPLE_S)


async def _trouble(plan: Plan, farm: Farm, callers: Callers, end_s: float) -> None:
    """One replica in trouble at a time, in turn: each kind is met however short the run."""
    acts = (
        lambda: callers.send(KILLS),
        lambda: callers.send(KILLS_FIRST),
        callers.burst,
        farm.burst,
    )
    for turn in itertools.count():
        wait_s = plan.trouble_every_s * callers.draw.uniform(0.5, 1.5)
        if turn >= 2 and time.monotonic() + wait_s + 2 > end_s:  # both kills, however late it is
            break
        await asyncio.sleep(wait_s)
        acts[turn % len(acts)]()
        await asyncio.sleep(0.5)
        while not farm.is_whole:
            await asyncio.sleep(0.1)


async def _when_quiet(gateways: list[GatewayProcess], timeout_s: float = 60.0) -> list[Size]:
    """Sizes once no descriptor has been opened or closed for a while."""
    end_s = time.monotonic() + timeout_s
    since_s, seen = time.monotonic(), [size_of(one).descriptors for one in gateways]
    while time.monotonic() - since_s < QUIET_S:
        assert time.monotonic() < end_s, f"descriptors still change: {seen}"
        await asyncio.sleep(0.25)
        now = [size_of(one).descriptors for one in gateways]
        if now != seen:
            since_s, seen = time.monotonic(), now
    return [size_of(one) for one in gateways]


# -- each call against its fault and its row -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """What the ledger says of a call. `kind` "v" cost nothing."""

    kind: str
    status: str
    source: str
    replica: str
    tokens: tuple[int, int]
    spend_nanousd: int


def classify(seen: Iterable[Seen], rows: dict[str, Row], farm: Farm, report: Report) -> None:
    """Count each call under its fault and outcome; what does not fit is `unclassified`."""
    away = 0
    troubles = farm.troubles()
    for one in seen:
        row = rows.get(one.request_id)
        why = "" if one.outcome == KINDS[one.fault].expected else _why(one, row, troubles)
        if why is None:
            report.unclassified.append(f"{one}, its row {row}")
        fault = f"{one.fault}, {why}" if why else one.fault
        report.outcomes[fault, one.outcome] += 1
        away += one.outcome == AWAY
        if (wrong := wrong_row(one.outcome, row)) is not None:
            report.unclassified.append(f"{wrong}: {one}, its row {row}")
    if away > AWAY_RATIO_MAX * sum(report.outcomes.values()):
        report.unclassified.append(f"{away} calls met a store that did not answer")


def _why(one: Seen, row: Row | None, troubles: list[Trouble]) -> str | None:
    """What a call met beside its own fault that ends so; None: nothing that is known."""
    if one.outcome == AWAY:
        return "met a store that did not answer"
    if row is None:
        return None
    for trouble in met(troubles, row.replica, one.started_at_s, one.ended_at_s):
        if may_end(one.fault, trouble, one.outcome):
            return trouble
    return "not tried elsewhere" if may_end_spent(one.fault, one.outcome) else None


def wrong_row(outcome: str, row: Row | None) -> str | None:
    """Why a row is not that of an outcome; None when it is."""
    is_charged = row is not None and row.kind != "v"
    if outcome in (OK, LEFT, CUT_LOST, CUT_SILENT) and not is_charged:
        return "an answer without a charge"
    if row is None:
        return None
    if outcome == OK:
        good = ("ok", "reported", (PROMPT_TOKENS, OUTPUT_TOKENS))
        return None if (row.status, row.source, row.tokens) == good else "not as it was stated"
    if outcome in (CUT_LOST, CUT_SILENT):
        return None if row.status == "incomplete" else "a cut stream that is not incomplete"
    if outcome == LEFT:
        # Its replica may have been killed while it left.
        return None if row.status in ("cancelled", "incomplete") else "a call that was left"
    return "a refusal that was charged" if row.spend_nanousd else None
