"""Do the live counters say what the ledger says? For tests, at quiet."""

from dataclasses import dataclass, replace
from datetime import timedelta

from django.db.models import Q
from django.utils import timezone

from routing.contracts.snapshot import bucket_of
from routing.store import keys
from routing.store.counters import StoreSession, session_of
from routing.store.packed import read_counter
from tenants.models import CounterDelta, LedgerBucket, WindowUsage

LOOKS = 5  # a bucket that moves in each of them is busy, not quiet
SCAN_COUNT = 1_000  # keys looked at in one step: about 1 ms of the server
# Counters go 26 h after their window's end; in the last hour one side may be gone before the other.
COMPARED = timedelta(hours=25)

_COLUMNS = {
    "req": "requests",
    "in": "input_tokens",
    "out": "output_tokens",
    "usd": "spend_nanousd",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """A counter that says something else than the ledger's sum of its window."""

    suffix: str
    dimension: str
    counter: int
    ledger: int


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """A tenant's counters against the ledger, and what is held in its bucket.

    `unread` entries and `pending` corrections are differences on their way. `held` are the
    tenant's held amounts that are not zero, as (suffix, dimension, amount).
    """

    bucket: int
    is_ready: bool
    is_steady: bool
    unread: int
    pending: int
    differences: tuple[Difference, ...]
    held: tuple[tuple[str, str, int], ...]
    holds_without_lease: tuple[str, ...]
    leases_without_hold: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Nothing on its way, nothing held, nothing different."""
        return (self.is_ready and self.is_steady) and not (
            self.unread
            or self.pending
            or self.differences
            or self.held
            or self.holds_without_lease
            or self.leases_without_hold
        )


def reconcile(*, tenant_id: int, store_url: str) -> Reconciliation:
    """Compare one tenant's counters with the ledger.

    It scans the store's key names, so it is a tool, not a page. Raises `StoreLost`. The two sides
    cannot be read in one moment: when either moved meanwhile it reads again, at most `LOOKS` times;
    under steady traffic `is_steady` stays false and the differences mean nothing.
    """
    bucket = bucket_of(str(tenant_id))
    session = session_of(store_url, bucket)
    try:
        for _ in range(LOOKS):
            before = _mark(session, bucket)
            found = _look(session, tenant_id, bucket)
            if _mark(session, bucket) == before:
                return replace(found, is_steady=True)
        return found
    finally:
        session.close()


def _mark(session: StoreSession, bucket: int) -> tuple[object, ...]:
    """Equal twice: no entry came, none was booked, no correction applied."""
    last = session.call("XREVRANGE", keys.bucket_usage(bucket), "+", "-", "COUNT", 1)
    row = LedgerBucket.objects.filter(pk=bucket).values_list("epoch", "state", "pos", "seq")
    return session.metas([bucket])[bucket], str(last), row.first()


def _look(session: StoreSession, tenant_id: int, bucket: int) -> Reconciliation:
    tag = keys.bucket_tag(bucket)
    meta = session.metas([bucket])[bucket]
    row = LedgerBucket.objects.filter(pk=bucket).first()
    epoch = meta.epoch if meta else 0
    counters = _counters(session, f"{tag}:{epoch}:w:{tenant_id}:*", f"{tag}:{epoch}:")
    gauges = _counters(session, f"{tag}:{epoch}:g:{tenant_id}:*", f"{tag}:{epoch}:")
    holds = {name.rpartition(":h:")[2] for name in _scan(session, f"{tag}:h:*")}
    leases = _members(session, keys.bucket_leases(bucket))
    unread = session.range(keys.bucket_usage(bucket), row.pos if row else "0-0", SCAN_COUNT)
    return Reconciliation(
        bucket=bucket,
        is_ready=meta is not None and meta.state == "ready" and meta.run_id == session.run_id,
        is_steady=False,
        unread=len(unread),
        pending=CounterDelta.objects.filter(bucket=bucket).count(),
        differences=_differences(bucket, tenant_id, counters),
        held=tuple(
            (suffix, name.removesuffix("_h"), amount)
            for suffix, amounts in sorted({**counters, **gauges}.items())
            for name, amount in sorted(amounts.items())
            if name.endswith("_h") and amount
        ),
        holds_without_lease=tuple(sorted(holds - leases)),
        leases_without_hold=tuple(sorted(leases - holds)),
    )


def _differences(
    bucket: int, tenant_id: int, counters: dict[str, dict[str, int]]
) -> tuple[Difference, ...]:
    rows = WindowUsage.objects.filter(
        Q(window_end_at__gt=timezone.now() - COMPARED) | Q(suffix__in=list(counters)),
        bucket=bucket,
        suffix__startswith=f"w:{tenant_id}:",
    )
    ledger = {
        row.suffix: {name: int(getattr(row, column)) for name, column in _COLUMNS.items()}
        for row in rows
    }
    found = []
    for suffix in sorted(counters.keys() | ledger.keys()):
        for name in _COLUMNS:
            counter = counters.get(suffix, {}).get(name, 0)
            booked = ledger.get(suffix, {}).get(name, 0)
            if counter != booked:
                found.append(Difference(suffix, name, counter, booked))
    return tuple(found)


def _counters(session: StoreSession, pattern: str, prefix: str) -> dict[str, dict[str, int]]:
    names = _scan(session, pattern)
    answers = session.batch([("GET", name) for name in names])
    return {
        name.removeprefix(prefix): read_counter(raw if isinstance(raw, bytes) else None)
        for name, raw in zip(names, answers, strict=True)
    }


def _members(session: StoreSession, name: str) -> set[str]:
    answer = session.call("ZRANGE", name, 0, -1)
    return {member.decode() for member in answer} if isinstance(answer, list) else set()


def _scan(session: StoreSession, pattern: str) -> list[str]:
    names: set[str] = set()
    cursor = b"0"
    while True:
        answer = session.call("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        if not isinstance(answer, list):
            return sorted(names)
        cursor = answer[0]
        names |= {name.decode() for name in answer[1]}
        if cursor == b"0":
            return sorted(names)
