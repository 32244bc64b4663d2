"""REST: schedules of capacity reports, the archive, and downloads."""

from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from capacity.reports import selectors, services
from capacity.reports.download import download
from console.accounts.selectors import Permission, actor_of, require
from console.rest.fields import (
    InstantField,
    OfferedField,
    OutSerializer,
    PageQuery,
    StrictFlag,
    StrictInteger,
    StrictSerializer,
    StrictText,
)
from console.rest.requests import idempotency_key_of
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, shown, shown_rows


class ReportScheduleSerializer(OutSerializer):
    """When a report is due. `version` goes back with a change."""

    name = serializers.CharField()
    timezone = serializers.CharField()
    at_time = serializers.TimeField(format="%H:%M", help_text="Of the zone's days")
    cadence = serializers.CharField()
    weekday = serializers.IntegerField(help_text="0 is Monday; counts for weekly ones")
    recipients = serializers.ListField(child=serializers.CharField())
    is_enabled = serializers.BooleanField()
    version = serializers.IntegerField()
    next_at = InstantField(allow_null=True)


class ReportScheduleRequest(StrictSerializer):
    """A schedule's settings."""

    timezone = StrictText(max_length=64)
    at_time = serializers.TimeField(input_formats=["%H:%M"])
    cadence = OfferedField(choices=("daily", "weekly"), default="daily")
    weekday = StrictInteger(min_value=0, max_value=6, default=0)
    recipients = serializers.ListField(
        child=StrictText(max_length=254), max_length=services.RECIPIENTS_MAX, default=list
    )
    is_enabled = StrictFlag(default=True)


class NewReportSchedule(ReportScheduleRequest):
    """A schedule to create."""

    name = serializers.SlugField(max_length=64)


class ChangedReportSchedule(ReportScheduleRequest):
    """A schedule's new settings, with the version that they replace."""

    version = StrictInteger(min_value=1)


class ReportFileSerializer(OutSerializer):
    """A file to download."""

    kind = serializers.CharField()
    size_bytes = serializers.IntegerField()
    sha256 = serializers.CharField()


class DeliverySerializer(OutSerializer):
    """A mail: `waiting` or `sent`; `why` says what went wrong so far."""

    to = serializers.CharField()
    state = serializers.CharField()
    why = serializers.CharField()


class ReportSerializer(OutSerializer):
    """A report; `state` is queued, done or missed."""

    id = serializers.IntegerField()
    name = serializers.CharField(help_text="Of its schedule; `asked` without one")
    due_at = InstantField()
    due_on = serializers.DateField(help_text="The zone's day")
    timezone = serializers.CharField()
    since_at = InstantField()
    until_at = InstantField()
    state = serializers.CharField()
    finished_at = InstantField(allow_null=True)
    files = ReportFileSerializer(many=True)
    deliveries = DeliverySerializer(many=True)


class ReportQuery(PageQuery):
    """Filter of the archive."""

    name = serializers.CharField(required=False, default="", max_length=64)


class ReportRequest(StrictSerializer):
    """A report of the last whole hours."""

    hours = StrictInteger(min_value=1, max_value=services.HOURS_MAX, default=24)
    timezone = StrictText(max_length=64, default="UTC")


class ReportSchedules(Endpoint):
    """All schedules."""

    @endpoint(
        operation_id="report_schedules_list",
        answer=ReportScheduleSerializer(many=True),
        summary="List schedules of capacity reports",
    )
    def get(self, request: Request) -> Response:
        """By name; there are at most fifty."""
        require(self.user, Permission.VIEW_ALL)
        return Response(ReportScheduleSerializer(selectors.schedules(), many=True).data)

    @endpoint(
        operation_id="report_schedules_create",
        request=NewReportSchedule,
        answer=ReportScheduleSerializer,
        status=201,
        summary="Create a schedule of capacity reports",
    )
    def post(self, request: Request) -> Response:
        """Its first report is the next due time."""
        require(self.user, Permission.MANAGE_SCHEDULES)
        asked = self.body(NewReportSchedule)
        services.create_schedule(actor=actor_of(self.user), **asked)
        found = selectors.schedule(asked["name"])
        return shown(ReportScheduleSerializer, found, status=201)


class ReportSchedule(Endpoint):
    """One schedule."""

    @endpoint(
        operation_id="report_schedules_read",
        answer=ReportScheduleSerializer,
        summary="Read a schedule of capacity reports",
    )
    def get(self, request: Request, name: str) -> Response:
        """With its next due time."""
        require(self.user, Permission.VIEW_ALL)
        return shown(ReportScheduleSerializer, selectors.schedule(name))

    @endpoint(
        operation_id="report_schedules_change",
        request=ChangedReportSchedule,
        answer=ReportScheduleSerializer,
        summary="Change a schedule of capacity reports",
    )
    def put(self, request: Request, name: str) -> Response:
        """A change never issues what was due before it."""
        require(self.user, Permission.MANAGE_SCHEDULES)
        asked = self.body(ChangedReportSchedule)
        services.change_schedule(name=name, actor=actor_of(self.user), **asked)
        return self.get(request, name)

    @endpoint(
        operation_id="report_schedules_remove",
        status=204,
        summary="Remove a schedule of capacity reports",
    )
    def delete(self, request: Request, name: str) -> Response:
        """Its reports stay in the archive."""
        require(self.user, Permission.MANAGE_SCHEDULES)
        services.remove_schedule(name=name, actor=actor_of(self.user))
        return Response(status=204)


class Reports(Endpoint):
    """The archive."""

    @endpoint(
        operation_id="reports_list",
        query=ReportQuery,
        answer=page_of(ReportSerializer),
        summary="List capacity reports",
    )
    def get(self, request: Request) -> Response:
        """Newest first."""
        require(self.user, Permission.VIEW_ALL)
        asked = self.query(ReportQuery)
        page = selectors.report_page(
            name=asked["name"], after=asked.get("after"), limit=asked["limit"]
        )
        return shown_rows(ReportSerializer, page.rows, page.next_after)

    @endpoint(
        operation_id="reports_ask",
        request=ReportRequest,
        answer=ReportSerializer,
        status=202,
        summary="Issue a capacity report now",
    )
    def post(self, request: Request) -> Response:
        """Queue it; with an `Idempotency-Key`, a repeated call gives the same report."""
        require(self.user, Permission.ACT)
        asked: dict[str, Any] = self.body(ReportRequest)
        report_id = services.ask_report(
            hours=asked["hours"],
            zone=asked["timezone"],
            idempotency_key=idempotency_key_of(request),
            actor=actor_of(self.user),
        )
        return shown(ReportSerializer, selectors.report(report_id), status=202)


class OneReport(Endpoint):
    """One report."""

    @endpoint(operation_id="reports_read", answer=ReportSerializer, summary="Read a report")
    def get(self, request: Request, report_id: int) -> Response:
        """Its state, files and deliveries."""
        require(self.user, Permission.VIEW_ALL)
        return shown(ReportSerializer, selectors.report(report_id))


class ReportDownload(Endpoint):
    """A report's file."""

    @endpoint(
        operation_id="reports_download",
        answer=OpenApiTypes.BINARY,
        summary="Download a report as html, pdf, csv or json",
    )
    def get(self, request: Request, report_id: int, kind: str) -> HttpResponse:
        """The file's bytes."""
        require(self.user, Permission.VIEW_ALL)
        return download(report_id, kind)
