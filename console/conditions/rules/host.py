"""Conditions of this machine: room on its disks, its clock, and engines started on it."""

from collections.abc import Iterator

from console.conditions.rules.condition import BAD, WARN, Condition, Rule, seconds, size
from console.conditions.rules.facts import Facts

FREE_WARN_RATIO, FREE_WARN_BYTES = 0.10, 2 * 2**30
FREE_BAD_BYTES = 256 * 2**20
CLOCK_WARN_S = 2.0
CLOCK_BAD_S = 30.0
CLOCK_STEP_SHOWN_S = 600.0


def disk(facts: Facts) -> Iterator[Condition]:
    """Directories that must take writes."""
    for item in facts.disks:
        part = f"disk {item.name}"
        if item.error:
            yield Condition(
                part,
                "unwritable",
                BAD,
                f"{item.path} takes no writes: {item.error}. What runs goes on; usage goes to the "
                "store, not to the journal.",
                "8 MiB of journal entries wait in the memory of each gateway",
                "Repair its mode or its file system.",
            )
        elif item.free_bytes is not None and item.free_bytes < FREE_BAD_BYTES:
            yield Condition(
                part,
                "full",
                BAD,
                f"{size(item.free_bytes)} are free on the disk of {item.path}. Journals, logs and "
                "embedded servers stop writing when it is full.",
                "gateways go on while the store takes usage; 8 MiB each wait in memory",
                "Free space now: old logs and traces first, never `journal/`.",
            )
        elif item.free_bytes is not None and _is_short(item.free_bytes, item.free_ratio):
            yield Condition(
                part,
                "low",
                WARN,
                f"{size(item.free_bytes)} are free on the disk of {item.path}. Everything works.",
                "",
                "Free space, or move the state directory to a larger disk.",
            )


def _is_short(free_bytes: int, free_ratio: float | None) -> bool:
    return free_bytes < FREE_WARN_BYTES and free_ratio is not None and free_ratio < FREE_WARN_RATIO


def clock(facts: Facts) -> Iterator[Condition]:
    """Windows and leases follow the store's clock; ages on pages follow ours."""
    offset_s = facts.store.clock_offset_s
    if offset_s is None or abs(offset_s) < CLOCK_WARN_S:
        return
    way = "ahead of" if offset_s < 0 else "behind"
    yield Condition(
        "clock",
        "off",
        BAD if abs(offset_s) >= CLOCK_BAD_S else WARN,
        f"This machine's clock is {seconds(abs(offset_s))} {way} the store's. Limits follow the "
        "store's clock; ages on pages and days of the ledger are off by as much.",
        "",
        "Set both machines to the same time source.",
    )


def clock_step(facts: Facts) -> Iterator[Condition]:
    """It was set while everything ran: dates from around then are not what they seem."""
    step_s, age_s = facts.supervisor.clock_step_s, facts.supervisor.clock_step_age_s
    if step_s is None or age_s is None or not 0 <= age_s < CLOCK_STEP_SHOWN_S:
        return
    yield Condition(
        "clock",
        "set",
        WARN,
        f"This machine's clock was set {'back' if step_s < 0 else 'forward'} by "
        f"{seconds(abs(step_s))}, {seconds(age_s)} ago. Limits follow the store's clock; what was "
        "dated in the future does not wait.",
        f"told for {seconds(CLOCK_STEP_SHOWN_S)}",
        "Let a time service keep the clock.",
    )


def engines(facts: Facts) -> Iterator[Condition]:
    """Replicas started here that have died; the worker replaces them within seconds."""
    dead = [engine.name for engine in facts.engines if engine.is_alive is False]
    if dead:
        named = ", ".join(dead[:3]) + (f" and {len(dead) - 3} more" if len(dead) > 3 else "")
        yield Condition(
            "engines",
            "dead",
            WARN,
            f"{len(dead)} of {len(facts.engines)} engines here are dead: {named}. Gateways send "
            "requests to the others.",
            "the worker starts them again within 30 s",
            "If they stay dead: is the worker running? See the fleet page.",
        )


RULES: tuple[Rule, ...] = (disk, clock, clock_step, engines)
