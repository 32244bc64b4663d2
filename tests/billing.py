"""Does the ledger add up to the bill? What upstreams stated to callers against what was charged.

Callers get the upstream's bytes untouched, so the usage in a whole answer is the upstream's own
word. `check_bill` reads raw rows and prices, computes each charge again, and ends with the
product's own `reconcile`, which must find nothing.
"""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.conftest import Stack
from tests.soaking import OK, Traffic

UNIT = 1_000_000  # prices are nano-dollars per million tokens
_ROWS = (
    "SELECT u.request_id::text, u.usage_source, u.model, u.price_version, u.kind,"
    " u.input_tokens, u.cached_tokens, u.output_tokens, u.spend_nanousd, u.held_nanousd,"
    " coalesce(sum(a.input_tokens), 0)::bigint, coalesce(sum(a.cached_tokens), 0)::bigint,"
    " coalesce(sum(a.output_tokens), 0)::bigint, coalesce(sum(a.spend_nanousd), 0)::bigint,"
    " count(a.id)"
    " FROM tenants_usage u JOIN tenants_tenant t ON t.id = u.tenant_id"
    " LEFT JOIN tenants_usageadjustment a ON a.request_id = u.request_id"
    " WHERE t.slug = ANY(%s) GROUP BY u.day, u.request_id, u.usage_source, u.model,"
    " u.price_version, u.kind, u.input_tokens, u.cached_tokens, u.output_tokens, u.spend_nanousd,"
    " u.held_nanousd"
)
_PRICES = (
    "SELECT m.name, p.version, p.input_nanousd, p.cached_nanousd, p.output_nanousd"
    " FROM tenants_pricerow p JOIN capacity_model m ON m.id = p.model_id"
)


@dataclass(frozen=True, slots=True)
class Bill:
    """What was compared; money in nano-dollars."""

    compared: int
    compared_nanousd: int
    sources: Counter[str]
    unreported_nanousd: int
    unreported_held_nanousd: int
    reconciled: dict[str, int]

    @property
    def unreported_ratio(self) -> float:
        """Share of charged rows that no upstream stated the usage of."""
        rows = sum(self.sources.values())
        return 1 - self.sources["reported"] / rows if rows else 0.0

    def __str__(self) -> str:
        return (
            f"Bill: {self.compared} answers charged as their upstream stated,"
            f" {self.compared_nanousd / 1e9:.9f} USD, difference 0; rows"
            f" {dict(sorted(self.sources.items()))}, {self.unreported_ratio:.1%} not reported:"
            f" {self.unreported_nanousd / 1e9:.9f} USD, within their holds of"
            f" {self.unreported_held_nanousd / 1e9:.9f} USD; reconcile {self.reconciled}"
        )


def check_bill(stack: Stack, traffic: Traffic, parked_before: int) -> Bill:
    """After the books are closed. Raises AssertionError with the first differences."""
    with psycopg.connect(stack.settings["DATABASE_URL"]) as db:
        slugs = sorted({caller.tenant for caller in traffic.callers})
        rows = {row[0]: row[1:] for row in db.execute(_ROWS, [slugs]).fetchall()}
        prices = {(row[0], row[1]): row[2:] for row in db.execute(_PRICES).fetchall()}
    stated = {one.request_id: one.usage for one in traffic.seen if one.kind == OK and one.usage}
    assert stated, "no answer stated its usage"
    wrong, compared, charged = [], 0, 0
    sources: Counter[str] = Counter()
    unreported = held_for = 0
    for request_id, row in rows.items():
        source, model, version, kind, *numbers = row
        tokens = tuple(numbers[i] + numbers[i + 5] for i in range(3))
        spend, held, was_corrected = numbers[3] + numbers[8], numbers[4], numbers[9]
        if kind == "v":
            continue
        sources[source] += 1
        usage = stated.get(request_id)
        if usage is not None and (source == "reported" or was_corrected):
            due = charge(usage, prices[model, version])
            compared, charged = compared + 1, charged + spend
            if (tokens, spend) != (usage, due):
                wrong.append(f"{request_id}: {tokens} {spend}, its upstream said {usage}: {due}")
        elif source not in ("counted", "estimated"):
            if source != "reported":
                wrong.append(f"{request_id} is marked {source!r}")
        else:
            unreported, held_for = unreported + spend, held_for + held
            if not 0 <= spend <= held:
                wrong.append(f"{request_id}: {source} {spend}, its hold was {held}")
    assert not wrong, f"{len(wrong)} rows are not the bill: {wrong[:5]}"
    return Bill(compared, charged, sources, unreported, held_for, reconciled(stack, parked_before))


def charge(usage: tuple[int, int, int], price: tuple[Any, ...]) -> int:
    """Nano-dollars of (input, cached of it, output), rounded up once."""
    prompt, cached, output = usage
    of_input, of_cached, of_output = price
    scaled = (prompt - cached) * of_input + cached * of_cached + output * of_output
    return -(-scaled // UNIT)


PARKED = "parked damaged entries"


def differences_by_check(stack: Stack) -> dict[str, int]:
    """Every line of `manage.py reconcile`."""
    done = stack.manage("reconcile", "--json")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["trouble"] == "", found
    lines = {line["check"]: line["count"] for line in found["lines"]}
    assert PARKED in lines
    return lines


def reconciled(stack: Stack, parked_before: int) -> dict[str, int]:
    """Every line must be 0, but for entries that were parked before: a gap stays one for ever."""
    lines = differences_by_check(stack)
    lines[PARKED] -= parked_before
    assert not any(lines.values()), lines
    return lines
