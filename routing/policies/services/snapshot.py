"""Compile the rows of this moment and bring the result to the gateways."""

from dataclasses import dataclass

import msgspec
from django.db import connection, transaction
from django.db.models import F, Max
from django.utils import timezone
from redis.exceptions import RedisError

from capacity.fleet.selectors import capacity_limits, pools_for_snapshot
from console.audit.rules import SYSTEM
from console.audit.services import record
from routing.contracts.snapshot import SnapshotError, decode_snapshot, encode_snapshot
from routing.evaluations.selectors import standing
from routing.hooks.selectors import hooks_for_snapshot
from routing.models import Policy, PolicyVersion, SnapshotRow
from routing.policies.rules.compile import (
    Sources,
    compile_snapshot,
    content_digest,
)
from routing.policies.rules.document import from_plain
from routing.policies.selectors import store
from routing.policies.services.checks import model_facts
from routing.store import keys
from routing.store.state import read_gateway_statuses, write_snapshot
from tenants.directory.selectors import tenants_for_snapshot
from tenants.keys.selectors import keys_for_snapshot
from tenants.ledger.services import seed_windows
from tenants.prices.selectors import prices_for_snapshot, resource_prices_for_snapshot

BODIES_KEPT = 20  # enough to look back at the last hours; rows themselves stay
OFFERS = 3  # rounds in which two pushers agree on the newest; one is the rule


def push_snapshot() -> int:
    """Compile the current rows and offer the result to the gateways; returns its number.

    A new snapshot is stored only when its content differs from the newest. Two at once are safe:
    the second waits and then sees what the first stored. Returns 0 while no policy is live. Raises
    `redis.RedisError` when the store is away; the row is kept and offered by the next call.
    """
    number = _store_if_news(_newest_seen())
    if number:
        _offer_newest()
    return number


@dataclass(frozen=True, slots=True)
class _Seen:
    """What gateways were offered last: the snapshot's number and its policy's version."""

    number: int = 0
    policy: str = ""
    version: int = 0


def _newest_seen() -> _Seen:
    """The offer in the store, or what a gateway runs if that is newer; nothing if it is away."""
    try:
        number = _number_in_store() or 0
        raw = store().get(keys.SNAPSHOT) if number else None
        now_ms = int(timezone.now().timestamp() * 1000)
        run = max(
            (one.snapshot_number for one in read_gateway_statuses(store(), now_ms)), default=0
        )
        policy = decode_snapshot(raw).policy if isinstance(raw, bytes) else None
    except (RedisError, SnapshotError):
        return _Seen()
    number = max(number, run)
    return _Seen(number, policy.name, policy.version) if policy else _Seen(number)


def _catch_up(live: PolicyVersion, seen: _Seen) -> PolicyVersion:
    """The database went back to a backup, gateways did not: numbers jump ahead of all in use.

    What the database holds is the truth, but a number that usage rows or gateways know must not get
    a second meaning. A lost policy version is replaced by the live document under a later number.
    """
    last = live.policy.versions.aggregate(last=Max("number"))["last"]
    if seen.policy == live.policy.name and seen.version > last:
        live = PolicyVersion.objects.create(
            policy=live.policy,
            number=seen.version + 1,
            document=live.document,
            digest=live.digest,
            note=f"Version {live.number} again: the database went back to a backup, "
            f"{last + 1} to {seen.version} are lost",
        )
        Policy.objects.filter(pk=live.policy_id).update(live=live)
    record(
        actor=SYSTEM,
        act="policy.database_went_back",
        object_type="policy",
        object_id=live.policy.name,
        reason="Gateways ran a snapshot that the database does not know.",
        before={"snapshot": seen.number, "version": seen.version},
        after={"snapshot": seen.number + 1, "version": live.number},
    )
    return live


@transaction.atomic(durable=True)
def _store_if_news(seen: _Seen) -> int:
    with connection.cursor() as cursor:
        # One reading moment for all tables. The lock comes before the first read: the moment then
        # lies after the commit of whoever held it, and a later number never has older content.
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("LOCK TABLE routing_snapshotrow IN SHARE ROW EXCLUSIVE MODE")
    live = PolicyVersion.objects.filter(policy__live_id=F("pk")).select_related("policy").first()
    if live is None:
        return 0
    newest = SnapshotRow.objects.defer("body").order_by("-number").first()
    went_back = seen.number > (newest.number if newest else 0)
    if went_back:
        live = _catch_up(live, seen)
    now = timezone.now()
    snapshot = compile_snapshot(
        from_plain(live.document),
        version=live.number,
        digest=live.digest,
        sources=Sources(
            tenants=tenants_for_snapshot(),
            keys=keys_for_snapshot(now),
            models=model_facts(),
            pools=pools_for_snapshot(),
            prices=prices_for_snapshot(now),
            fleet_limits=capacity_limits(None),
            resources=resource_prices_for_snapshot(now),
            hooks=hooks_for_snapshot(),
            evaluations=standing(),
        ),
    )
    digest = content_digest(snapshot)
    if newest is not None and newest.content_digest == digest and not went_back:
        return newest.number
    jump = {"number": seen.number + 1} if went_back else {}
    row = SnapshotRow.objects.create(version=live, content_digest=digest, **jump)
    if went_back:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT setval(pg_get_serial_sequence('routing_snapshotrow', 'number'), %s)",
                [row.number],
            )
    numbered = msgspec.structs.replace(
        snapshot, number=row.number, created_at_ms=int(now.timestamp() * 1000)
    )
    row.body = encode_snapshot(numbered)
    row.save(update_fields=["body"])
    SnapshotRow.objects.filter(number__lte=row.number - BODIES_KEPT, body__isnull=False).update(
        body=None
    )
    return row.number


def _offer_newest() -> None:
    """Put the newest row into the store, unless it is there already.

    Of two pushers the slower may write the older row last; each therefore looks again after its
    write, so whoever writes last has seen the newest.
    """
    offered = _number_in_store()
    for _ in range(OFFERS):
        row = SnapshotRow.objects.order_by("-number").first()
        if row is None or row.body is None or row.number == offered:
            return
        _seed_new_limits(bytes(row.body))
        write_snapshot(store(), bytes(row.body), row.number)
        offered = row.number


def _seed_new_limits(body: bytes) -> None:
    """Let limits that gateways do not know yet start with what was used before them.

    Compared with the snapshot on offer; without one there is nothing to compare, and the ledger
    writer fills the counters.
    """
    offered = store().get(keys.SNAPSHOT)
    if not isinstance(offered, bytes):
        return
    try:
        before = decode_snapshot(offered).tenants
    except SnapshotError:
        return
    now_ms = int(timezone.now().timestamp() * 1000)
    for tenant_id, tenant in decode_snapshot(body).tenants.items():
        if tenant_id in before and tenant.limits != before[tenant_id].limits:
            seed_windows(tenant=tenant, now_ms=now_ms)


def _number_in_store() -> int | None:
    raw = store().get(keys.SNAPSHOT_NUMBER)
    if not isinstance(raw, bytes) or not store().exists(keys.SNAPSHOT):
        return None
    return int(raw)
