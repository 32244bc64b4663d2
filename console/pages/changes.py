"""The change feed: acts of people and of the system, of whatever kind, newest first.

Every kind of object is shown; one that has a page of its own links to it. A kind that is not known
here still appears, in its own words: nobody has to announce a new one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django.urls import NoReverseMatch, reverse

from console.pages.objects import Described

# Object type -> the page that shows it, given the id in the audit trail.
_PAGES: dict[str, Callable[[str], str]] = {
    "policy": lambda name: reverse("policy", kwargs={"name": name}),
    "objective": lambda _: reverse("slo"),
    "region": lambda _: reverse("fleet"),
    "hardware": lambda _: reverse("carbon"),
    "price": lambda _: reverse("prices"),
}


@dataclass(frozen=True, slots=True)
class Change:
    """One act in words. `url` may be empty."""

    described: Described
    act: str
    url: str


def changes_of(lines: Sequence[Described]) -> list[Change]:
    """The feed's rows, in the order given."""
    return [
        Change(one, one.line.act.replace("_", " ").replace(".", " "), _url(one)) for one in lines
    ]


def _url(one: Described) -> str:
    page = _PAGES.get(one.line.object_type)
    if page is not None:
        try:
            return page(one.line.object_id)
        except NoReverseMatch:  # an id of an older form
            return ""
    return f"{reverse('audit')}?type={one.line.object_type}&id={one.line.object_id}"
