"""REST: playbooks, their documents and modes, runs with every act, and undo."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from capacity.models import PlaybookMode
from capacity.playbooks import selectors, services
from console.accounts.selectors import Permission, actor_of, require
from console.rest.fields import (
    InstantField,
    OfferedField,
    OutSerializer,
    PageQuery,
    StrictInteger,
    StrictSerializer,
    StrictText,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, key_before, shown, shown_rows


class PlaybookSerializer(OutSerializer):
    """A playbook with its present document; write `version` as `base` of the next one."""

    name = serializers.CharField()
    title = serializers.CharField()
    mode = serializers.CharField()
    version = serializers.IntegerField()
    signal = serializers.CharField()
    document = serializers.JSONField()
    note = serializers.CharField()
    author = serializers.CharField()
    changed_at = InstantField()
    active_runs = serializers.IntegerField()


class ChangedPlaybookSerializer(PlaybookSerializer):
    """The playbook after the act; `changed` is false when it was so before."""

    changed = serializers.BooleanField()


class PlaybookRunSerializer(OutSerializer):
    """A run: `acting`, `watching` (a dry run), `asking` (until `asked_until`) or `ended`."""

    id = serializers.IntegerField()
    playbook = serializers.CharField()
    version = serializers.IntegerField()
    is_dry_run = serializers.BooleanField()
    subject = serializers.CharField(source="label")
    state = serializers.CharField()
    depth = serializers.IntegerField()
    started_at = InstantField()
    ended_at = InstantField(allow_null=True)
    end_reason = serializers.CharField()
    baseline = serializers.FloatField(allow_null=True)
    start_value = serializers.FloatField()
    peak_value = serializers.FloatField()
    last_value = serializers.FloatField(allow_null=True)
    asked_until = InstantField(allow_null=True)
    approved_by = serializers.CharField()


class ChangedPlaybookRunSerializer(PlaybookRunSerializer):
    """The run after the act; `changed` is false when it had ended before."""

    changed = serializers.BooleanField()


class PlaybookActSerializer(OutSerializer):
    """One act with its signal, effect and undo."""

    step = serializers.IntegerField()
    title = serializers.CharField()
    at = InstantField()
    value = serializers.FloatField(allow_null=True)
    overrides = serializers.JSONField()
    before = serializers.JSONField()
    after = serializers.JSONField()
    undone_at = InstantField(allow_null=True)
    undone_by = serializers.CharField()


class PlaybookRunDetailSerializer(OutSerializer):
    """A run, its acts, and the signal: `[Unix seconds, value or null]` an evaluation."""

    run = PlaybookRunSerializer()
    acts = PlaybookActSerializer(many=True)
    samples = serializers.JSONField()


class PlaybookModeRequest(StrictSerializer):
    """Off, dry run, ask first or armed."""

    mode = OfferedField(choices=PlaybookMode.values)
    reason = StrictText(max_length=300, required=False, default="", allow_blank=True)


class PlaybookRequest(StrictSerializer):
    """The next document, on top of version `base` (null: a new playbook)."""

    document = serializers.JSONField()
    base = StrictInteger(allow_null=True, min_value=1)
    note = StrictText(max_length=400, required=False, default="", allow_blank=True)


class UndoRequest(StrictSerializer):
    """Why."""

    reason = StrictText(max_length=300, required=False, default="", allow_blank=True)


class Playbooks(Endpoint):
    """All playbooks."""

    @endpoint(
        operation_id="playbooks_list",
        answer=PlaybookSerializer(many=True),
        summary="List playbooks",
    )
    def get(self, request: Request) -> Response:
        """In order of name."""
        require(self.user, Permission.VIEW_ALL)
        return Response(PlaybookSerializer(selectors.playbooks(), many=True).data)


class OnePlaybook(Endpoint):
    """One playbook."""

    @endpoint(operation_id="playbooks_read", answer=PlaybookSerializer, summary="Read a playbook")
    def get(self, request: Request, name: str) -> Response:
        """With its present document."""
        require(self.user, Permission.VIEW_ALL)
        return shown(PlaybookSerializer, selectors.playbook(name))

    @endpoint(
        operation_id="playbooks_publish",
        request=PlaybookRequest,
        answer=ChangedPlaybookSerializer,
        summary="Change a playbook, or make one",
    )
    def put(self, request: Request, name: str) -> Response:
        """Its next version; runs under the one before are undone. A new one is a dry run."""
        require(self.user, Permission.PLAYBOOK_ARM)
        asked = self.body(PlaybookRequest)
        view, changed = services.publish_document(
            name=name,
            document=asked["document"],
            base=asked["base"],
            note=asked["note"],
            actor=actor_of(self.user),
        )
        return Response({**PlaybookSerializer(view).data, "changed": changed})


class Mode(Endpoint):
    """Whether a playbook acts."""

    @endpoint(
        operation_id="playbooks_mode",
        request=PlaybookModeRequest,
        answer=ChangedPlaybookSerializer,
        summary="Arm a playbook, or not",
    )
    def put(self, request: Request, name: str) -> Response:
        """Set it; what ran under the mode before is undone."""
        require(self.user, Permission.PLAYBOOK_ARM)
        asked = self.body(PlaybookModeRequest)
        view, changed = services.set_mode(name=name, actor=actor_of(self.user), **asked)
        return Response({**PlaybookSerializer(view).data, "changed": changed})


class Runs(Endpoint):
    """Runs of a playbook."""

    @endpoint(
        operation_id="playbook_runs_list",
        query=PageQuery,
        answer=page_of(PlaybookRunSerializer),
        summary="List runs of a playbook",
    )
    def get(self, request: Request, name: str) -> Response:
        """Newest first."""
        require(self.user, Permission.VIEW_ALL)
        asked = self.query(PageQuery)
        selectors.playbook(name)
        page = selectors.runs(
            name=name, before_id=key_before(asked.get("after")), limit=asked["limit"]
        )
        return shown_rows(PlaybookRunSerializer, page.rows, page.next_after)


class OneRun(Endpoint):
    """One run."""

    @endpoint(
        operation_id="playbook_runs_read", answer=PlaybookRunDetailSerializer, summary="Read a run"
    )
    def get(self, request: Request, name: str, run_id: int) -> Response:
        """With its acts and the signal over time."""
        require(self.user, Permission.VIEW_ALL)
        return shown(PlaybookRunDetailSerializer, selectors.run(run_id, name=name))


class UndoRun(Endpoint):
    """Take back what a run has done."""

    @endpoint(
        operation_id="playbook_runs_undo",
        request=UndoRequest,
        answer=ChangedPlaybookRunSerializer,
        summary="Undo a run",
    )
    def post(self, request: Request, name: str, run_id: int) -> Response:
        """Everything at once; the playbook leaves that subject alone for 15 minutes."""
        require(self.user, Permission.ACT)
        asked = self.body(UndoRequest)
        selectors.run(run_id, name=name)
        view, changed = services.undo_run(
            run_id=run_id, actor=actor_of(self.user), reason=asked["reason"]
        )
        return Response({**PlaybookRunSerializer(view).data, "changed": changed})


class ApproveRun(Endpoint):
    """Let a run that asks first act."""

    @endpoint(
        operation_id="playbook_runs_approve",
        answer=ChangedPlaybookRunSerializer,
        summary="Approve a run that asks first",
    )
    def post(self, request: Request, name: str, run_id: int) -> Response:
        """It does what it has proposed, and goes on by itself until its signal ends."""
        require(self.user, Permission.PLAYBOOK_ARM)
        selectors.run(run_id, name=name)
        view, changed = services.approve_run(run_id=run_id, actor=actor_of(self.user))
        return Response({**PlaybookRunSerializer(view).data, "changed": changed})
