"""Where an object of the audit trail is shown."""

from collections.abc import Callable, Mapping
from typing import Any

from django.urls import NoReverseMatch, reverse

Facts = Mapping[str, Any]
_Page = Callable[[str, str, Facts], str]


def page_of(object_type: str, object_id: str, *, slug: str, facts: Facts) -> str:
    """Address of the page that shows it; empty where none does.

    `slug` is its tenant's, or empty; `facts` what the event says of it. Everyone who may read the
    trail may open the page: those that only some may open are left out.
    """
    page = _PAGES.get(object_type)
    if page is None:
        return ""
    try:
        return page(object_id, slug, facts)
    except NoReverseMatch:  # an id of an older form, or a tenant that is gone
        return ""


def _policy(name: str, slug: str, facts: Facts) -> str:
    version = facts.get("version")
    if isinstance(version, int):
        return reverse("policy_version", kwargs={"name": name, "number": version})
    return reverse("policy", kwargs={"name": name})


def _run(run_id: str, slug: str, facts: Facts) -> str:
    kwargs = {"name": facts.get("playbook", ""), "run_id": run_id}
    return reverse("playbook_run", kwargs=kwargs)


def _pool(name: str, slug: str, facts: Facts) -> str:
    return reverse("pool", kwargs={"name": facts.get("name") or facts.get("slug") or name})


def _report(name: str, slug: str, facts: Facts) -> str:
    if name.isascii() and name.isdigit():
        return reverse("report", kwargs={"report_id": int(name)})
    return reverse("reports", query={"name": name})


def _price(name: str, slug: str, facts: Facts) -> str:
    model = facts.get("model")
    return reverse("prices", query={"model": model} if model else None)


def _inventory(kind: str) -> _Page:
    return lambda *_: reverse("inventory", query={"kind": kind})


def _of_tenant(view: str) -> _Page:
    return lambda _, slug, __: reverse(view, kwargs={"slug": slug})


def _list(view: str) -> _Page:
    return lambda *_: reverse(view)


_PAGES: dict[str, _Page] = {
    "policy": _policy,
    "rollout": lambda pk, *_: reverse("rollout", kwargs={"rollout_id": pk}),
    "playbook": lambda name, *_: reverse("playbook", kwargs={"name": name}),
    "playbook_run": _run,
    "override": lambda *_: reverse("overrides", query={"all": "1"}),
    "quota_request": lambda pk, *_: reverse("quota_request", kwargs={"request_id": pk}),
    "pool": _pool,
    "report": _report,
    "price": _price,
    "usage": lambda pk, *_: reverse("request", kwargs={"request_id": pk}),
    "tenant": _of_tenant("tenant"),
    "limit": _of_tenant("tenant"),
    "key": _of_tenant("keys"),
    "member": _of_tenant("members"),
    "invitation": _of_tenant("members"),
    "objective": _list("slo"),
    "hardware": _list("carbon"),
    "evaluation": _list("evaluations"),
    "hook": _list("hooks"),
    "forecast": _list("forecasts"),
    "demand": _list("forecasts"),
    "capacity_limit": _list("fleet"),
    "ledger": _list("reconciliation"),
    "region": _inventory("region"),
    "failure_domain": _inventory("domain"),
    "gpu_type": _inventory("gpu_type"),
    "node": _inventory("node"),
    "model": _inventory("model"),
    "artifact": _inventory("artifact"),
    "inventory": _list("inventory"),
}
