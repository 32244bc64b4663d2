"""Make a document the live version: publish, plan and apply, roll back."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from console.audit.rules import Actor
from console.audit.services import record
from console.errors import Conflict, NotFound
from console.jobs.services import enqueue
from routing.models import Policy, PolicyPlan, PolicyVersion
from routing.policies.rules.document import Document, digest_of, to_plain
from routing.policies.rules.findings import Finding
from routing.policies.selectors import PolicyVersionView, version_view
from routing.policies.services.checks import StaleBase, accepted, accepted_of, check_document
from routing.policies.text import Comparison, compare

PLAN_KEPT = timedelta(hours=1)
MAX_PLANS = 200  # of the whole installation; the oldest go first


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
    return _publish(row, accepted(policy, document), note, actor, "policy.publish")


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
    return _publish(
        row,
        accepted(policy, earlier.document),
        note or f"Rollback to {number}",
        actor,
        "policy.rollback",
    )


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
    accepted = accepted_of(policy, checked)
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
    *, policy: str, plan_id: UUID, base: int | None, note: str, actor: Actor
) -> tuple[PolicyVersionView, bool]:
    """Publish a kept plan; the live version, and whether this act made it.

    What it was planned on, and the `base` that the caller names, must be live, unless its effect is
    live already: applying twice makes one version.

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
    _require_base(row, base)
    _require_base(row, kept.base)
    return _publish(row, accepted(policy, kept.document), note, actor, "policy.publish"), True


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
