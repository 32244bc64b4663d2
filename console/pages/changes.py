"""The change feed: acts of people and of the system, of whatever kind, newest first.

Every kind of object is shown; one that has a page of its own links to it. A kind that is not known
here still appears, in its own words: nobody has to announce a new one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.urls import reverse

from console.trail.objects import Described, act_words


@dataclass(frozen=True, slots=True)
class Change:
    """One act in words. `url` leads to its object, or to what the trail says of it."""

    described: Described
    act: str
    url: str


def changes_of(lines: Sequence[Described]) -> list[Change]:
    """The feed's rows, in the order given."""
    return [Change(one, act_words(one.line), one.url or _trail(one)) for one in lines]


def _trail(one: Described) -> str:
    query = {"type": one.line.object_type, "id": one.line.object_id}
    return reverse("audit", query=query)
