"""The palette (Ctrl K): pages, tenants, keys, pools, policies, people, acts, and a request by id.

Only what the person may open is searched, so a tenant's member finds its own tenant alone. A
search is at most `MOST_QUERIES` queries, each by an index or over a small table, and each kind
shows few rows: who needs more types more.
"""

import time
from collections.abc import Iterator
from uuid import UUID

from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse

from capacity.fleet.selectors import pools_named
from console.accounts.person import signed_in
from console.accounts.selectors import (
    Permission,
    can,
    people,
    tenant_ids_with,
    visible_tenant_ids,
)
from console.errors import DomainError
from console.models import User
from console.pages.finding import Hit, HitGroup, best
from console.pages.navigation import MAX_OWN_TENANTS, groups_of
from console.web.htmx import render
from console.web.pace import Pace
from console.web.views import page
from routing.policies.selectors import policies
from tenants.directory.selectors import slugs_of, tenants_beginning
from tenants.keys.rules import SCHEME
from tenants.keys.selectors import keys_beginning
from tenants.ledger.refusals import tenant_of_request

MOST_CHARS = 100
MOST_QUERIES = 15
SHOWN = 6  # of each kind
LEAST_KEY_CHARS = 3  # of a key's prefix: fewer match by chance
PACE = Pace(most=60, window_s=10)  # faster than anybody types, with the delay of the page

# Pages that are one click below those of the navigation.
_MORE = (
    ("Why is P99 up?", "why_p99"),
    ("What did the agents do?", "tasks"),
    ("What caused the bill?", "why_bill"),
    ("What is the carbon?", "carbon"),
    ("Find a request", "find_request"),
    ("Drift of the inventory", "drift"),
    ("Prices of resources", "resource_prices"),
    ("Prices of pools", "pool_prices"),
)
_EVERYBODY = (("Profile", "me"), ("API reference", "docs"), ("Change password", "change_password"))
_ACTS = (
    ("New tenant", "new_tenant", Permission.MANAGE_TENANTS),
    ("Set an override", "new_override", Permission.ACT),
    ("Set an objective", "set_objective", Permission.ACT),
    ("Import inventory", "import_inventory", Permission.MANAGE_FLEET),
    ("Limits of the fleet", "fleet_limits", Permission.MANAGE_FLEET),
    ("New price of a model", "new_price", Permission.MANAGE_PRICES),
    ("New price of a resource", "new_resource_price", Permission.MANAGE_PRICES),
    ("New price of a pool", "new_pool_price", Permission.MANAGE_PRICES),
    ("New report schedule", "new_report_schedule", Permission.MANAGE_SCHEDULES),
    ("New person", "new_person", Permission.MANAGE_ROLES),
)
_OWN_ACTS = (
    ("Issue a key", "own_issue_key", Permission.TENANT_MANAGE_KEYS),
    ("Invite a person", "own_invite_member", Permission.TENANT_MANAGE_MEMBERS),
    ("Ask for more quota", "ask_for_more", Permission.TENANT_MANAGE_LIMITS),
)


class TooFast(DomainError):  # noqa: N818 - named for what it says
    """One person searches faster than anybody types."""

    code = "too_fast"
    status = 429


@page("GET", query=("q",))
def search(request: HttpRequest) -> HttpResponseBase:
    """What `q` finds, by kind; without it the pages that the person may open."""
    user = signed_in(request)
    if wait_s := PACE.wait_s(user.pk, time.monotonic()):
        raise TooFast("You search too fast.", hint=f"Go on in {wait_s:.0f} s.")
    text = " ".join(request.GET.get("q", "").split())[:MOST_CHARS]
    found = [group for group in _groups(request, user, text) if group.hits]
    context = {"text": text, "groups": found, "count": sum(len(group.hits) for group in found)}
    return render(request, "console/search.html", "found", context)


def _groups(request: HttpRequest, user: User, text: str) -> Iterator[HitGroup]:
    seen = visible_tenant_ids(user)
    sees_all = can(user, Permission.VIEW_ALL)
    if not text:
        yield from _all_pages(request, user)
        return
    yield HitGroup("Request", _request(text, seen))
    yield HitGroup("Pages", best(_pages(request, user, sees_all=sees_all), text, SHOWN))
    yield HitGroup("Tenants", _tenants(text, seen, sees_all=sees_all))
    yield HitGroup("Keys", _keys(text, seen, sees_all=sees_all))
    if sees_all:
        yield HitGroup("Pools", _pools(text))
        yield HitGroup("Policies", _policies(user, text))
    if can(user, Permission.MANAGE_ROLES):
        yield HitGroup("People", _people(text))
    yield HitGroup("Acts", best(_acts(user, seen), text, SHOWN))


def _all_pages(request: HttpRequest, user: User) -> Iterator[HitGroup]:
    for group in groups_of(request, user):
        yield HitGroup(group.label, tuple(Hit(link.name, link.url) for link in group.links))


def _pages(request: HttpRequest, user: User, *, sees_all: bool) -> Iterator[Hit]:
    for group in groups_of(request, user):
        yield from (Hit(link.name, link.url, group.label) for link in group.links)
    for name, view in (*(_MORE if sees_all else ()), *_EVERYBODY):
        yield Hit(name, reverse(view))


def _tenants(text: str, seen: frozenset[int] | None, *, sees_all: bool) -> tuple[Hit, ...]:
    area = "" if sees_all else "own_"
    return tuple(
        Hit(one.slug, reverse(f"{area}tenant", kwargs={"slug": one.slug}), one.name)
        for one in tenants_beginning(seen, text, limit=SHOWN)
    )


def _keys(text: str, seen: frozenset[int] | None, *, sees_all: bool) -> tuple[Hit, ...]:
    """Keys by prefix: the list of the tenant's keys, beginning with this one."""
    prefix = text.removeprefix(f"{SCHEME}_").partition("_")[0]
    if len(prefix) < LEAST_KEY_CHARS or not prefix.isalnum():
        return ()
    area = "" if sees_all else "own_"
    return tuple(
        Hit(
            f"{one.prefix}…",
            f"{reverse(f'{area}keys', kwargs={'slug': one.tenant})}?after={one.id + 1}",
            f"{one.name} of {one.tenant}{', revoked' if one.is_revoked else ''}",
        )
        for one in keys_beginning(seen, prefix.lower(), limit=SHOWN)
    )


def _pools(text: str) -> tuple[Hit, ...]:
    return tuple(
        Hit(name, reverse("pool", kwargs={"name": name}), model)
        for name, model in pools_named(text, limit=SHOWN)
    )


def _policies(user: User, text: str) -> tuple[Hit, ...]:
    known = []
    for one in policies():
        live = f"v{one.live_number} is live" if one.live_number else "no live version"
        known.append(Hit(one.name, reverse("policy", kwargs={"name": one.name}), live))
        if can(user, Permission.POLICY_PUBLISH):
            url = reverse("edit_policy", kwargs={"name": one.name})
            known.append(Hit(f"Edit {one.name}", url, "draft of the policy"))
    return best(known, text, SHOWN)


def _people(text: str) -> tuple[Hit, ...]:
    found = people(from_username=text, limit=SHOWN)
    return tuple(
        Hit(one.username, reverse("person", kwargs={"user_id": one.id}), one.role_label)
        for one in found
        if one.username.startswith(text)
    )


def _request(text: str, seen: frozenset[int] | None) -> tuple[Hit, ...]:
    try:
        spelled = str(UUID(text))
    except ValueError:
        return ()
    tenant_id = tenant_of_request(tenant_ids=seen, request_id=spelled)
    slug = slugs_of([tenant_id]).get(tenant_id) if tenant_id is not None else None
    if slug is None:
        return ()
    url = (
        reverse("request", kwargs={"request_id": spelled})
        if seen is None
        else reverse("own_request", kwargs={"slug": slug, "request_id": spelled})
    )
    return (Hit(spelled, url, f"of {slug}: what became of it"),)


def _acts(user: User, seen: frozenset[int] | None) -> Iterator[Hit]:
    for name, view, permission in _ACTS:
        if can(user, permission):
            yield Hit(name, reverse(view))
    yield Hit("Issue a token of my own", reverse("issue_token"))
    if seen is None:
        return
    slugs = sorted(slugs_of(seen).items(), key=lambda row: row[1])[:MAX_OWN_TENANTS]
    for name, view, permission in _OWN_ACTS:
        held = tenant_ids_with(user, permission)
        for tenant_id, slug in slugs:
            if held is None or tenant_id in held:
                yield Hit(f"{name} ({slug})", reverse(view, kwargs={"slug": slug}))
