"""REST: the state of the installation, the audit trail and background jobs.

They stand here, above roles, because their slices lie below them or know no roles.
"""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, actor_of, require
from console.audit.selectors import AuditFilter, trail, verify_chain
from console.conditions.report import as_values
from console.jobs.selectors import job, jobs
from console.jobs.services import cancel
from console.pages.conditions import report
from console.rest.fields import InstantField, OutSerializer, PageQuery, StrictSerializer, StrictText
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, key_before, shown, shown_page


class AuditEventSerializer(OutSerializer):
    """One act."""

    id = serializers.IntegerField()
    at = InstantField()
    actor = serializers.CharField()
    act = serializers.CharField()
    object_type = serializers.CharField()
    object_id = serializers.CharField()
    tenant_id = serializers.IntegerField(allow_null=True)
    reason = serializers.CharField()
    before = serializers.JSONField(allow_null=True)
    after = serializers.JSONField(allow_null=True)
    request_id = serializers.CharField()
    hash = serializers.CharField()


class AuditQuery(PageQuery):
    """Which acts to list."""

    tenant_id = serializers.IntegerField(required=False)
    actor_id = serializers.IntegerField(required=False)
    object_type = serializers.CharField(required=False, max_length=64)
    object_id = serializers.CharField(required=False, max_length=64)


class ChainSerializer(OutSerializer):
    """Result of reading the whole chain."""

    is_intact = serializers.BooleanField()
    checked_count = serializers.IntegerField()
    broken_at_id = serializers.IntegerField(allow_null=True)
    last_hash = serializers.CharField()


class Trail(Endpoint):
    """The audit trail."""

    @endpoint(
        operation_id="audit_list",
        query=AuditQuery,
        answer=page_of(AuditEventSerializer),
        summary="List audited acts",
    )
    def get(self, request: Request) -> Response:
        """Acts, newest first."""
        require(self.user, Permission.VIEW_AUDIT)
        asked = self.query(AuditQuery)
        tenant_id = asked.get("tenant_id")
        found = trail(
            AuditFilter(
                tenant_ids=None if tenant_id is None else frozenset({tenant_id}),
                actor_id=asked.get("actor_id"),
                object_type=asked.get("object_type"),
                object_id=asked.get("object_id"),
            ),
            before_id=key_before(asked.get("after")),
            limit=asked["limit"] + 1,
        )
        return shown_page(AuditEventSerializer, found, asked["limit"], lambda line: line.id)


class Verification(Endpoint):
    """The proof that the trail was not tampered with."""

    @endpoint(operation_id="audit_verify", answer=ChainSerializer, summary="Verify the chain")
    def get(self, request: Request) -> Response:
        """Read the whole chain."""
        require(self.user, Permission.EXPORT_AUDIT)
        return shown(ChainSerializer, verify_chain())


class JobSerializer(OutSerializer):
    """A job; `progress_ratio` is 0 to 1, null while unknown."""

    id = serializers.IntegerField()
    kind = serializers.CharField()
    state = serializers.CharField()
    progress_ratio = serializers.FloatField(allow_null=True)
    attempts = serializers.IntegerField()
    max_attempts = serializers.IntegerField()
    run_after = InstantField()
    heartbeat_at = InstantField(allow_null=True)
    error = serializers.CharField()
    created_at = InstantField()
    finished_at = InstantField(allow_null=True)


class JobQuery(PageQuery):
    """Which jobs to list."""

    kind = serializers.CharField(required=False, max_length=64)


class CancelRequest(StrictSerializer):
    """Why a job is stopped."""

    reason = StrictText(max_length=400, required=False, default="", allow_blank=True)


class Jobs(Endpoint):
    """All jobs."""

    @endpoint(
        operation_id="jobs_list",
        query=JobQuery,
        answer=page_of(JobSerializer),
        summary="List jobs",
    )
    def get(self, request: Request) -> Response:
        """Jobs, newest first."""
        require(self.user, Permission.VIEW_ALL)
        asked = self.query(JobQuery)
        found = jobs(
            kind=asked.get("kind"),
            before_id=key_before(asked.get("after")),
            limit=asked["limit"] + 1,
        )
        return shown_page(JobSerializer, found, asked["limit"], lambda line: line.id)


class Job(Endpoint):
    """One job."""

    @endpoint(operation_id="jobs_read", answer=JobSerializer, summary="Read a job")
    def get(self, request: Request, job_id: int) -> Response:
        """Its state and progress."""
        require(self.user, Permission.VIEW_ALL)
        return shown(JobSerializer, job(job_id))


class JobCancel(Endpoint):
    """The end of a job before its time."""

    @endpoint(
        operation_id="jobs_cancel",
        request=CancelRequest,
        answer=JobSerializer,
        summary="Cancel a job",
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Cancel it: queued at once, running at its next checkpoint."""
        require(self.user, Permission.ACT)
        reason = self.body(CancelRequest)["reason"]
        cancel(job_id=job_id, actor=actor_of(self.user), reason=reason)
        return shown(JobSerializer, job(job_id))


class ConditionSerializer(OutSerializer):
    """A part that is not as it should be; `bound` is the limit that holds meanwhile."""

    part = serializers.CharField()
    word = serializers.CharField()
    tone = serializers.ChoiceField(choices=("bad", "warn", "stale"))
    text = serializers.CharField()
    bound = serializers.CharField()
    next_step = serializers.CharField()


class ProcessSerializer(OutSerializer):
    """A process; seconds since its start, since its last word, behind its input, to its start."""

    name = serializers.CharField()
    pid = serializers.IntegerField(allow_null=True)
    port = serializers.IntegerField(allow_null=True)
    readiness = serializers.CharField()
    age_s = serializers.FloatField(allow_null=True)
    heartbeat_age_s = serializers.FloatField(allow_null=True)
    lag_s = serializers.FloatField(allow_null=True)
    version = serializers.CharField()
    restarts = serializers.IntegerField()
    last_reason = serializers.CharField()
    next_start_s = serializers.FloatField(allow_null=True)
    note = serializers.CharField()
    trouble = serializers.CharField()
    pool_max = serializers.IntegerField(allow_null=True)
    log = serializers.CharField()


class SystemSerializer(OutSerializer):
    """What `manage.py status --json` says, as this console sees it."""

    at = serializers.FloatField()
    is_degraded = serializers.BooleanField()
    conditions = ConditionSerializer(many=True)
    code_version = serializers.CharField()
    processes = ProcessSerializer(many=True)
    engines = serializers.ListField(child=serializers.DictField())
    gateways = serializers.ListField(child=serializers.DictField())
    store = serializers.DictField()
    database = serializers.DictField(allow_null=True)
    disks = serializers.ListField(child=serializers.DictField())
    store_error = serializers.CharField()
    snapshot_number = serializers.IntegerField(allow_null=True)


class System(Endpoint):
    """The state of the installation."""

    @endpoint(
        operation_id="system_read",
        answer=SystemSerializer,
        summary="Read what runs and what is degraded",
    )
    def get(self, request: Request) -> Response:
        """Conditions worst first, then every part; about a second at most."""
        require(self.user, Permission.VIEW_ALL)
        return shown(SystemSerializer, as_values(report()))
