"""What an override may say, and how it reads in words."""

from dataclasses import dataclass
from typing import Final

from routing.contracts.enums import WorkClass
from routing.contracts.override import CLASS_KINDS, MAX_HOLD_S, TENANT_KINDS, OverrideKind

DEFAULT_HOLD_S: Final = 900
MIN_HOLD_S: Final = 10
MAX_TOKENS: Final = 10_000_000  # longer than any context: a bound on what is stored
MAX_CONCURRENCY: Final = 100_000
_WITH_AMOUNT: Final = frozenset(
    {OverrideKind.OUTPUT_CAP, OverrideKind.CONTEXT_CAP, OverrideKind.CONCURRENCY_CAP}
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """An override as it is asked for. Empty fields are not part of its scope."""

    kind: OverrideKind
    tenant: str = ""
    work_class: WorkClass | None = None
    model: str = ""
    amount: int = 0
    admitted_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """Which field is wrong, why, and what to do."""

    field: str
    reason: str
    fix: str


def fault_of(wanted: Wanted) -> Fault | None:
    """The first thing wrong with it; None when it can be enforced as it stands."""
    return _scope_fault(wanted) or _value_fault(wanted)


def _scope_fault(wanted: Wanted) -> Fault | None:
    kind = wanted.kind
    if kind in CLASS_KINDS and wanted.work_class is None:
        return Fault("work_class", f"{kind} is about a class.", "Choose a class.")
    if kind in CLASS_KINDS and wanted.tenant:
        return Fault("tenant", f"{kind} is about a class of all tenants.", "Leave tenant empty.")
    if kind in TENANT_KINDS and not wanted.tenant:
        return Fault("tenant", f"{kind} is about one tenant.", "Name the tenant.")
    if kind in TENANT_KINDS and wanted.work_class is not None:
        return Fault("work_class", f"{kind} holds for every class.", "Leave the class empty.")
    if kind is OverrideKind.CONCURRENCY_CAP and wanted.model:
        return Fault("model", f"{kind} counts over all models.", "Leave the model empty.")
    return None


def _value_fault(wanted: Wanted) -> Fault | None:
    most = MAX_CONCURRENCY if wanted.kind is OverrideKind.CONCURRENCY_CAP else MAX_TOKENS
    if wanted.kind in _WITH_AMOUNT and not 1 <= wanted.amount <= most:
        return Fault("amount", f"{wanted.kind} needs an amount from 1 to {most}.", "Say one.")
    if wanted.kind not in _WITH_AMOUNT and wanted.amount:
        return Fault("amount", f"{wanted.kind} has no amount.", "Leave it out.")
    if wanted.kind is not OverrideKind.SHED and wanted.admitted_ratio:
        return Fault("admitted_ratio", f"{wanted.kind} admits no share.", "Leave it out.")
    if wanted.kind is OverrideKind.SHED and wanted.admitted_ratio is None:
        return Fault("admitted_ratio", "How much of it is admitted?", "A share; 0 refuses all.")
    if not 0 <= (wanted.admitted_ratio or 0) < 1:
        return Fault("admitted_ratio", "A share lies from 0 to below 1.", "0 refuses everything.")
    return None


def hold_fault(seconds: float) -> Fault | None:
    """Whether it may last so long."""
    if MIN_HOLD_S <= seconds <= MAX_HOLD_S:
        return None
    return Fault(
        "hold_s",
        f"An override lasts from {MIN_HOLD_S} s to {MAX_HOLD_S} s (24 h).",
        "For longer, publish a policy or change a limit.",
    )


def words_of(wanted: Wanted) -> str:
    """What it does, in one line."""
    where = f" of {wanted.model}" if wanted.model else ""
    name = f"class {wanted.work_class.value}{where}" if wanted.work_class else ""
    tenant = f"tenant {wanted.tenant}" if wanted.tenant else "the tenant"
    match wanted.kind:
        case OverrideKind.PAUSE:
            return f"pause {name}"
        case OverrideKind.SHED:
            return f"admit {wanted.admitted_ratio or 0:.0%} of {name}"
        case OverrideKind.OUTPUT_CAP:
            return f"{name}: at most {wanted.amount:,} output tokens"
        case OverrideKind.CONTEXT_CAP:
            return f"{tenant}{where}: prompts of at most {wanted.amount:,} tokens"
        case OverrideKind.CONCURRENCY_CAP:
            return f"{tenant}: at most {wanted.amount:,} requests at once"
