"""REST: tasks, their calls, and how they ended."""

from rest_framework import serializers
from rest_framework.authentication import SessionAuthentication
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, require, visible_tenant_ids
from console.errors import InvalidInput
from console.rest.authentication import TokenAuthentication
from console.rest.fields import (
    InstantField,
    OfferedField,
    OutSerializer,
    PageQuery,
    StrictNumber,
    StrictSerializer,
    StrictText,
    UsdField,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, shown, shown_rows
from routing.contracts.enums import TaskOutcome
from tenants.directory.access import open_tenant
from tenants.work import selectors, services
from tenants.work.authentication import KeyAuthentication, KeyCaller
from tenants.work.caps import standing_of, stops_of

_OUTCOMES = [item.value for item in TaskOutcome]


class TaskSerializer(OutSerializer):
    """One task: sums of its calls with adjustments, named resources too."""

    id = serializers.IntegerField()
    tenant = serializers.CharField()
    task_id = serializers.CharField(source="task")
    task_kind = serializers.CharField(source="kind")
    parent_id = serializers.CharField(source="parent")
    session_id = serializers.CharField(source="session")
    first_at = InstantField()
    last_at = InstantField()
    outcome = serializers.CharField()
    score_ratio = serializers.FloatField(allow_null=True)
    outcome_at = InstantField(allow_null=True)
    outcome_source = serializers.CharField()
    calls = serializers.IntegerField(source="sums.requests")
    failed = serializers.IntegerField(source="sums.failed")
    cancelled = serializers.IntegerField(source="sums.cancelled")
    input_tokens = serializers.IntegerField(source="sums.input_tokens")
    cached_tokens = serializers.IntegerField(source="sums.cached_tokens")
    output_tokens = serializers.IntegerField(source="sums.output_tokens")
    spend_usd = UsdField(source="sums.spend_nanousd")


class StepSerializer(OutSerializer):
    """One call of a task."""

    request_id = serializers.CharField()
    step = serializers.CharField()
    model = serializers.CharField()
    status = serializers.CharField()
    error_code = serializers.CharField()
    started_at = InstantField()
    first_token_at = InstantField(allow_null=True)
    ended_at = InstantField()
    input_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    net_usd = UsdField(source="net_nanousd")


class CapsSerializer(OutSerializer):
    """Caps of the policy that the task's last call had; null: none."""

    max_steps = serializers.IntegerField(allow_null=True)
    max_spend_usd = UsdField(source="max_spend_nanousd", allow_null=True)
    max_wall_s = serializers.IntegerField()
    max_repeats = serializers.IntegerField(allow_null=True)


class StandingSerializer(OutSerializer):
    """Where a live task stands, from the counters that admit its calls."""

    started_at = InstantField()
    caps = CapsSerializer(allow_null=True)
    steps = serializers.IntegerField()
    held_steps = serializers.IntegerField()
    spend_usd = UsdField(source="spend_nanousd")
    held_usd = UsdField(source="held_nanousd")


class StopSerializer(OutSerializer):
    """A call that a cap refused; its steps are the task's calls."""

    request_id = serializers.CharField()
    at = InstantField()
    model = serializers.CharField()
    step = serializers.CharField()
    limit = serializers.CharField()
    scope = serializers.CharField()


class TaskCapsSerializer(OutSerializer):
    """`standing` is null of a task that is not capped, is over, or cannot be asked for now."""

    standing = StandingSerializer(allow_null=True)
    refused = StopSerializer(many=True)


class TaskQuery(PageQuery):
    """Which tasks to list."""

    tenant = serializers.SlugField(required=False, max_length=63)
    task_kind = serializers.CharField(required=False, max_length=64)
    task_id = serializers.CharField(required=False, max_length=120)
    outcome = OfferedField(required=False, choices=[*_OUTCOMES, selectors.OPEN])


class OutcomeRequest(StrictSerializer):
    """How a task ended. `tenant` is needed from people only: an API key names its own."""

    tenant = StrictText(max_length=63, required=False, default="", allow_blank=True)
    task_id = StrictText(max_length=120)
    outcome = OfferedField(choices=_OUTCOMES)
    score_ratio = StrictNumber(
        required=False, allow_null=True, default=None, min_value=0, max_value=1
    )


class OutcomeSerializer(OutSerializer):
    """What stands now."""

    task_id = serializers.CharField(source="task")
    outcome = serializers.CharField()
    score_ratio = serializers.FloatField(allow_null=True)
    outcome_at = InstantField()


class Tasks(Endpoint):
    """Tasks of agents."""

    @endpoint(
        operation_id="tasks_list",
        query=TaskQuery,
        answer=page_of(TaskSerializer),
        summary="List tasks, newest first",
    )
    def get(self, request: Request) -> Response:
        """Tasks of every tenant that the caller may see."""
        asked = self.query(TaskQuery)
        seen = visible_tenant_ids(self.user)
        if slug := asked.get("tenant"):
            seen = frozenset({open_tenant(self.user, slug).id})
        page = selectors.tasks_page(
            tenant_ids=seen,
            after=asked.get("after"),
            limit=asked["limit"],
            kind=asked.get("task_kind", ""),
            outcome=asked.get("outcome", ""),
            task=asked.get("task_id", ""),
        )
        return shown_rows(TaskSerializer, page.rows, page.next_after)


class Task(Endpoint):
    """One task."""

    @endpoint(operation_id="tasks_read", answer=TaskSerializer, summary="Read a task")
    def get(self, request: Request, task_id: int) -> Response:
        """One task by its number."""
        seen = visible_tenant_ids(self.user)
        return shown(TaskSerializer, selectors.task_by_id(tenant_ids=seen, task_id=task_id))


class TaskSteps(Endpoint):
    """Calls of one task."""

    @endpoint(
        operation_id="task_steps_list",
        query=PageQuery,
        answer=page_of(StepSerializer),
        summary="List a task's calls, oldest first",
    )
    def get(self, request: Request, task_id: int) -> Response:
        """Its calls in order, named resources too."""
        asked = self.query(PageQuery)
        seen = visible_tenant_ids(self.user)
        task = selectors.task_by_id(tenant_ids=seen, task_id=task_id)
        page = selectors.steps_of(task, after=asked.get("after"), limit=asked["limit"])
        return shown_rows(StepSerializer, page.rows, page.next_after)


class TaskCaps(Endpoint):
    """Caps of one task."""

    @endpoint(
        operation_id="task_caps_read",
        answer=TaskCapsSerializer,
        summary="Read a task's caps, what it used, and its newest refused calls",
    )
    def get(self, request: Request, task_id: int) -> Response:
        """Where it stands now, and what a cap refused within the last week."""
        seen = visible_tenant_ids(self.user)
        task = selectors.task_by_id(tenant_ids=seen, task_id=task_id)
        found = {"standing": standing_of(task), "refused": stops_of(task)}
        return shown(TaskCapsSerializer, found)


class TaskOutcomes(Endpoint):
    """Reports of how tasks ended."""

    authentication_classes = [KeyAuthentication, TokenAuthentication, SessionAuthentication]

    @endpoint(
        operation_id="task_outcomes_report",
        request=OutcomeRequest,
        answer=OutcomeSerializer,
        summary="Report how a task ended; the first report stands",
    )
    def post(self, request: Request) -> Response:
        """Idempotent: the same report again changes nothing, another one is a conflict."""
        asked = self.body(OutcomeRequest)
        tenant_id, source = self._tenant(asked["tenant"])
        row = services.report_outcome(
            tenant_id=tenant_id,
            task=asked["task_id"],
            outcome=asked["outcome"],
            score_ratio=asked["score_ratio"],
            source=source,
        )
        return shown(OutcomeSerializer, row)

    def _tenant(self, slug: str) -> tuple[int, str]:
        caller: object = self.request.user
        if isinstance(caller, KeyCaller):
            if slug:
                raise InvalidInput("An API key speaks for its own tenant.", field="tenant")
            return caller.tenant_id, f"key {caller.prefix}"
        if not slug:
            require(self.user, Permission.TENANT_REPORT_OUTCOMES)
            raise InvalidInput("Say whose task it is.", field="tenant")
        found = open_tenant(self.user, slug, Permission.TENANT_REPORT_OUTCOMES)
        return found.id, "person"
