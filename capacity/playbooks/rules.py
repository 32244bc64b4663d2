"""The playbook document: its form, its checks, those that are shipped, and what a signal is."""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

import msgspec

from routing.contracts.enums import ReplicaHealth, ReplicaLifecycle, WorkClass
from routing.contracts.override import CLASS_KINDS, TENANT_KINDS, OverrideKind
from routing.decision.playbook import Measure, Rule, Signal, Step, Timing
from routing.overrides.rules import Fault, Wanted, fault_of, words_of
from telemetry.stats.burn import MIN_BAD

MAX_STEPS: Final = 8
MAX_MEASURES: Final = 8
MAX_TITLE_CHARS: Final = 100
MAX_REASON_CHARS: Final = 300
_RANGES_S: Final = {
    "enter_for_s": (0, 600),
    "leave_for_s": (5, 3600),
    "up_every_s": (0, 600),
    "down_every_s": (0, 3600),
    "cooldown_s": (0, 86_400),
    "hold_s": (30, 900),
    "max_s": (60, 86_400),
    "unknown_s": (5, 600),
}
UNITS: Final = {
    Signal.TENANT_INPUT_RATIO: "times its usual input rate",
    Signal.POOL_LOST_RATIO: "of its replicas lost",
    Signal.POOL_QUEUE_S: "s of queue wait in its engines, p95",
    Signal.POOL_KV_RATIO: "of its KV in use",
    Signal.OBJECTIVE_BURN: "times the allowed burn",
}
_SHARES: Final = frozenset({Signal.POOL_LOST_RATIO, Signal.POOL_KV_RATIO})
SUBJECTS: Final = {
    Signal.TENANT_INPUT_RATIO: "tenant",
    Signal.POOL_LOST_RATIO: "pool",
    Signal.POOL_QUEUE_S: "pool",
    Signal.POOL_KV_RATIO: "pool",
    Signal.OBJECTIVE_BURN: "objective",
}


def level_words(signal: Signal, level: float) -> str:
    """A level as it stands before its unit: `20 %` of the replicas, `3.00` times the usual rate."""
    return f"{level * 100:.0f} %" if signal in _SHARES else f"{level:.2f}"


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A playbook as people write it.

    `least_tokens_per_min` (tenants): below it nobody is looked at. The baseline is the lower
    quartile of a tenant's own whole minutes with traffic in the last `baseline_min`; with fewer
    than `baseline_least_min` of them the signal is unknown.
    """

    title: str
    signal: Signal
    steps: tuple[Step, ...]
    timing: Timing = Timing()
    skips_steps: bool = False
    least_tokens_per_min: int = 20_000
    baseline_min: int = 30
    baseline_least_min: int = 2
    schema_version: int = 1

    @property
    def rule(self) -> Rule:
        """What the decision core follows."""
        return Rule(self.steps, self.timing, self.skips_steps)

    @property
    def is_about_tenants(self) -> bool:
        """Whether its subjects are tenants; else measures are about classes of a model."""
        return self.signal is Signal.TENANT_INPUT_RATIO


def read(plain: object) -> "Document | Fault":
    """The document, or the first thing wrong with it: which field, why, what to do."""
    try:
        document = msgspec.convert(plain, Document)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        return Fault(path.strip("`.") or "document", f"{text}.", "See the shipped playbooks.")
    return _fault(document) or document


def stored(plain: object) -> Document:
    """A document that was checked when it was kept, by the checks of that time.

    A shed kept without its share, from before it had to be said, goes on refusing all. Raises
    `msgspec.ValidationError` for what no version of ours has written.
    """
    return msgspec.convert(plain, Document)


def to_plain(document: Document) -> dict[str, Any]:
    """The document as JSON values, defaults filled in."""
    found: dict[str, Any] = msgspec.to_builtins(document)
    return found


def _fault(document: Document) -> Fault | None:
    if document.schema_version != 1:
        return Fault("schema_version", "Only version 1 is known.", "Write 1.")
    if not 1 <= len(document.title) <= MAX_TITLE_CHARS:
        return Fault("title", f"A title has 1 to {MAX_TITLE_CHARS} characters.", "Shorten it.")
    if not 1 <= len(document.steps) <= MAX_STEPS:
        return Fault("steps", f"A playbook has 1 to {MAX_STEPS} steps.", "Add or remove steps.")
    return _baseline_fault(document) or _timing_fault(document.timing) or _steps_fault(document)


def _baseline_fault(document: Document) -> Fault | None:
    if not 2 <= document.baseline_min <= 1440:
        return Fault("baseline_min", "The baseline spans 2 to 1440 minutes.", "Write 30.")
    if not 1 <= document.baseline_least_min <= document.baseline_min:
        return Fault("baseline_least_min", "It lies from 1 to baseline_min.", "Write 2.")
    if document.least_tokens_per_min < 0:
        return Fault("least_tokens_per_min", "Tokens are not negative.", "Write 20000.")
    return None


def _timing_fault(timing: Timing) -> Fault | None:
    for name, (least, most) in _RANGES_S.items():
        if not least <= getattr(timing, name) <= most:
            return Fault(f"timing.{name}", f"It lies from {least} to {most} s.", "Change it.")
    if timing.max_s < timing.hold_s:
        return Fault("timing.max_s", "A run lasts at least one lease.", "Raise it to hold_s.")
    return None


def _steps_fault(document: Document) -> Fault | None:
    for at, step in enumerate(document.steps):
        if fault := _step_fault(f"steps[{at}]", step, document):
            return fault
    for at, (lower, higher) in enumerate(pairwise(document.steps), 1):
        if higher.enter < lower.enter or higher.leave < lower.leave:
            return Fault(f"steps[{at}].enter", "Levels rise from step to step.", "Order them.")
    return None


def _step_fault(path: str, step: Step, document: Document) -> Fault | None:
    if not 0 <= step.leave < step.enter:
        return Fault(f"{path}.leave", "It leaves below where it enters, at 0 or more.", "Lower it.")
    for name, most in (("title", MAX_TITLE_CHARS), ("reason", MAX_REASON_CHARS)):
        if not 1 <= len(getattr(step, name)) <= most:
            return Fault(f"{path}.{name}", f"It has 1 to {most} characters.", "Change it.")
    if not 1 <= len(step.measures) <= MAX_MEASURES:
        return Fault(f"{path}.measures", f"1 to {MAX_MEASURES} measures.", "Add or remove some.")
    for at, measure in enumerate(step.measures):
        if fault := _measure_fault(f"{path}.measures[{at}]", measure, document):
            return fault
    return None


def _measure_fault(path: str, measure: Measure, document: Document) -> Fault | None:
    fitting = TENANT_KINDS if document.is_about_tenants else CLASS_KINDS
    if measure.kind not in fitting:
        fix = f"One of {', '.join(sorted(fitting))}."
        what = SUBJECTS[document.signal]
        return Fault(f"{path}.kind", f"{measure.kind} does not fit a {what}.", fix)
    if fault := fault_of(wanted(measure, document, "x")):
        return Fault(f"{path}.{fault.field}", fault.reason, fault.fix)
    return None


def wanted(measure: Measure, document: Document, target: str) -> Wanted:
    """The override of a measure; `target` is the tenant's slug, or a model (empty: of any)."""
    return Wanted(
        kind=measure.kind,
        tenant=target if document.is_about_tenants else "",
        work_class=measure.work_class,
        model="" if document.is_about_tenants else target,
        amount=measure.amount,
        admitted_ratio=measure.admitted_ratio,
    )


def measure_words(measure: Measure, document: Document, target: str | None = None) -> str:
    """A measure in one line; without a target as the document says it."""
    if target is None:
        target = "" if document.is_about_tenants else f"the {SUBJECTS[document.signal]}'s model"
    return words_of(wanted(measure, document, target))


def lost_ratio(replicas: Iterable[tuple[str, int, ReplicaHealth | None]], desired: int) -> float:
    """Replicas lost over those wanted, and no more than the pool lacks.

    Each is `(lifecycle, failures in a row, health, None without a fresh report)`. One that is
    starting for the first time or draining on purpose is not lost; one that starts again after a
    failure still is, until it is ready. While as many serve as are wanted, nothing is lost: what
    fails beyond them (the new replica of a rollout) was never counted on.
    """
    if not desired:
        return 0.0
    lost = serving = 0
    for lifecycle, failures, health in replicas:
        is_lost = _is_lost(lifecycle, failures, health)
        lost += is_lost
        serving += lifecycle == ReplicaLifecycle.READY and not is_lost
    return min(lost, max(0, desired - serving)) / desired


def queue_s(waits: Iterable[tuple[int | None, float | None]]) -> float | None:
    """Seconds of queue wait over a pool's engines, the 95th percentile (nearest rank).

    Each is (requests waiting, mean wait of those that began in the last second). An engine that
    nothing waits in and that began none adds 0; one that holds a queue and began none is unknown.
    None when nothing is known.
    """
    known = sorted(
        0.0 if wait_s is None else wait_s
        for waiting, wait_s in waits
        if wait_s is not None or waiting == 0
    )
    return known[math.ceil(0.95 * len(known)) - 1] if known else None


def kv_ratio(ratios: Iterable[float | None]) -> float | None:
    """KV occupancy of a pool: the mean over the engines that say it, None when none does."""
    known = [ratio for ratio in ratios if ratio is not None]
    return sum(known) / len(known) if known else None


def burn_now(hour: float | None, five_min: float | None, bad: int) -> float | None:
    """How fast a budget burns: both windows must agree; none while too few requests are bad."""
    if hour is None:
        return None
    return min(hour, five_min or 0.0) if bad >= MIN_BAD else 0.0


def _is_lost(lifecycle: str, failures: int, health: ReplicaHealth | None) -> bool:
    if lifecycle == ReplicaLifecycle.READY:
        return health in (ReplicaHealth.LOST, ReplicaHealth.HUNG)
    if lifecycle == ReplicaLifecycle.DRAINING:
        return False
    return lifecycle == ReplicaLifecycle.FAILED or failures > 0


_SHEDDABLE = (WorkClass.STANDARD, WorkClass.BATCH)
_REDUCED = "Capacity is reduced for the moment."
_BUSY = "The engines are busy: requests wait for them."
SHIPPED: Final = {
    "noisy-tenant": Document(
        title="Noisy tenant",
        signal=Signal.TENANT_INPUT_RATIO,
        timing=Timing(
            enter_for_s=10, leave_for_s=30, up_every_s=15, down_every_s=30, cooldown_s=30
        ),
        steps=(
            Step(
                "Cap its prompts and its concurrency",
                3.0,
                1.5,
                "Your input rate has risen to several times what it usually is.",
                (
                    Measure(OverrideKind.CONTEXT_CAP, amount=4096),
                    Measure(OverrideKind.CONCURRENCY_CAP, amount=4),
                ),
            ),
        ),
    ),
    "capacity-lost": Document(
        title="Capacity lost",
        signal=Signal.POOL_LOST_RATIO,
        # A loss has no hold and may skip steps: what is gone does not come back by waiting.
        timing=Timing(enter_for_s=0, leave_for_s=30, up_every_s=0, down_every_s=15, cooldown_s=0),
        skips_steps=True,
        steps=(
            Step(
                "Pause batch",
                0.2,
                0.0,
                _REDUCED,
                (Measure(OverrideKind.PAUSE, WorkClass.BATCH),),
            ),
            Step(
                "Cap output of sheddable classes",
                0.3,
                0.1,
                _REDUCED,
                tuple(Measure(OverrideKind.OUTPUT_CAP, name, amount=1024) for name in _SHEDDABLE),
            ),
            Step(
                "Shed half of standard",
                0.75,
                0.4,
                _REDUCED,
                (Measure(OverrideKind.SHED, WorkClass.STANDARD, admitted_ratio=0.5),),
            ),
        ),
    ),
    "queue-grows": Document(
        title="Queue grows",
        signal=Signal.POOL_QUEUE_S,
        timing=Timing(
            enter_for_s=10, leave_for_s=60, up_every_s=15, down_every_s=60, cooldown_s=60
        ),
        steps=(
            Step(
                "Cap output of sheddable classes",
                1.0,
                0.3,
                _BUSY,
                tuple(Measure(OverrideKind.OUTPUT_CAP, name, amount=1024) for name in _SHEDDABLE),
            ),
            Step(
                "Pause batch",
                2.0,
                0.8,
                _BUSY,
                (Measure(OverrideKind.PAUSE, WorkClass.BATCH),),
            ),
        ),
    ),
}
