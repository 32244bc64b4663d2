"""Rollouts in lists: their rows, and those that are off course."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Exists, OuterRef, Q

from capacity.models import (
    ACTIVE,
    Rollout,
    RolloutLane,
    RolloutState,
)
from capacity.rollouts.rules.lanes import Step
from console.audit.selectors import begun_by_people
from console.web.keyset import DEFAULT_LIMIT, Page, take

ACTIVE_STATES = tuple(state.value for state in ACTIVE)
_OFF_COURSE = (
    RolloutState.PAUSED.value,
    RolloutState.ROLLING_BACK.value,
    RolloutState.FAILED.value,
)
_GIVEN_UP = (RolloutState.ROLLED_BACK.value, RolloutState.CANCELLED.value)
GIVEN_UP_SHOWN = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """A rollout as lists show it. `replaced` of `replicas` run the revision it goes to."""

    id: int
    pool: str
    model: str
    driver: str
    state: str
    from_revision: int
    to_revision: int
    reason: str
    cause: str
    author: str
    replicas: int
    replaced: int
    created_at: datetime
    ended_at: datetime | None

    @property
    def is_active(self) -> bool:
        """Whether it has the pool."""
        return self.state in ACTIVE_STATES

    @property
    def progress_ratio(self) -> float:
        """Share of the pool's replicas that run the new revision; 1 for an empty pool when done."""
        if not self.replicas:
            return 1.0 if self.state == RolloutState.DONE else 0.0
        return min(1.0, self.replaced / self.replicas)


@dataclass(frozen=True, slots=True)
class OffCourse:
    """A rollout that stands still, goes back, or did not get where it was to go."""

    id: int
    pool: str
    state: str
    state_label: str
    cause: str


def rollouts_page(
    *, pool: str = "", state: str = "", after: str | None = None, limit: int = DEFAULT_LIMIT
) -> Page[RolloutRow]:
    """Rollouts, newest first: two queries."""
    rows = Rollout.objects.select_related("pool__model")
    if pool:
        rows = rows.filter(pool__name=pool)
    if state == "active":
        rows = rows.filter(state__in=ACTIVE_STATES)
    elif state:
        rows = rows.filter(state=state)
    page = take(rows, order=("-id",), after=after, limit=limit)
    replaced = replaced_in(page.rows)
    return page.map(lambda row: row_of(row, replaced))


def rollouts_between(since: datetime, until: datetime, limit: int) -> list[RolloutRow]:
    """Rollouts that were under way in `[since, until)`, oldest first: two queries."""
    rows = Rollout.objects.select_related("pool__model").order_by("id")
    during = rows.filter(Q(ended_at=None) | Q(ended_at__gte=since), created_at__lt=until)
    found = list(during[:limit])
    replaced = replaced_in(found)
    return [row_of(row, replaced) for row in found]


def off_course(now: datetime, limit: int = DEFAULT_LIMIT) -> list[OffCourse]:
    """Newest first, two queries: each pool's last rollout, if it is not on its way or done.

    One that came all the way back, or was aborted, is named for `GIVEN_UP_SHOWN`. One that a person
    turned back is not, once it is back: they know, and nothing is left to do.
    """
    given_up = Q(state__in=_GIVEN_UP, ended_at__gt=now - GIVEN_UP_SHOWN)
    later = Rollout.objects.filter(pool=OuterRef("pool"), pk__gt=OuterRef("pk"))
    rows = Rollout.objects.filter(given_up | Q(state__in=_OFF_COURSE)).filter(~Exists(later))
    found = list(rows.select_related("pool").order_by("-id")[:limit])
    back = [str(row.pk) for row in found if row.state == RolloutState.ROLLED_BACK]
    wanted = (
        begun_by_people(act="rollout.rolling_back", object_type="rollout", object_ids=back)
        if back
        else set()
    )
    return [
        OffCourse(row.pk, row.pool.name, row.state, row.get_state_display(), row.cause)
        for row in found
        if not (row.state == RolloutState.ROLLED_BACK and str(row.pk) in wanted)
    ]


def replaced_in(rows: Iterable[Rollout]) -> dict[int, int]:
    """By rollout, replicas that went to its new revision, less those that went back."""
    rows = list(rows)
    if not rows:
        return {}
    to = {row.pk: row.to_revision for row in rows}
    done = Q(result=Step.DONE.value)
    counts = (
        RolloutLane.objects.filter(done, rollout__in=to)
        .values("rollout_id", "revision")
        .annotate(lanes=Count("id"))
    )
    found: dict[int, int] = dict.fromkeys(to, 0)
    for one in counts:
        sign = 1 if one["revision"] == to[one["rollout_id"]] else -1
        found[one["rollout_id"]] += sign * one["lanes"]
    return {key: max(0, value) for key, value in found.items()}


def row_of(row: Rollout, replaced: dict[int, int]) -> RolloutRow:
    """A rollout as lists show it; `replaced` as `replaced_in` counts it."""
    return RolloutRow(
        id=row.pk,
        pool=row.pool.name,
        model=row.pool.model.name,
        driver=row.pool.driver,
        state=row.state,
        from_revision=row.from_revision,
        to_revision=row.to_revision,
        reason=row.reason,
        cause=row.cause,
        author=row.author,
        replicas=row.replicas,
        replaced=replaced.get(row.pk, 0),
        created_at=row.created_at,
        ended_at=row.ended_at,
    )
