"""REST: rollouts, their timeline, and what may be done with one."""

from collections.abc import Callable
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from capacity.models import OnTooFew, RolloutState
from capacity.rollouts import services
from capacity.rollouts.rules.judging import (
    DEFAULT_ERROR_EXCESS_RATIO,
    DEFAULT_LIMIT_S,
    DEFAULT_REQUESTS,
    DEFAULT_TTFT_RATIO,
    MOST_REQUESTS,
    MOST_TTFT_RATIO,
)
from capacity.rollouts.rules.lanes import (
    DEFAULT_DRAIN_LIMIT_S,
    DEFAULT_LOAD_LIMIT_S,
    DEFAULT_WARM_S,
    LEAST_LOAD_LIMIT_S,
    MOST_PAUSE,
    MOST_PAUSES,
    MOST_S,
)
from capacity.rollouts.selectors import rollout_detail, rollouts_page
from capacity.rollouts.services.acts import Plan
from console.accounts.selectors import Permission, actor_of, require
from console.rest.fields import (
    InstantField,
    OfferedField,
    OutSerializer,
    PageQuery,
    StrictInteger,
    StrictNumber,
    StrictSerializer,
    StrictText,
)
from console.rest.requests import idempotency_key_of
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, shown, shown_rows

STATES = ("active", *RolloutState.values)


class RolloutSerializer(OutSerializer):
    """A rollout; `progress_ratio` is the share of replicas at its new revision."""

    id = serializers.IntegerField()
    pool = serializers.CharField()
    model = serializers.CharField()
    driver = serializers.CharField()
    state = serializers.CharField()
    from_revision = serializers.IntegerField()
    to_revision = serializers.IntegerField()
    reason = serializers.CharField()
    cause = serializers.CharField()
    author = serializers.CharField()
    replicas = serializers.IntegerField()
    replaced = serializers.IntegerField()
    progress_ratio = serializers.FloatField()
    created_at = InstantField()
    ended_at = InstantField(allow_null=True)


class RolloutStepSerializer(OutSerializer):
    """A step of a lane; null times are still to come."""

    step = serializers.CharField()
    begun_at = InstantField(allow_null=True)
    ended_at = InstantField(allow_null=True)
    took_s = serializers.FloatField(allow_null=True)
    note = serializers.CharField()


class JudgedSideSerializer(OutSerializer):
    """Tries on one side; null where nothing was seen."""

    requests = serializers.IntegerField()
    failed = serializers.IntegerField()
    error_ratio = serializers.FloatField(allow_null=True)
    ttft_count = serializers.IntegerField()
    ttft_p50_s = serializers.FloatField(allow_null=True)
    ttft_p95_s = serializers.FloatField(allow_null=True)


class JudgementSerializer(OutSerializer):
    """How the new replica compared with the old ones over the same time."""

    finding = serializers.CharField()
    words = serializers.CharField()
    new = JudgedSideSerializer()
    old = JudgedSideSerializer()


class RolloutLaneSerializer(OutSerializer):
    """One replica replaced by another; `result` is empty while it is under way."""

    number = serializers.IntegerField()
    revision = serializers.IntegerField()
    old = serializers.CharField()
    new = serializers.CharField()
    new_lifecycle = serializers.CharField()
    step = serializers.CharField()
    result = serializers.CharField()
    cause = serializers.CharField()
    judgement = JudgementSerializer(allow_null=True)
    steps = RolloutStepSerializer(many=True)


class RolloutDetailSerializer(OutSerializer):
    """A rollout with its settings before and after, and its timeline."""

    rollout = RolloutSerializer(source="row")
    before = serializers.JSONField()
    after = serializers.JSONField()
    artifact = serializers.CharField()
    engine_version = serializers.CharField()
    load_limit_s = serializers.IntegerField()
    warm_s = serializers.IntegerField()
    drain_limit_s = serializers.IntegerField()
    judge_requests = serializers.IntegerField()
    judge_limit_s = serializers.IntegerField()
    on_too_few = serializers.CharField()
    most_ttft_ratio = serializers.FloatField()
    most_error_excess_ratio = serializers.FloatField()
    pause_after = serializers.ListField(child=serializers.IntegerField())
    progress_ratio = serializers.FloatField()
    ready_replicas = serializers.IntegerField()
    desired_replicas = serializers.IntegerField()
    eta_s = serializers.FloatField(allow_null=True)
    lanes = RolloutLaneSerializer(many=True)


class RolloutsQuery(PageQuery):
    """Which rollouts."""

    pool = serializers.CharField(required=False, default="", max_length=120)
    state = OfferedField(required=False, default="", choices=STATES)


class RolloutRequest(StrictSerializer):
    """A rollout to start. Without `spec` the settings stay: a rolling restart.

    `artifact` is a version of the pool's model, `engine_version` what engines must say of
    themselves. `judge_requests` are needed of the new replica and of the old ones before it is
    judged (0: not at all), for `judge_limit_s` after the slow start; then `on_too_few` decides.
    Its TTFT may be `most_ttft_ratio` times theirs, its error share `most_error_excess_ratio` above
    theirs. `pause_after`: numbers of replaced replicas after which a person is waited for.
    """

    pool = StrictText(max_length=120)
    spec = serializers.DictField(required=False, allow_null=True, default=None)
    artifact = StrictText(required=False, default="", allow_blank=True, max_length=64)
    engine_version = StrictText(required=False, default="", allow_blank=True, max_length=64)
    load_limit_s = StrictInteger(
        required=False,
        default=DEFAULT_LOAD_LIMIT_S,
        min_value=LEAST_LOAD_LIMIT_S,
        max_value=MOST_S,
    )
    warm_s = StrictInteger(required=False, default=DEFAULT_WARM_S, min_value=0, max_value=MOST_S)
    drain_limit_s = StrictInteger(
        required=False, default=DEFAULT_DRAIN_LIMIT_S, min_value=0, max_value=MOST_S
    )
    judge_requests = StrictInteger(
        required=False, default=DEFAULT_REQUESTS, min_value=0, max_value=MOST_REQUESTS
    )
    judge_limit_s = StrictInteger(
        required=False, default=DEFAULT_LIMIT_S, min_value=0, max_value=MOST_S
    )
    on_too_few = OfferedField(required=False, default=OnTooFew.GO_ON.value, choices=OnTooFew.values)
    most_ttft_ratio = StrictNumber(
        required=False, default=DEFAULT_TTFT_RATIO, min_value=1, max_value=MOST_TTFT_RATIO
    )
    most_error_excess_ratio = StrictNumber(
        required=False, default=DEFAULT_ERROR_EXCESS_RATIO, min_value=0, max_value=1
    )
    pause_after = serializers.ListField(
        required=False,
        default=list,
        max_length=MOST_PAUSES,
        child=StrictInteger(min_value=1, max_value=MOST_PAUSE),
    )
    reason = StrictText(max_length=400)


class RolloutActRequest(StrictSerializer):
    """Why."""

    reason = StrictText(required=False, default="", allow_blank=True, max_length=400)


class Rollouts(Endpoint):
    """All rollouts."""

    @endpoint(
        operation_id="rollouts_list",
        query=RolloutsQuery,
        answer=page_of(RolloutSerializer),
        summary="List rollouts, newest first",
    )
    def get(self, request: Request) -> Response:
        """Of all pools, or of one."""
        require(self.user, Permission.VIEW_ALL)
        page = rollouts_page(**self.query(RolloutsQuery))
        return shown_rows(RolloutSerializer, page.rows, page.next_after)

    @endpoint(
        operation_id="rollouts_start",
        request=RolloutRequest,
        answer=RolloutDetailSerializer,
        status=201,
        summary="Start a rollout; with an Idempotency-Key a repeated call starts no second one",
    )
    def post(self, request: Request) -> Response:
        """409 while another one has the pool."""
        require(self.user, Permission.ROLLOUT_RUN)
        asked = self.body(RolloutRequest)
        rollout_id = services.start(
            pool=asked.pop("pool"),
            plan=Plan(**asked | {"pause_after": tuple(asked["pause_after"])}),
            actor=actor_of(self.user),
            idempotency_key=idempotency_key_of(request),
        )
        return shown(RolloutDetailSerializer, rollout_detail(rollout_id), status=201)


class Rollout(Endpoint):
    """One rollout."""

    @endpoint(
        operation_id="rollouts_read", answer=RolloutDetailSerializer, summary="Read a rollout"
    )
    def get(self, request: Request, rollout_id: int) -> Response:
        """With every step of every lane."""
        require(self.user, Permission.VIEW_ALL)
        return shown(RolloutDetailSerializer, rollout_detail(rollout_id))


class _Act(Endpoint):
    """An act on a rollout; repeated, it changes nothing."""

    def done(self, rollout_id: int, act: Callable[..., None]) -> Response:
        """Do it; answers with the rollout."""
        require(self.user, Permission.ROLLOUT_RUN)
        asked: dict[str, Any] = self.body(RolloutActRequest)
        act(rollout_id=rollout_id, actor=actor_of(self.user), **asked)
        return shown(RolloutDetailSerializer, rollout_detail(rollout_id))


class RolloutPause(_Act):
    """Pause."""

    @endpoint(
        operation_id="rollouts_pause",
        request=RolloutActRequest,
        answer=RolloutDetailSerializer,
        summary="Pause a rollout: no further step until it is resumed",
    )
    def post(self, request: Request, rollout_id: int) -> Response:
        """What loads or drains goes on."""
        return self.done(rollout_id, services.pause)


class RolloutResume(_Act):
    """Resume."""

    @endpoint(
        operation_id="rollouts_resume",
        request=RolloutActRequest,
        answer=RolloutDetailSerializer,
        summary="Resume a paused rollout, or the way back of a failed one",
    )
    def post(self, request: Request, rollout_id: int) -> Response:
        """Where it stood."""
        return self.done(rollout_id, services.resume)


class RolloutAbort(_Act):
    """Abort."""

    @endpoint(
        operation_id="rollouts_abort",
        request=RolloutActRequest,
        answer=RolloutDetailSerializer,
        summary="Abort a rollout: no further replica is touched",
    )
    def post(self, request: Request, rollout_id: int) -> Response:
        """Replaced replicas stay as they are."""
        return self.done(rollout_id, services.abort)


class RolloutRollBack(_Act):
    """Roll back."""

    @endpoint(
        operation_id="rollouts_roll_back",
        request=RolloutActRequest,
        answer=RolloutDetailSerializer,
        summary="Bring every replica back to the revision before",
    )
    def post(self, request: Request, rollout_id: int) -> Response:
        """One by one, as forward."""
        return self.done(rollout_id, services.roll_back)
