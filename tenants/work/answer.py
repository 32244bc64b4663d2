"""What the agents did, in sentences."""

from collections.abc import Iterator, Sequence

from django.urls import reverse

from console.web import units
from console.web.answers import Answer, NextStep
from tenants.work.rules import Outcomes
from tenants.work.selectors import KindRow, Loop

GOOD = 0.9  # of the tasks with an outcome; below it the answer says so


def work_answer(
    ended: Outcomes, kinds: Sequence[KindRow], loops: Sequence[Loop], *, area: str, slug: str
) -> Answer:
    """The answer to "what did the agents do". `area` and `slug` as of the page's own links."""
    total = ended.succeeded + ended.failed
    if not total and not kinds:
        return Answer(
            "No task ended in this time, and none began.",
            ("Callers name a task in the header x-headrace-task-id, and its end once.",),
            (NextStep("How callers name tasks", reverse("docs")),),
        )
    if not total:
        headline = "No task of this time has reported how it ended."
    else:
        cost = units.usd_short(ended.success_nanousd)
        each = f", for {cost} USD each, failed ones included" if ended.succeeded else ""
        headline = f"{ended.succeeded:,} of {total:,} tasks succeeded{each}."
    is_good = ended.success_ratio is None or ended.success_ratio >= GOOD
    return Answer(
        headline,
        tuple(_reasons(kinds, loops)),
        tuple(_steps(ended, loops, area, slug)),
        "" if not total else "ok" if is_good else "warn",
        "" if not total else units.percent(ended.success_ratio),
    )


def _reasons(kinds: Sequence[KindRow], loops: Sequence[Loop]) -> Iterator[str]:
    if kinds:
        one = max(kinds, key=lambda row: row.sums.spend_nanousd)
        yield (
            f"Dearest: {one.kind or 'unnamed tasks'} of {one.tenant},"
            f" {units.usd_short(one.sums.spend_nanousd)} USD over {one.tasks:,} tasks."
        )
        worst = max(kinds, key=lambda row: row.failed)
        if worst.failed:
            yield (
                f"Most failures: {worst.kind or 'unnamed tasks'} of {worst.tenant},"
                f" {worst.failed:,} of {worst.tasks:,}."
            )
    if loops:
        spend = units.usd_short(sum(one.spend_nanousd for one in loops))
        yield f"{len(loops):,} steps ran in a loop: {spend} USD."


def _steps(ended: Outcomes, loops: Sequence[Loop], area: str, slug: str) -> Iterator[NextStep]:
    listed = reverse("own_tasks", kwargs={"slug": slug}) if area else reverse("tasks")
    if ended.failed:
        yield NextStep("Open the failed ones", f"{listed}?outcome=failure")
    if loops:
        yield NextStep("Stop the loops below", "#h-loops")
    if area:
        yield NextStep("See your limits", reverse("own_tenant", kwargs={"slug": slug}))
    else:
        yield NextStep("See who pays for it", reverse("why_bill"))
