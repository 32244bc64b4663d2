"""Publish a policy, roll it back, and bring the compiled snapshot to the gateways."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import msgspec
from django.db import connection, transaction
from django.db.models import F, Max
from django.utils import timezone
from redis.exceptions import RedisError

from capacity.fleet.selectors import capacity_limits, models_for_snapshot, pools_for_snapshot
from console.audit.rules import SYSTEM, Actor
from console.audit.services import record
from console.errors import Conflict, InvalidInput, NotFound
from console.jobs.services import enqueue
from routing.contracts.snapshot import SnapshotError, decode_snapshot, encode_snapshot
from routing.models import Policy, PolicyPlan, PolicyVersion, SnapshotRow
from routing.policies.rules.compile import (
    ModelFacts,
    Sources,
    compile_snapshot,
    content_digest,
)
from routing.policies.rules.document import Document, digest_of, from_plain, to_plain
from routing.policies.rules.schema import Finding
from routing.policies.rules.validate import Checked, Surroundings, check
from routing.policies.rules.words import Sentence
from routing.policies.selectors import PolicyVersionView, store, version_view
from routing.policies.text import Comparison, compare
from routing.store import keys
from routing.store.state import read_gateway_statuses, write_snapshot
from tenants.directory.selectors import tenants_for_snapshot
from tenants.keys.selectors import keys_for_snapshot
from tenants.ledger.services import seed_windows
from tenants.prices.selectors import prices_for_snapshot, resource_prices_for_snapshot

BODIES_KEPT = 20  # enough to look back at the last hours; rows themselves stay
PLAN_KEPT = timedelta(hours=1)
MAX_PLANS = 200  # of the whole installation; the oldest go first
OFFERS = 3  # rounds in which two pushers agree on the newest; one is the rule


class PolicyRefused(InvalidInput):
    """The document has findings that refuse it; all of them are in `findings`."""

    code = "policy_refused"

    def __init__(self, findings: Sequence[Finding]) -> None:
        first = findings[0]
        super().__init__(
            f"{first.path}: {first.reason} {first.fix}", field=first.path, hint=first.fix
        )
        self.findings = tuple(findings)


class StaleBase(Conflict):
    """Another version became live meanwhile; `changes` says in sentences what it did.

    `live` is None while none is live, or when the base that was named never was.
    """

    code = "stale_base"

    def __init__(self, policy: str, base: int | None, live: PolicyVersionView | None) -> None:
        super().__init__(
            f"The live version is {live.number if live else 'none'}, not {base or 'none'}.",
            field="base",
            hint="Look at what changed, then publish on top of the live version.",
        )
        self.live = live
        self.changes: tuple[Sentence, ...] = ()
        if live is not None and base is not None:
            stood_on = PolicyVersion.objects.filter(policy__name=policy, number=base).first()
            if stood_on is not None:
                self.changes = compare(stood_on.document, live.document).words


def check_document(document: object) -> Checked:
    """Every finding about a document, against what exists now. Changes nothing."""
    now_ms = int(timezone.now().timestamp() * 1000)
    prices = prices_for_snapshot(timezone.now())
    pools = pools_for_snapshot()
    return check(
        document,
        Surroundings(
            models=frozenset(_model_facts()),
            pools={name: pool.served_model for name, pool in pools.items()},
            limited=frozenset(name for name, pool in pools.items() if pool.limits),
            priced=frozenset(
                model for model, rows in prices.items() if rows[0].valid_from_ms <= now_ms
            ),
        ),
    )


@transaction.atomic
def publish(
    *, policy: str, document: dict[str, object], base: int | None, note: str, actor: Actor
) -> PolicyVersionView:
    """Make a document the policy's next live version.

    `base` is the live version that the author started from (`None`: there was none). The same
    content again changes nothing. Raises `PolicyRefused`, or `Conflict`: `stale_base`, or
    `one_policy` when gateways run another policy already.
    """
    row = _on_base(policy, base)
    accepted = _accepted(policy, document)
    return _publish(row, accepted, note, actor, "policy.publish")


@transaction.atomic
def roll_back(
    *, policy: str, number: int, base: int | None, note: str, actor: Actor
) -> PolicyVersionView:
    """Publish an earlier version's document again, as a new version.

    Raises `NotFound`, `PolicyRefused` (the fleet or prices it needs are gone) or `Conflict`.
    """
    row = _on_base(policy, base)
    earlier = row.versions.filter(number=number).first()
    if earlier is None:
        raise NotFound("No such version.")
    accepted = _accepted(policy, earlier.document)
    return _publish(row, accepted, note or f"Rollback to {number}", actor, "policy.rollback")


@dataclass(frozen=True, slots=True)
class Plan:
    """What applying would do: on which live version, to what effect. `changed` false: to none."""

    id: UUID
    policy: str
    base: int | None
    digest: str
    changed: bool
    comparison: Comparison
    findings: tuple[Finding, ...]


@transaction.atomic
def plan(*, policy: str, document: dict[str, object], actor: Actor) -> Plan:
    """Check a document against what is live now and keep it for `PLAN_KEPT`; publishes nothing.

    Raises `PolicyRefused`, or `InvalidInput` when the document names another policy.
    """
    checked = check_document(document)
    accepted = _accepted_of(policy, checked)
    live = PolicyVersion.objects.filter(policy__name=policy, policy__live_id=F("pk")).first()
    plain, digest = to_plain(accepted), digest_of(accepted)
    PolicyPlan.objects.filter(created_at__lt=timezone.now() - PLAN_KEPT).delete()
    newest = PolicyPlan.objects.order_by("-created_at").values_list("pk", flat=True)
    PolicyPlan.objects.exclude(pk__in=list(newest[: MAX_PLANS - 1])).delete()
    row = PolicyPlan.objects.create(
        policy=policy,
        base=live.number if live else None,
        document=plain,
        digest=digest,
        author_id=actor.user_id,
    )
    return Plan(
        id=row.pk,
        policy=policy,
        base=row.base,
        digest=digest,
        changed=live is None or live.digest != digest,
        comparison=compare(live.document if live else None, plain),
        findings=checked.findings,
    )


@transaction.atomic
def apply_plan(
    *, policy: str, plan_id: UUID, note: str, actor: Actor
) -> tuple[PolicyVersionView, bool]:
    """Publish a kept plan; the live version, and whether this act made it.

    What it was planned on must still be live, unless its effect is live already: applying twice
    makes one version.

    Raises `NotFound` (never made, or older than an hour), `StaleBase` or `PolicyRefused`: the
    fleet and the prices are looked at anew.
    """
    kept = PolicyPlan.objects.filter(
        pk=plan_id, policy=policy, created_at__gte=timezone.now() - PLAN_KEPT
    ).first()
    if kept is None:
        raise NotFound("No such plan: plans are kept for an hour.", field="plan", hint="Plan anew.")
    row = _locked_policy(policy)
    if row.live is not None and row.live.digest == kept.digest:
        return version_view(row.live), False
    _require_base(row, kept.base)
    accepted = _accepted(policy, kept.document)
    return _publish(row, accepted, note, actor, "policy.publish"), True


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


def _publish(
    row: Policy, document: Document, note: str, actor: Actor, act: str
) -> PolicyVersionView:
    digest = digest_of(document)
    if row.live and row.live.digest == digest:
        return version_view(row.live)
    last = row.versions.order_by("-number").values_list("number", flat=True).first()
    version = PolicyVersion.objects.create(
        policy=row,
        number=(last or 0) + 1,
        document=to_plain(document),
        digest=digest,
        note=note[:400],
        author_id=actor.user_id,
    )
    before = {"version": row.live.number, "digest": row.live.digest} if row.live else None
    row.live = version
    row.save(update_fields=["live"])
    record(
        actor=actor,
        act=act,
        object_type="policy",
        object_id=row.name,
        reason=note,
        before=before,
        after={"version": version.number, "digest": digest},
    )
    enqueue("push_snapshot", dedupe_key="push_snapshot")
    return version_view(version)


def _on_base(policy: str, base: int | None) -> Policy:
    """The locked policy; raises `StaleBase` unless `base` is its live version."""
    row = _locked_policy(policy)
    _require_base(row, base)
    return row


def _require_base(row: Policy, base: int | None) -> None:
    if (row.live.number if row.live else None) != base:
        raise StaleBase(row.name, base, version_view(row.live) if row.live else None)


def _locked_policy(name: str) -> Policy:
    with connection.cursor() as cursor:
        # Publishes run one after the other: rows alone would let two first ones pass unseen.
        cursor.execute("LOCK TABLE routing_policy IN SHARE ROW EXCLUSIVE MODE")
    Policy.objects.bulk_create([Policy(name=name)], ignore_conflicts=True)
    rows = list(Policy.objects.select_related("live").order_by("pk"))
    for row in rows:
        if row.name != name and row.live_id is not None:
            raise Conflict(
                f"Gateways run the policy {row.name!r}.",
                code="one_policy",
                field="policy",
                hint=f"Publish as a version of {row.name!r}.",
            )
    return next(row for row in rows if row.name == name)


def _accepted(policy: str, plain: object) -> Document:
    return _accepted_of(policy, check_document(plain))


def _accepted_of(policy: str, checked: Checked) -> Document:
    if checked.document is None or checked.is_refused:
        raise PolicyRefused([f for f in checked.findings if f.level == "refuse"])
    if checked.document.name != policy:
        raise InvalidInput(
            f"The document is named {checked.document.name!r}.",
            field="name",
            hint=f"Name it {policy!r}.",
        )
    return checked.document


def _model_facts() -> dict[str, ModelFacts]:
    return {
        name: ModelFacts(
            context_tokens=model.context_tokens,
            output_cap_tokens=model.output_cap_tokens,
            bytes_per_token=model.bytes_per_token,
        )
        for name, model in models_for_snapshot().items()
    }


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
            models=_model_facts(),
            pools=pools_for_snapshot(),
            prices=prices_for_snapshot(now),
            fleet_limits=capacity_limits(None),
            resources=resource_prices_for_snapshot(now),
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
