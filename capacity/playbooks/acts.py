"""Carry out what the decision core decided for one subject, and record it. Runs in a transaction.

A dry run records the same acts and sets no override.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from capacity.models import Playbook, PlaybookAct, PlaybookMode, PlaybookRun
from capacity.playbooks.rules import Document, measure_words, wanted
from capacity.playbooks.signals import Reading
from console.audit.rules import Actor
from console.audit.services import record
from routing.decision.playbook import Act, ActKind
from routing.overrides.rules import MIN_HOLD_S
from routing.overrides.services import apply_override, hold_longer, lift_override

MAX_SAMPLES: Final = 1500  # two hours of evaluations; a longer run keeps the newest
ASK_FOR: Final = timedelta(minutes=10)  # a run that asks first waits so long for a person
Effect = dict[str, Any]


@dataclass(slots=True)
class Scene:
    """One playbook and one subject, at one evaluation. `run` is the present one."""

    playbook: Playbook
    document: Document
    reading: Reading
    effect: Effect
    now: datetime
    actor: Actor
    run: PlaybookRun | None

    @property
    def now_s(self) -> float:
        """Unix seconds."""
        return self.now.timestamp()


def carry_out(scene: Scene, acts: tuple[Act, ...]) -> None:
    """Perform the acts in order; then note the signal and the effect so far."""
    for act in acts:
        if act.kind is ActKind.ENGAGE:
            _engage(scene, act)
        elif act.kind is ActKind.UNDO:
            _undo(scene, act)
        elif act.kind is ActKind.RENEW:
            _renew(scene, act)
        else:
            _end(scene, act)
    if scene.run is not None:
        _note(scene, scene.run)


def _engage(scene: Scene, act: Act) -> None:
    document, reading = scene.document, scene.reading
    run = scene.run or _begin(scene)
    step = document.steps[act.step]
    words = [measure_words(one, document, reading.target) for one in step.measures]
    ids: list[int | None] = [None] * len(words)
    if not run.is_dry_run:
        ids = _set(scene, run, act.step, act.ends_s)
    PlaybookAct.objects.create(
        run=run,
        step=act.step,
        title=step.title,
        at=scene.now,
        value=reading.value,
        overrides=[{"id": number, "words": text} for number, text in zip(ids, words, strict=True)],
        before=scene.effect,
        after=scene.effect,
    )
    run.depth = act.step + 1
    _audit(scene, run, "playbook.engage", step.title, {"value": reading.value, "acts": words})


def _set(scene: Scene, run: PlaybookRun, step: int, ends_s: float) -> list[int | None]:
    """Set a step's overrides until `ends_s` (Unix seconds); their ids."""
    document = scene.document
    return [
        apply_override(
            wanted=wanted(measure, document, scene.reading.target),
            hold_s=max(ends_s - scene.now_s, MIN_HOLD_S),
            reason=document.steps[step].reason,
            actor=scene.actor,
            source=_source(scene.playbook),
            run_id=run.pk,
        ).id
        for measure in document.steps[step].measures
    ]


def approve(scene: Scene, run: PlaybookRun, ends_s: float) -> None:
    """Do now what a run that asked first has proposed and still holds."""
    for row in run.acts.filter(undone_at=None).order_by("step"):
        ids = _set(scene, run, row.step, ends_s)
        row.overrides = [
            {**one, "id": number} for number, one in zip(ids, row.overrides, strict=True)
        ]
        row.at, row.before, row.after = scene.now, scene.effect, scene.effect
        row.save(update_fields=["overrides", "at", "before", "after"])
    run.is_dry_run = False
    run.approved_at, run.approved_by = scene.now, scene.actor.label[:150]
    run.save(update_fields=["is_dry_run", "approved_at", "approved_by"])
    _audit(scene, run, "playbook.approve", scene.document.title, {"depth": run.depth})


def _begin(scene: Scene) -> PlaybookRun:
    reading = scene.reading
    value = reading.value or 0.0
    scene.run = PlaybookRun.objects.create(
        playbook=scene.playbook,
        version=scene.playbook.version,
        is_dry_run=scene.playbook.mode != PlaybookMode.ARMED,
        asked_until=scene.now + ASK_FOR if scene.playbook.mode == PlaybookMode.ASK else None,
        subject=reading.subject,
        label=reading.label,
        started_at=scene.now,
        baseline=reading.baseline,
        start_value=value,
        peak_value=value,
    )
    return scene.run


def _undo(scene: Scene, act: Act) -> None:
    run = scene.run
    if run is None:
        return
    row = run.acts.filter(step=act.step, undone_at=None).first()
    if row is None:
        return
    for one in row.overrides:
        if one["id"] is not None:
            lift_override(override_id=one["id"], actor=scene.actor, reason=act.why)
    row.undone_at, row.undone_by = scene.now, scene.actor.label
    row.after = scene.effect
    row.save(update_fields=["undone_at", "undone_by", "after"])
    run.depth = act.step
    _audit(scene, run, "playbook.undo", row.title, {"why": act.why})


def _renew(scene: Scene, act: Act) -> None:
    run = scene.run
    if run is None or run.is_dry_run:
        return
    held = run.acts.filter(undone_at=None).values_list("overrides", flat=True)
    ids = [one["id"] for overrides in held for one in overrides if one["id"] is not None]
    hold_longer(override_ids=ids, hold_s=max(act.ends_s - scene.now_s, MIN_HOLD_S))


def _end(scene: Scene, act: Act) -> None:
    if scene.run is not None:
        scene.run.ended_at, scene.run.end_reason = scene.now, act.why


def _note(scene: Scene, run: PlaybookRun) -> None:
    value = scene.reading.value
    run.last_value = value
    run.peak_value = max(run.peak_value, value or 0.0)
    at_s = round(scene.now.astimezone(UTC).timestamp(), 1)
    run.samples = [*run.samples, [at_s, value]][-MAX_SAMPLES:]
    run.save()
    if run.ended_at is None:
        run.acts.filter(undone_at=None).update(after=scene.effect)


def _source(playbook: Playbook) -> str:
    return f"playbook:{playbook.name}"


def _audit(scene: Scene, run: PlaybookRun, act: str, title: str, after: dict[str, object]) -> None:
    record(
        actor=scene.actor,
        act=act,
        object_type="playbook_run",
        object_id=str(run.pk),
        reason=title,
        after={
            "playbook": scene.playbook.name,
            "subject": run.label,
            "dry_run": run.is_dry_run,
            **after,
        },
    )
