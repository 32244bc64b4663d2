"""Playbooks, their runs and acts, as pages and REST show them."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q

from capacity.models import Playbook, PlaybookAct, PlaybookRun, PlaybookVersion
from capacity.playbooks.rules import SUBJECTS, UNITS, Document, level_words, measure_words, stored
from console.errors import NotFound
from console.web.keyset import DEFAULT_LIMIT, Page, cut

MAX_PLAYBOOKS = 50
MAX_ACTS = 500
MAX_PAST_RUNS = 1000


@dataclass(frozen=True, slots=True)
class StepView:
    """A step in words."""

    title: str
    enter: float
    leave: float
    enter_words: str
    leave_words: str
    reason: str
    measures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlaybookView:
    """A playbook with its present document. `active_runs` counts runs that have not ended."""

    name: str
    title: str
    mode: str
    mode_label: str
    version: int
    signal: str
    unit: str
    subject_kind: str
    steps: tuple[StepView, ...]
    document: dict[str, Any]
    note: str
    author: str
    changed_at: datetime
    active_runs: int


@dataclass(frozen=True, slots=True)
class RunView:
    """A run in a list. `state` is `acting`, `watching` (a dry run), `asking` or `ended`."""

    id: int
    playbook: str
    version: int
    is_dry_run: bool
    subject: str
    label: str
    state: str
    depth: int
    started_at: datetime
    ended_at: datetime | None
    end_reason: str
    baseline: float | None
    start_value: float
    peak_value: float
    last_value: float | None
    asked_until: datetime | None = None
    approved_by: str = ""


@dataclass(frozen=True, slots=True)
class ActView:
    """One act: what was set and why, the figures before and after, and its undo."""

    step: int
    title: str
    at: datetime
    value: float | None
    overrides: tuple[dict[str, Any], ...]
    before: dict[str, Any]
    after: dict[str, Any]
    undone_at: datetime | None
    undone_by: str


@dataclass(frozen=True, slots=True)
class RunDetail:
    """A run with its acts, the document it followed and the signal over time."""

    run: RunView
    title: str
    unit: str
    steps: tuple[StepView, ...]
    acts: tuple[ActView, ...]
    samples: tuple[tuple[float, float | None], ...]


def playbooks() -> list[PlaybookView]:
    """Every playbook by name, at most `MAX_PLAYBOOKS`: two queries."""
    active = Count("runs", filter=Q(runs__ended_at=None))
    rows = list(Playbook.objects.annotate(active=active).order_by("name")[:MAX_PLAYBOOKS])
    wanted = {(row.pk, row.version) for row in rows}
    versions = {
        version.playbook_id: version
        for version in PlaybookVersion.objects.filter(playbook__in=rows).select_related("author")
        if (version.playbook_id, version.number) in wanted
    }
    return [_playbook(row, versions[row.pk], vars(row)["active"]) for row in rows]


def playbook(name: str) -> PlaybookView:
    """One playbook. Raises `NotFound`."""
    row = Playbook.objects.filter(name=name).first()
    if row is None:
        raise NotFound("No such playbook.")
    version = row.versions.select_related("author").get(number=row.version)
    return _playbook(row, version, row.runs.filter(ended_at=None).count())


def runs(
    *, name: str | None = None, before_id: int | None = None, limit: int = DEFAULT_LIMIT
) -> Page[RunView]:
    """Runs newest first, of one playbook or of all."""
    rows = PlaybookRun.objects.select_related("playbook").defer("samples").order_by("-id")
    if name is not None:
        rows = rows.filter(playbook__name=name)
    if before_id is not None:
        rows = rows.filter(pk__lt=before_id)
    return cut([run_view(row) for row in rows[: limit + 1]], limit, lambda one: one.id)


def active_runs(limit: int = MAX_PLAYBOOKS) -> list[RunView]:
    """Runs that have not ended, newest first."""
    rows = PlaybookRun.objects.select_related("playbook").defer("samples").filter(ended_at=None)
    return [run_view(row) for row in rows.order_by("-id")[:limit]]


def runs_between(since: datetime, until: datetime, limit: int) -> list[tuple[RunView, int]]:
    """Runs that were under way in `[since, until)`, oldest first, each with its number of acts."""
    rows = PlaybookRun.objects.select_related("playbook").defer("samples")
    rows = rows.filter(Q(ended_at=None) | Q(ended_at__gte=since), started_at__lt=until)
    counted = rows.annotate(act_count=Count("acts")).order_by("id")[:limit]
    return [(run_view(row), int(vars(row)["act_count"])) for row in counted]


def run(run_id: int, *, name: str | None = None) -> RunDetail:
    """One run. Raises `NotFound`, also when it is none of the named playbook's."""
    row = PlaybookRun.objects.select_related("playbook").filter(pk=run_id).first()
    if row is None or (name is not None and row.playbook.name != name):
        raise NotFound("No such run.")
    version = PlaybookVersion.objects.get(playbook=row.playbook_id, number=row.version)
    document = document_of(version)
    return RunDetail(
        run=run_view(row),
        title=document.title,
        unit=UNITS[document.signal],
        steps=steps_of(document),
        acts=tuple(_act(act) for act in row.acts.order_by("id")[:MAX_ACTS]),
        samples=tuple((float(at), value) for at, value in row.samples),
    )


def past_runs(playbook_id: int, now: datetime, minutes: int) -> list[PlaybookRun]:
    """Runs of a playbook that lie in the last minutes, running ones included."""
    since = now - timedelta(minutes=minutes)
    rows = PlaybookRun.objects.filter(playbook_id=playbook_id).defer("samples")
    return list(rows.filter(Q(ended_at=None) | Q(ended_at__gt=since))[:MAX_PAST_RUNS])


def document_of(version: PlaybookVersion) -> Document:
    """A stored document. It was checked when it was stored."""
    return stored(version.document)


def steps_of(document: Document) -> tuple[StepView, ...]:
    """The steps in words."""
    return tuple(
        StepView(
            step.title,
            step.enter,
            step.leave,
            level_words(document.signal, step.enter),
            level_words(document.signal, step.leave),
            step.reason,
            tuple(measure_words(one, document) for one in step.measures),
        )
        for step in document.steps
    )


def run_view(row: PlaybookRun) -> RunView:
    """A run as lists show it. Reads the run's playbook."""
    state = "acting"
    if row.is_dry_run:
        state = "watching" if row.asked_until is None else "asking"
    return RunView(
        id=row.pk,
        playbook=row.playbook.name,
        version=row.version,
        is_dry_run=row.is_dry_run,
        subject=row.subject,
        label=row.label,
        state=state if row.ended_at is None else "ended",
        depth=row.depth,
        started_at=row.started_at,
        ended_at=row.ended_at,
        end_reason=row.end_reason,
        baseline=row.baseline,
        start_value=row.start_value,
        peak_value=row.peak_value,
        last_value=row.last_value,
        asked_until=row.asked_until,
        approved_by=row.approved_by,
    )


def _act(row: PlaybookAct) -> ActView:
    return ActView(
        step=row.step,
        title=row.title,
        at=row.at,
        value=row.value,
        overrides=tuple(row.overrides),
        before=row.before,
        after=row.after,
        undone_at=row.undone_at,
        undone_by=row.undone_by,
    )


def _playbook(row: Playbook, version: PlaybookVersion, active: int) -> PlaybookView:
    document = document_of(version)
    return PlaybookView(
        name=row.name,
        title=document.title,
        mode=row.mode,
        mode_label=row.get_mode_display(),
        version=row.version,
        signal=document.signal.value,
        unit=UNITS[document.signal],
        subject_kind=SUBJECTS[document.signal],
        steps=steps_of(document),
        document=version.document,
        note=version.note,
        author=version.author.username if version.author else "",
        changed_at=version.created_at,
        active_runs=active,
    )
