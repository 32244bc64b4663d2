"""Tenants, projects and members for lists; tenants and their limits for the snapshot."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import models

from console.accounts.selectors import Caller, may_reach_everybody
from console.errors import InvalidInput, NoSuchTenant, NotFound
from routing.contracts.enums import Dimension, LimitScope, WindowKind, WorkClass
from routing.contracts.snapshot import ALL_MODELS, TenantEntry, bucket_of
from routing.contracts.snapshot import Limit as LimitEntry
from tenants.models import Limit, Membership, Project, Tenant, TenantState

NAMED_MODELS = 10  # models that a refusal names
MAX_PAGE = 201  # the largest page, and one more row to know that another follows
MAX_PROJECTS = 500
MAX_MEMBERS = 500


@dataclass(frozen=True, slots=True)
class TenantView:
    """A tenant without its salt."""

    id: int
    slug: str
    name: str
    state: str
    timezone: str
    default_class: str
    allowed_models: tuple[str, ...]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class ProjectView:
    """Where usage is booked."""

    id: int
    slug: str
    name: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class MemberView:
    """A person's role in a tenant; `email` is empty for those who may not read it."""

    user_id: int
    username: str
    email: str
    role: str
    role_label: str
    is_active: bool
    since: datetime


def tenants(
    tenant_ids: frozenset[int] | None, *, after_slug: str = "", limit: int = 50
) -> list[TenantView]:
    """Tenants in order of slug, those in `tenant_ids` (`None`: all), at most `MAX_PAGE`."""
    rows = Tenant.objects.filter(slug__gt=after_slug).order_by("slug")
    if tenant_ids is not None:
        rows = rows.filter(pk__in=tenant_ids)
    return [_view(row) for row in rows[: min(limit, MAX_PAGE)]]


def tenant(tenant_id: int) -> TenantView:
    """One tenant. Raises `NotFound`."""
    return _one(Tenant.objects.filter(pk=tenant_id).first())


def tenant_by_slug(slug: str) -> TenantView:
    """One tenant. Raises `NotFound`. The caller checks that it may be seen."""
    return _one(Tenant.objects.filter(slug=slug).first())


def tenants_beginning(
    tenant_ids: frozenset[int] | None, text: str, *, limit: int
) -> list[TenantView]:
    """Tenants whose slug begins with the text, in order of slug, those in `tenant_ids`."""
    rows = Tenant.objects.filter(slug__startswith=text.lower()).order_by("slug")
    if tenant_ids is not None:
        rows = rows.filter(pk__in=tenant_ids)
    return [_view(row) for row in rows[: min(limit, MAX_PAGE)]]


def slugs_of(tenant_ids: Iterable[int]) -> dict[int, str]:
    """Slug of each tenant id that exists."""
    return dict(Tenant.objects.filter(pk__in=set(tenant_ids)).values_list("pk", "slug"))


def projects(tenant_id: int) -> list[ProjectView]:
    """A tenant's projects in order of slug, at most `MAX_PROJECTS`."""
    rows = Project.objects.filter(tenant_id=tenant_id).order_by("slug")[:MAX_PROJECTS]
    return [_project(row) for row in rows]


def project(tenant_id: int, project_id: int) -> ProjectView:
    """One project of a tenant. Raises `NotFound`."""
    row = Project.objects.filter(tenant_id=tenant_id, pk=project_id).first()
    if row is None:
        raise NotFound("No such project.")
    return _project(row)


def members(
    tenant_id: int, *, viewer: Caller, after_username: str = "", limit: int = MAX_MEMBERS
) -> list[MemberView]:
    """A tenant's members in order of user name, at most `MAX_MEMBERS`.

    Operators and admins read every e-mail address, others only their own.
    """
    rows = Membership.objects.select_related("user").filter(
        tenant_id=tenant_id, user__username__gt=after_username
    )
    rows = rows.order_by("user__username")[: min(limit, MAX_MEMBERS)]
    shows_all = may_reach_everybody(viewer)
    own = viewer.pk if viewer is not None else None
    return [_member(row, shows_email=shows_all or row.user_id == own) for row in rows]


def member(tenant_id: int, user_id: int) -> MemberView:
    """One member of a tenant, without the e-mail address. Raises `NotFound`."""
    rows = Membership.objects.select_related("user").filter(tenant_id=tenant_id)
    row = rows.filter(user_id=user_id).first()
    if row is None:
        raise NotFound("No such member.")
    return _member(row, shows_email=False)


def _catalogue() -> "models.Manager[models.Model]":
    """Models, asked through our own foreign key: they belong to a slice above this one."""
    catalogue: type[models.Model] = Limit.model.field.related_model
    return catalogue._default_manager


def unknown_models(names: Sequence[str]) -> list[str]:
    """Those that the catalogue does not have, in their order; `*` is none of them."""
    listed = [name for name in names if name != ALL_MODELS]
    known = set(_catalogue().filter(name__in=listed).values_list("name", flat=True))
    return [name for name in listed if name not in known]


def no_such_model(name: str, field: str) -> InvalidInput:
    """The refusal of a model that the catalogue does not have; it names some that it has."""
    names = list(_catalogue().order_by("name").values_list("name", flat=True)[: NAMED_MODELS + 1])
    more = " and others" if len(names) > NAMED_MODELS else ""
    known = f"Known: {', '.join(names[:NAMED_MODELS])}{more}. " if names else ""
    return InvalidInput(
        f"No such model: {name!r}.",
        field=field,
        hint=f"{known}Name models of the catalogue, not their aliases; add a new one there first.",
    )


def model_id_of(name: str) -> int:
    """Id of a model in the catalogue. Raises `InvalidInput`."""
    found = _catalogue().filter(name=name).values_list("pk", flat=True).first()
    if found is None:
        raise no_such_model(name, "model")
    return int(found)


def tenants_for_snapshot() -> list[TenantEntry]:
    """Every tenant with its limits, as gateways see them: two queries, in order of id."""
    limits: dict[int, list[LimitEntry]] = defaultdict(list)
    rows = Limit.objects.order_by("tenant_id", "scope", "pk").values_list(
        "tenant_id",
        "scope",
        "dimension",
        "window",
        "anchor_min",
        "amount",
        "key_id",
        "model__name",
        "work_class",
        "resource",
    )
    for row in rows.iterator():
        tenant_id, scope, dimension, window, anchor, amount, key_id, model, cls, resource = row
        limits[tenant_id].append(
            LimitEntry(
                scope=LimitScope(scope),
                dimension=Dimension(dimension),
                window=WindowKind(window),
                amount=amount,
                subject=subject_of(key_id, model, cls, resource),
                anchor_min=anchor,
            )
        )
    return [
        TenantEntry(
            id=str(row.pk),
            slug=row.slug,
            bucket=bucket_of(str(row.pk)),
            timezone=row.timezone,
            cache_salt=row.cache_salt,
            models=tuple(row.allowed_models),
            limits=tuple(limits.get(row.pk, ())),
            is_active=row.state == TenantState.ACTIVE,
            default_class=WorkClass(row.default_class),
        )
        for row in Tenant.objects.order_by("pk").iterator()
    ]


def subject_of(key_id: int | None, model: str | None, work_class: str, resource: str) -> str:
    """The name of a limit's subject inside counters: key id, model, class, resource, or nothing."""
    if key_id is not None:
        return str(key_id)
    return model or work_class or resource


def _one(row: Tenant | None) -> TenantView:
    if row is None:
        raise NoSuchTenant()
    return _view(row)


def _member(row: Membership, *, shows_email: bool) -> MemberView:
    return MemberView(
        user_id=row.user_id,
        username=row.user.username,
        email=row.user.email if shows_email else "",
        role=row.role,
        role_label=row.get_role_display(),
        is_active=row.user.is_active,
        since=row.created_at,
    )


def _project(row: Project) -> ProjectView:
    return ProjectView(id=row.pk, slug=row.slug, name=row.name, created_at=row.created_at)


def _view(row: Tenant) -> TenantView:
    return TenantView(
        id=row.pk,
        slug=row.slug,
        name=row.name,
        state=row.state,
        timezone=row.timezone,
        default_class=row.default_class,
        allowed_models=tuple(row.allowed_models),
        created_at=row.created_at,
    )
