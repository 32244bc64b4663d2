"""The links that a person may follow, for the frame of every page."""

from collections.abc import Iterable
from dataclasses import dataclass

from django.http import HttpRequest
from django.urls import reverse

from console.accounts.selectors import Permission, can, visible_tenant_ids
from console.models import User
from console.web.theme import theme_of
from tenants.directory.selectors import slugs_of

MAX_OWN_TENANTS = 20  # listed in the side bar; more are found on the start page

# Grouped by job: what is going on, what is served to whom by what, what will be needed, the works.
_EVERYTHING = (
    (
        "Now",
        (
            ("Overview", "overview"),
            ("Live", "live"),
            ("Objectives", "slo"),
            ("Tasks", "tasks"),
        ),
    ),
    (
        "Traffic",
        (
            ("Policies", "policies"),
            ("Hooks", "hooks"),
            ("Evaluations", "evaluations"),
            ("Overrides", "overrides"),
            ("Playbooks", "playbooks"),
            ("Usage", "usage"),
            ("Estimates", "estimates"),
        ),
    ),
    (
        "Tenants",
        (
            ("Tenants", "tenants"),
            ("Quota requests", "quota_requests"),
            ("Spend", "spend"),
            ("Prices", "prices"),
            ("Reconciliation", "reconciliation"),
        ),
    ),
    ("Fleet", (("Fleet", "fleet"), ("Inventory", "inventory"), ("Rollouts", "rollouts"))),
    (
        "Capacity",
        (
            ("Forecast", "forecasts"),
            ("Capacity lab", "lab"),
            ("Profiles", "profiles"),
            ("Reports", "reports"),
            ("Carbon", "carbon"),
        ),
    ),
)
_SYSTEM = (("Audit", "audit"), ("Jobs", "jobs"), ("System", "system"))
_FOR_ADMINS = (("People", "people"),)


@dataclass(frozen=True, slots=True)
class Link:
    """One page."""

    name: str
    url: str
    is_current: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Pages under one heading."""

    label: str
    links: tuple[Link, ...]


def navigation(request: HttpRequest) -> dict[str, object]:
    """Context of the frame: theme, role in words, start page and links by job.

    Profile and API reference are in the menu of the account, which everyone has.

    No query for who sees everything, two for a tenant's member.
    """
    context: dict[str, object] = {"theme": theme_of(request), "home_url": "/"}
    user = getattr(request, "user", None)
    if not isinstance(user, User):
        return context
    groups = groups_of(request, user)
    words = "tenant" if groups else "no role"
    sees_all = can(user, Permission.VIEW_ALL)
    role = user.get_role_display() if sees_all else words
    return {**context, "navigation": groups, "role_label": role}


def groups_of(request: HttpRequest, user: User) -> tuple[Group, ...]:
    """The pages that a person may open, by job."""
    if not can(user, Permission.VIEW_ALL):
        return _own(request, user)
    admin = _FOR_ADMINS if can(user, Permission.MANAGE_ROLES) else ()
    everything = (*_EVERYTHING, ("System", (*_SYSTEM, *admin)))
    return tuple(_group(request, label, pages) for label, pages in everything)


def _group(request: HttpRequest, label: str, pages: Iterable[tuple[str, str]]) -> Group:
    return Group(label, tuple(_link(request, name, reverse(view)) for name, view in pages))


def _own(request: HttpRequest, user: User) -> tuple[Group, ...]:
    slugs = sorted(slugs_of(visible_tenant_ids(user) or ()).values())[:MAX_OWN_TENANTS]
    watch = Group("Now", (_link(request, "Live", reverse("live")),))
    return (watch, *(_tenant(request, slug) for slug in slugs)) if slugs else ()


def _tenant(request: HttpRequest, slug: str) -> Group:
    return Group(
        slug,
        (
            _link(request, "Limits", reverse("own_tenant", kwargs={"slug": slug}), exact=True),
            _link(request, "Usage over time", reverse("own_spend", kwargs={"slug": slug})),
            _link(request, "Usage", reverse("own_usage", kwargs={"slug": slug})),
            _link(request, "Tasks", reverse("own_tasks", kwargs={"slug": slug})),
            _link(request, "Refusals", reverse("own_refusals", kwargs={"slug": slug})),
            _link(request, "Quota requests", reverse("own_quota_requests", kwargs={"slug": slug})),
            _link(request, "Keys", reverse("own_keys", kwargs={"slug": slug})),
            _link(request, "Members", reverse("own_members", kwargs={"slug": slug})),
        ),
    )


def _link(request: HttpRequest, name: str, url: str, *, exact: bool = False) -> Link:
    is_current = request.path == url or (not exact and url != "/" and request.path.startswith(url))
    return Link(name, url, is_current)
