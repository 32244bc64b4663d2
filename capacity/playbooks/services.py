"""Evaluate playbooks, and what people do with them: mode, document, undo.

One transaction a playbook holds its row from the first look to the last act: nobody evaluates it
beside us, and a person's act comes before or after, never in between. The lock ends with the
worker that holds it.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import msgspec
from django.db import transaction
from django.utils import timezone

from capacity.models import Playbook, PlaybookMode, PlaybookRun, PlaybookVersion, PlaybookWatch
from capacity.playbooks.acts import Effect, Scene, approve, carry_out
from capacity.playbooks.rules import SHIPPED, Document, read, to_plain
from capacity.playbooks.selectors import (
    MAX_PLAYBOOKS,
    PlaybookView,
    RunView,
    document_of,
    past_runs,
    playbook,
    run_view,
)
from capacity.playbooks.signals import Reading, Watched, effect_now, readings
from console.audit.rules import SYSTEM, Actor
from console.audit.services import record
from console.errors import Conflict, DomainError, InvalidInput, NotFound
from console.validation import save_valid
from routing.decision.playbook import State, is_idle, step, stop
from routing.overrides.rules import Fault

logger = logging.getLogger(__name__)

AFTER_UNDO_QUIET_S = 900.0  # a person said no: the playbook does not do it again at once


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What one pass did."""

    playbooks: int
    subjects: int
    acts: int


def evaluate_playbooks(*, is_cancelled: Callable[[], bool] = lambda: False) -> Evaluated:
    """One pass over every playbook that is not off."""
    names = list(
        Playbook.objects.exclude(mode=PlaybookMode.OFF)
        .order_by("name")
        .values_list("name", flat=True)[:MAX_PLAYBOOKS]
    )
    effect = effect_now() if names else {}
    count = subjects = acts = 0
    for name in names:
        if is_cancelled():
            break
        try:
            looked = _evaluate(name, effect)
        except DomainError as error:  # one that cannot act keeps no other from it
            logger.warning("playbook %s: %s", name, error.message)
            continue
        count += looked is not None
        subjects += looked[0] if looked else 0
        acts += looked[1] if looked else 0
    return Evaluated(count, subjects, acts)


@transaction.atomic
def _evaluate(name: str, effect: Effect) -> tuple[int, int] | None:
    """Subjects looked at and acts done; None when another worker is at this playbook."""
    row = Playbook.objects.select_for_update(skip_locked=True).filter(name=name).first()
    if row is None or row.mode == PlaybookMode.OFF:
        return None
    document, now = _document(row), timezone.now()
    watches = {watch.subject: watch for watch in row.watches.all()}
    running = {run.subject: run for run in row.runs.filter(ended_at=None)}
    found = readings(document, _watched(row, document, watches, running, now), now)
    acts = 0
    first = document.steps[0].enter
    looked = [one for one in found.values() if one.subject in watches or _is_high(one, first)]
    for reading in looked:
        watch = watches.get(reading.subject)
        state = _state(watch)
        actor = Actor(user_id=None, label=f"playbook:{row.name}")
        scene = Scene(row, document, reading, effect, now, actor, running.get(reading.subject))
        if _is_overdue(scene.run, now):
            why = "Nobody approved it in time."
            following, done = stop(
                document.rule, state, scene.now_s, why, quiet_s=AFTER_UNDO_QUIET_S
            )
        else:
            following, done = step(document.rule, state, reading.value, scene.now_s)
        carry_out(scene, done)
        _remember(row, reading, watch, following, scene.now_s)
        acts += len(done)
    return len(looked), acts


def _is_overdue(run: PlaybookRun | None, now: datetime) -> bool:
    """Whether a run that asks first was left without an answer."""
    if run is None or run.asked_until is None or run.approved_at is not None:
        return False
    return now >= run.asked_until


def _is_high(reading: Reading, level: float) -> bool:
    return reading.value is not None and reading.value >= level


def _watched(
    row: Playbook,
    document: Document,
    watches: dict[str, PlaybookWatch],
    running: dict[str, PlaybookRun],
    now: datetime,
) -> Watched:
    past: dict[int, list[tuple[datetime, datetime]]] = {}
    labels = {subject: watch.label for subject, watch in watches.items()}
    if document.is_about_tenants:
        for run in past_runs(row.pk, now, document.baseline_min):
            span = (run.started_at, run.ended_at or now)
            past.setdefault(int(run.subject), []).append(span)
    return Watched(
        labels=labels,
        baselines={s: run.baseline for s, run in running.items() if run.baseline is not None},
        past_runs=past,
    )


def _state(watch: PlaybookWatch | None) -> State:
    return msgspec.convert(watch.state, State) if watch is not None else State()


def _remember(
    row: Playbook, reading: Reading, watch: PlaybookWatch | None, state: State, now_s: float
) -> None:
    if is_idle(state, now_s):
        if watch is not None:
            watch.delete()
        return
    PlaybookWatch.objects.update_or_create(
        playbook=row,
        subject=reading.subject,
        defaults={"label": reading.label, "state": msgspec.to_builtins(state)},
    )


def _document(row: Playbook) -> Document:
    return document_of(PlaybookVersion.objects.get(playbook=row, number=row.version))


# -- what people do


@transaction.atomic
def set_mode(*, name: str, mode: str, actor: Actor, reason: str = "") -> tuple[PlaybookView, bool]:
    """Switch a playbook off, to a dry run, or arm it; the playbook, and whether it changed.

    Whatever runs under the mode before is undone first. Raises `NotFound`, `InvalidInput`.
    """
    if mode not in PlaybookMode.values:
        offered = ", ".join(PlaybookMode.values)
        raise InvalidInput(f"No such mode: {mode!r}.", field="mode", hint=f"One of {offered}.")
    row = _locked(name)
    if row.mode == mode:
        return playbook(name), False
    _stop_all(row, actor, f"The playbook was set to {PlaybookMode(mode).label.lower()}.")
    before, row.mode = row.mode, mode
    row.save(update_fields=["mode"])
    record(
        actor=actor,
        act="playbook.mode",
        object_type="playbook",
        object_id=name,
        reason=reason,
        before={"mode": before},
        after={"mode": mode},
    )
    return playbook(name), True


@transaction.atomic
def publish_document(
    *, name: str, document: object, base: int | None, note: str, actor: Actor
) -> tuple[PlaybookView, bool]:
    """Make a document the playbook's present version; the playbook, and whether it changed.

    `base` is the version it was written on top of; None makes a new playbook, as a dry run. Runs
    under the version before are undone. Raises `InvalidInput` at the document's path, or `Conflict`
    `stale_base`.
    """
    found = read(document)
    if isinstance(found, Fault):
        raise InvalidInput(f"{found.field}: {found.reason}", field=found.field, hint=found.fix)
    row = Playbook.objects.select_for_update().filter(name=name).first()
    present = row.version if row else None
    if present != base:
        raise Conflict(
            f"The present version is {present or 'none'}, not {base or 'none'}.",
            code="stale_base",
            field="base",
            hint="Read the playbook again, then change that.",
        )
    if row is None:
        row = Playbook(name=name, version=1)
        save_valid(row, taken="A playbook of this name exists.", field="name")
    else:
        if to_plain(_document(row)) == to_plain(found):
            return playbook(name), False
        _stop_all(row, actor, "The playbook was changed.")
        row.version += 1
        row.save(update_fields=["version"])
    PlaybookVersion.objects.create(
        playbook=row,
        number=row.version,
        document=to_plain(found),
        note=note[:400],
        author_id=actor.user_id,
    )
    record(
        actor=actor,
        act="playbook.publish",
        object_type="playbook",
        object_id=name,
        reason=note,
        before={"version": base},
        after={"version": row.version, "title": found.title},
    )
    return playbook(name), True


@transaction.atomic
def undo_run(*, run_id: int, actor: Actor, reason: str = "") -> tuple[RunView, bool]:
    """Undo everything that a run has done, now; the run, and whether this act ended it.

    The playbook leaves that subject alone for `AFTER_UNDO_QUIET_S`. Raises `NotFound`.
    """
    run = PlaybookRun.objects.select_related("playbook").filter(pk=run_id).first()
    if run is None:
        raise NotFound("No such run.")
    row = _locked(run.playbook.name)
    run.refresh_from_db()
    if run.ended_at is not None:
        return run_view(run), False
    why = f"{actor.label} undid it" + (f": {reason}" if reason else ".")
    _stop(row, run, actor, why, quiet_s=AFTER_UNDO_QUIET_S)
    return run_view(run), True


@transaction.atomic
def approve_run(*, run_id: int, actor: Actor) -> tuple[RunView, bool]:
    """Let a run that asks first do what it proposes; the run, and whether this act did it.

    Raises `NotFound`, or `Conflict` when it did not ask, has ended, or its time is over.
    """
    run = PlaybookRun.objects.select_related("playbook").filter(pk=run_id).first()
    if run is None:
        raise NotFound("No such run.")
    row = _locked(run.playbook.name)
    run.refresh_from_db()
    now = timezone.now()
    if run.approved_at is not None:
        return run_view(run), False
    if run.asked_until is None or run.ended_at is not None or now >= run.asked_until:
        raise Conflict(
            "It has ended." if run.ended_at else "It asks nobody (any more).",
            code="run_not_asking",
            hint="A playbook in the mode `ask` proposes again when its signal is back.",
        )
    document = _document(row)
    watches = {one.subject: one for one in row.watches.filter(subject=run.subject)}
    watched = _watched(row, document, watches, {run.subject: run}, now)
    reading = readings(document, watched, now).get(run.subject)
    state = _state(watches.get(run.subject))
    if reading is None or not state.depth:
        raise Conflict("Nothing is proposed now.", code="run_not_asking")
    scene = Scene(row, document, reading, effect_now(), now, actor, run)
    approve(scene, run, max(state.ends_s, scene.now_s))
    return run_view(run), True


@transaction.atomic
def ensure_shipped() -> int:
    """Add shipped playbooks that are not there, as dry runs; how many. Safe at every start."""
    present = set(Playbook.objects.values_list("name", flat=True))
    missing = [name for name in SHIPPED if name not in present]
    for name in missing:
        publish_document(
            name=name,
            document=to_plain(SHIPPED[name]),
            base=None,
            note="Shipped with Headrace.",
            actor=SYSTEM,
        )
    return len(missing)


def _locked(name: str) -> Playbook:
    row = Playbook.objects.select_for_update().filter(name=name).first()
    if row is None:
        raise NotFound("No such playbook.")
    return row


def _stop_all(row: Playbook, actor: Actor, why: str) -> None:
    for run in row.runs.filter(ended_at=None):
        _stop(row, run, actor, why)
    row.watches.all().delete()


def _stop(
    row: Playbook, run: PlaybookRun, actor: Actor, why: str, *, quiet_s: float | None = None
) -> None:
    """Undo a run whose playbook is locked."""
    document, now = _document(row), timezone.now()
    watch = row.watches.filter(subject=run.subject).first()
    reading = Reading(run.subject, run.label, "", run.last_value, run.baseline)
    scene = Scene(row, document, reading, effect_now(), now, actor, run)
    present = _state(watch)
    if not present.depth:  # a run without a watch would never end: its row says what it holds
        present = State(depth=max(run.depth, 1))
    state, acts = stop(document.rule, present, scene.now_s, why, quiet_s=quiet_s)
    carry_out(scene, acts)
    _remember(row, reading, watch, state, scene.now_s)
