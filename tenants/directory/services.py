"""Create, change, suspend and restore tenants; their projects and members.

Every change is audited and queued for the gateways in its own transaction.
"""

import secrets
from collections.abc import Sequence

from django.db import transaction

from console.audit.rules import Actor
from console.audit.services import record
from console.errors import Conflict, InvalidInput, NoSuchTenant, NotFound
from console.jobs.services import enqueue
from console.validation import save_valid
from routing.contracts.snapshot import ALL_MODELS
from tenants.directory.rules import MAX_MODELS, bad_model_names, has_doubles, is_timezone
from tenants.directory.selectors import no_such_model, unknown_models
from tenants.models import MemberRole, Membership, Project, Tenant, TenantState

DEFAULT_PROJECT = "default"
_SALT_BYTES = 16
_SLUG_TAKEN = "A tenant with this slug exists."


@transaction.atomic
def create_tenant(
    *,
    slug: str,
    name: str,
    timezone: str = "UTC",
    allowed_models: Sequence[str] = (ALL_MODELS,),
    default_class: str = "standard",
    actor: Actor,
) -> int:
    """Create a tenant with its default project; returns the id.

    Raises `InvalidInput` with the field, or `Conflict` when the slug is taken.
    """
    _check_slug(slug)
    check_models(allowed_models)
    _check_timezone(timezone)
    row = Tenant(
        slug=slug,
        name=name,
        timezone=timezone,
        default_class=default_class,
        allowed_models=list(allowed_models),
        cache_salt=secrets.token_hex(_SALT_BYTES),
    )
    save_valid(row, taken=_SLUG_TAKEN, field="slug")
    Project.objects.create(tenant=row, slug=DEFAULT_PROJECT, name="Default")
    record(
        actor=actor,
        act="tenant.create",
        object_type="tenant",
        object_id=str(row.pk),
        tenant_id=row.pk,
        after={"slug": slug, **_facts(row)},
    )
    push()
    return row.pk


@transaction.atomic
def update_tenant(
    *,
    tenant_id: int,
    name: str | None = None,
    timezone: str | None = None,
    allowed_models: Sequence[str] | None = None,
    default_class: str | None = None,
    actor: Actor,
    reason: str = "",
) -> None:
    """Change what is given and leave the rest.

    A new time zone moves the edges of every window from the next request on. Raises `NotFound` or
    `InvalidInput`.
    """
    row = _locked(tenant_id)
    before = _facts(row)
    if name is not None:
        row.name = name
    if timezone is not None:
        _check_timezone(timezone)
        row.timezone = timezone
    if allowed_models is not None:
        check_models(allowed_models)
        row.allowed_models = list(allowed_models)
    if default_class is not None:
        row.default_class = default_class
    if _facts(row) == before:
        return
    save_valid(row, taken=_SLUG_TAKEN, field="slug")
    record(
        actor=actor,
        act="tenant.update",
        object_type="tenant",
        object_id=str(tenant_id),
        tenant_id=tenant_id,
        reason=reason,
        before=before,
        after=_facts(row),
    )
    push()


@transaction.atomic
def suspend_tenant(*, tenant_id: int, actor: Actor, reason: str) -> None:
    """Refuse a tenant's requests at every gateway; its data stays. Raises `NotFound`."""
    _set_state(tenant_id, TenantState.SUSPENDED, "tenant.suspend", actor, reason)


@transaction.atomic
def restore_tenant(*, tenant_id: int, actor: Actor, reason: str = "") -> None:
    """Serve a suspended tenant again. Raises `NotFound`."""
    _set_state(tenant_id, TenantState.ACTIVE, "tenant.restore", actor, reason)


@transaction.atomic
def create_project(*, tenant_id: int, slug: str, name: str, actor: Actor) -> int:
    """Add a project; returns the id. Raises `NotFound`, `InvalidInput` or `Conflict`."""
    _check_slug(slug)
    _locked(tenant_id)
    row = Project(tenant_id=tenant_id, slug=slug, name=name)
    save_valid(row, taken="The tenant has a project with this slug.", field="slug")
    record(
        actor=actor,
        act="project.create",
        object_type="project",
        object_id=str(row.pk),
        tenant_id=tenant_id,
        after={"slug": slug, "name": name},
    )
    return row.pk


@transaction.atomic
def rename_project(*, tenant_id: int, project_id: int, name: str, actor: Actor) -> None:
    """Give a project another name; its slug stays. Raises `NotFound` or `InvalidInput`."""
    rows = Project.objects.select_for_update().filter(tenant_id=tenant_id, pk=project_id)
    row = rows.first()
    if row is None:
        raise NotFound("No such project.")
    before = row.name
    row.name = name
    save_valid(row, taken="The tenant has a project with this slug.", field="slug")
    record(
        actor=actor,
        act="project.rename",
        object_type="project",
        object_id=str(project_id),
        tenant_id=tenant_id,
        before={"name": before},
        after={"name": name},
    )


@transaction.atomic
def add_member(*, tenant_id: int, user_id: int, role: str, actor: Actor) -> None:
    """Give a person a role in a tenant.

    Raises `NotFound`, `InvalidInput`, or `Conflict` when the person is a member already.
    """
    _locked(tenant_id)
    row = Membership(tenant_id=tenant_id, user_id=user_id, role=role)
    save_valid(row, taken="This person is a member already.", field="user_id")
    record(
        actor=actor,
        act="member.add",
        object_type="member",
        object_id=str(user_id),
        tenant_id=tenant_id,
        after={"role": role},
    )


@transaction.atomic
def change_member_role(*, tenant_id: int, user_id: int, role: str, actor: Actor) -> None:
    """Change a member's role. Raises `NotFound`, `InvalidInput`, or `Conflict` (last admin)."""
    row = _locked_member(tenant_id, user_id)
    if role != MemberRole.ADMIN:
        _refuse_if_last_admin(row)
    before = row.role
    row.role = role
    save_valid(row, taken="This person is a member already.", field="user_id")
    record(
        actor=actor,
        act="member.change_role",
        object_type="member",
        object_id=str(user_id),
        tenant_id=tenant_id,
        before={"role": before},
        after={"role": role},
    )


@transaction.atomic
def remove_member(*, tenant_id: int, user_id: int, actor: Actor, reason: str = "") -> None:
    """Take a person out of a tenant. Raises `NotFound`, or `Conflict` for the last admin."""
    row = _locked_member(tenant_id, user_id)
    _refuse_if_last_admin(row)
    before = row.role
    row.delete()
    record(
        actor=actor,
        act="member.remove",
        object_type="member",
        object_id=str(user_id),
        tenant_id=tenant_id,
        reason=reason,
        before={"role": before},
    )


def push() -> None:
    """Queue the news for the gateways; twins are folded into one job."""
    enqueue("push_snapshot", dedupe_key="push_snapshot")


def check_models(names: Sequence[str]) -> None:
    """Raise `InvalidInput` when a list of allowed models holds anything but models or `*`."""
    if len(names) > MAX_MODELS:
        raise InvalidInput(f"At most {MAX_MODELS} models.", field="allowed_models")
    if bad := bad_model_names(names):
        raise InvalidInput(
            f"Not a model name: {bad[0]!r}.",
            field="allowed_models",
            hint="Name each model, or say '*' alone for all of them.",
        )
    if has_doubles(names):
        raise InvalidInput("A model is named twice.", field="allowed_models")
    if unknown := unknown_models(names):
        raise no_such_model(unknown[0], "allowed_models")


def _check_slug(slug: str) -> None:
    if slug != slug.lower():
        raise InvalidInput(
            "A slug has no capital letters: ACME would be taken for acme.",
            field="slug",
            hint=f"Say {slug.lower()}, unless that is another one.",
        )


def _check_timezone(name: str) -> None:
    if not is_timezone(name):
        raise InvalidInput(
            f"Unknown time zone: {name!r}.", field="timezone", hint="Such as Europe/Berlin or UTC."
        )


def _set_state(tenant_id: int, state: TenantState, act: str, actor: Actor, reason: str) -> None:
    row = _locked(tenant_id)
    if row.state == state:
        return
    before = row.state
    row.state = state
    row.save(update_fields=["state"])
    record(
        actor=actor,
        act=act,
        object_type="tenant",
        object_id=str(tenant_id),
        tenant_id=tenant_id,
        reason=reason,
        before={"state": before},
        after={"state": state.value},
    )
    push()


def _locked(tenant_id: int) -> Tenant:
    row = Tenant.objects.select_for_update().filter(pk=tenant_id).first()
    if row is None:
        raise NoSuchTenant()
    return row


def _locked_member(tenant_id: int, user_id: int) -> Membership:
    _locked(tenant_id)  # first the tenant, then its rows: two removals cannot pass each other
    row = Membership.objects.filter(tenant_id=tenant_id, user_id=user_id).first()
    if row is None:
        raise NotFound("No such member.")
    return row


def _refuse_if_last_admin(row: Membership) -> None:
    if row.role != MemberRole.ADMIN:
        return
    admins = Membership.objects.filter(tenant_id=row.tenant_id, role=MemberRole.ADMIN)
    if not admins.exclude(pk=row.pk).exists():
        raise Conflict(
            "This is the tenant's last admin.",
            code="last_admin",
            hint="Make another member admin first.",
        )


def _facts(row: Tenant) -> dict[str, object]:
    return {
        "name": row.name,
        "timezone": row.timezone,
        "allowed_models": list(row.allowed_models),
        "default_class": row.default_class,
    }
