"""Drafts: what is being written on top of a version. One a policy, kept as it was typed."""

from django.db import transaction
from django.utils import timezone

from console.audit.rules import Actor
from console.audit.services import record
from console.errors import Conflict, InvalidInput, NotFound
from console.validation import save_valid
from routing.models import PolicyDraft, PolicyVersion
from routing.policies.selectors import DraftView, PolicyVersionView, draft_view
from routing.policies.services.publish import publish
from routing.policies.text import MAX_CHARS, parse


class DraftChanged(Conflict):
    """Another person saved or discarded the draft meanwhile; `theirs` is what they saved."""

    code = "draft_changed"

    def __init__(self, theirs: DraftView | None) -> None:
        done = f"saved by {theirs.author or 'system'}" if theirs else "published or discarded"
        super().__init__(
            f"The draft was {done} meanwhile.",
            field="tag",
            hint="Take over what you need from it, then save yours on top of it.",
        )
        self.theirs = theirs


@transaction.atomic
def save_draft(
    *, policy: str, text: str, base: int | None, note: str = "", tag: str = "", actor: Actor
) -> DraftView:
    """Keep a text as the policy's draft on top of version `base`; it need not be valid yet.

    `tag` names the draft that the author read (empty: there was none). Raises `DraftChanged` when
    it is another now, or `InvalidInput` (empty, too long, no such base).
    """
    if not text.strip() or len(text) > MAX_CHARS:
        raise InvalidInput(
            f"A draft has 1 to {MAX_CHARS:,} characters.", field="document", hint="Write one."
        )
    if base is not None and not _has_version(policy, base):
        raise InvalidInput(f"There is no version {base}.", field="base", hint="Use the live one.")
    row = _at(policy, tag) or PolicyDraft(policy=policy, edition=0)
    row.base, row.text, row.note = base, text, note[:400]
    row.edition += 1
    row.author_id, row.saved_at = actor.user_id, timezone.now()
    try:
        save_valid(row, taken="taken", field="policy")
    except Conflict as error:  # two first ones at once
        raise DraftChanged(None) from error
    record(
        actor=actor,
        act="policy.draft",
        object_type="policy",
        object_id=policy,
        after={"edition": row.edition, "base": base, "characters": len(text)},
    )
    return draft_view(row, actor.label)


@transaction.atomic
def discard_draft(*, policy: str, tag: str, actor: Actor) -> None:
    """Throw the draft away. Raises `NotFound` when there is none, or `DraftChanged`."""
    row = _at(policy, tag)
    if row is None:
        raise NotFound("There is no draft.")
    edition = row.edition
    row.delete()
    record(
        actor=actor,
        act="policy.discard_draft",
        object_type="policy",
        object_id=policy,
        before={"edition": edition},
    )


@transaction.atomic
def publish_draft(*, policy: str, tag: str, note: str, actor: Actor) -> PolicyVersionView:
    """Publish the draft as the next version and clear it.

    Raises `NotFound` (no draft), `DraftChanged`, `InvalidInput` (no JSON), and what `publish` does:
    `PolicyRefused` with every finding, `StaleBase` with what another version changed.
    """
    row = _at(policy, tag)
    if row is None:
        raise NotFound("There is no draft.")
    published = publish(
        policy=policy,
        document=parse(row.text),
        base=row.base,
        note=note or row.note,
        actor=actor,
    )
    row.delete()
    return published


def _has_version(policy: str, number: int) -> bool:
    return PolicyVersion.objects.filter(policy__name=policy, number=number).exists()


def _at(policy: str, tag: str) -> PolicyDraft | None:
    """The locked draft if `tag` is its own; None if there is none and none was expected."""
    rows = PolicyDraft.objects.select_for_update(of=("self",)).select_related("author")
    row = rows.filter(policy=policy).first()
    found = draft_view(row) if row is not None else None
    if (found.tag if found else "") != tag:
        raise DraftChanged(found)
    return row
