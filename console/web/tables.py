"""Tables and strips as values that the partials draw."""

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest

from console.web.keyset import Page
from console.web.views import query_with


@dataclass(frozen=True, slots=True)
class Column:
    """Head of a column. `meaning` is shown on hover, and read out if the column has no name."""

    name: str
    unit: str = ""
    meaning: str = ""
    is_number: bool = False


def number(name: str, unit: str = "", meaning: str = "") -> Column:
    """A right-aligned column."""
    return Column(name, unit, meaning, is_number=True)


@dataclass(frozen=True, slots=True)
class Pager:
    """Links of a keyset table; `target` is the id of the element that they replace."""

    target: str
    first_url: str = ""
    next_url: str = ""


def pager(request: HttpRequest, page: Page[Any], target: str) -> Pager:
    """Links that keep every filter of the address."""
    after = request.GET.get("after")
    return Pager(
        target,
        first_url=query_with(request, after=None) if after else "",
        next_url=query_with(request, after=page.next_after) if page.next_after else "",
    )


@dataclass(frozen=True, slots=True)
class Strip:
    """A line above a page: a lost part, or news about what was asked.

    `bound` is the limit that holds meanwhile, `next_step` what a person can do.
    """

    tone: str
    word: str
    text: str
    url: str = ""
    action: str = ""
    part: str = ""
    bound: str = ""
    next_step: str = ""
