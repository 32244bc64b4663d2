"""Capacity reports: schedules, the archive, one report, and its files."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone

from capacity.reports import selectors, services
from capacity.reports.document import document_of
from capacity.reports.download import download
from capacity.reports.mail import sink_words
from capacity.reports.render import KINDS, charts_of
from capacity.reports.rules.due import ZONES, last_hours, unfinished_min
from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.errors import DomainError
from console.web.forms import ServiceForm
from console.web.htmx import render, render_form
from console.web.keyset import DEFAULT_LIMIT
from console.web.tables import Column, number, pager
from console.web.views import page

SCHEDULE_COLUMNS = (
    Column("Schedule"),
    Column("When"),
    Column("State"),
    Column("Next", "UTC"),
    number("Recipients"),
)
COLUMNS = (
    Column("Report"),
    Column("Of", meaning="Its schedule; asked: without one"),
    Column("State"),
    Column("Due", "UTC"),
    Column("Period"),
    Column("Files"),
    number("Mailed", meaning="Mails handed over, of those to send"),
)


class ScheduleForm(ServiceForm):
    """When a report is due, and who gets it."""

    name = forms.SlugField(max_length=64)
    cadence = forms.ChoiceField(choices=[("daily", "every day"), ("weekly", "every week")])
    weekday = forms.TypedChoiceField(
        coerce=int,
        choices=list(enumerate(selectors.WEEKDAYS)),
        help_text="Counts for a weekly report.",
    )
    at_time = forms.TimeField(
        label="At",
        input_formats=["%H:%M"],
        widget=forms.TimeInput(attrs={"type": "time"}, format="%H:%M"),
        help_text="A time that a clock change leaves out is due when the clocks jump; "
        "one that comes twice, the first time.",
    )
    timezone = forms.ChoiceField(
        label="Time zone", choices=lambda: [(zone, zone) for zone in sorted(ZONES)]
    )
    recipients = forms.CharField(
        required=False,
        max_length=6000,
        widget=forms.Textarea(attrs={"rows": 3, "class": "short"}),
        help_text="Mail addresses, one a line. The report holds every tenant's figures.",
    )
    is_enabled = forms.BooleanField(label="Reports are issued", required=False, initial=True)

    def clean_recipients(self) -> list[str]:
        """Addresses without empty lines."""
        lines = str(self.cleaned_data["recipients"]).replace(",", "\n").splitlines()
        return [line.strip() for line in lines if line.strip()]


class IssueForm(ServiceForm):
    """A report of the last whole hours."""

    hours = forms.TypedChoiceField(
        label="Over the last",
        coerce=int,
        choices=[(6, "6 h"), (24, "24 h"), (72, "3 days"), (168, "7 days")],
        initial=24,
    )


@page("GET", query=("name", "after"))
def reports(request: HttpRequest) -> HttpResponseBase:
    """Schedules, then the archive, newest first."""
    require(request.user, Permission.VIEW_ALL)
    name = request.GET.get("name", "")[:64]
    rows = selectors.report_page(name=name, after=request.GET.get("after"), limit=DEFAULT_LIMIT)
    now = timezone.now()
    context = {
        "schedules": selectors.schedules(),
        "schedule_columns": SCHEDULE_COLUMNS,
        "page": rows,
        "pager": pager(request, rows, "rows"),
        "columns": COLUMNS,
        "name": name,
        "form": IssueForm(),
        "ends_at": last_hours(now, 1).until,
        "left_out_min": unfinished_min(now),
        "sink": sink_words(),
        "may_manage": can(request.user, Permission.MANAGE_SCHEDULES),
        "may_act": can(request.user, Permission.ACT),
    }
    return render(request, "capacity/reports.html", "rows", context)


@page("GET")
def report(request: HttpRequest, report_id: int) -> HttpResponseBase:
    """A report as its files show it."""
    require(request.user, Permission.VIEW_ALL)
    figures = selectors.figures_of(report_id)
    context: dict[str, object] = {"view": selectors.report(report_id), "kinds": tuple(KINDS)}
    if figures is not None:
        charts = charts_of(figures)
        document = document_of(figures)
        context |= {
            "document": document,
            "sections": [(section, charts[section.slug]) for section in document.sections],
        }
    return render(request, "capacity/report.html", "", context)


@page("GET")
def report_file(request: HttpRequest, report_id: int, kind: str) -> HttpResponseBase:
    """Download one."""
    require(request.user, Permission.VIEW_ALL)
    return download(report_id, kind)


@page("POST")
def issue_now(request: HttpRequest) -> HttpResponseBase:
    """Queue a report of the last hours."""
    require(request.user, Permission.ACT)
    form = IssueForm(request.POST)
    if form.is_valid():
        report_id = services.ask_report(
            hours=form.cleaned_data["hours"], zone="UTC", actor=acting(request)
        )
        messages.success(request, f"Report {report_id} is queued; it appears below.", "ok")
    else:
        messages.error(request, "Choose one of the periods.", "bad")
    return redirect("reports")


@page("GET", "POST")
def new_schedule(request: HttpRequest) -> HttpResponseBase:
    """Create a schedule."""
    require(request.user, Permission.MANAGE_SCHEDULES)
    form = ScheduleForm(request.POST or None, initial={"timezone": "UTC", "at_time": "06:00"})
    if request.method == "POST" and form.is_valid():
        try:
            services.create_schedule(actor=acting(request), **form.cleaned_data)
        except DomainError as error:
            form.add_refusal(error)
        else:
            text = f"Schedule {form.cleaned_data['name']} is on its way to its first due time."
            messages.success(request, text, "ok")
            return redirect("reports")
    context = {"form": form, "title": "New report schedule"}
    return render_form(request, "capacity/report_schedule.html", context)


@page("GET", "POST")
def edit_schedule(request: HttpRequest, name: str) -> HttpResponseBase:
    """Change one; a change never issues what was due before it."""
    require(request.user, Permission.MANAGE_SCHEDULES)
    view = selectors.schedule(name)
    initial = {
        "cadence": view.cadence,
        "weekday": view.weekday,
        "at_time": view.at_time,
        "timezone": view.timezone,
        "recipients": "\n".join(view.recipients),
        "is_enabled": view.is_enabled,
    }
    form = ScheduleForm(request.POST or None, initial=initial)
    del form.fields["name"]
    if request.method == "POST" and form.is_valid():
        sent = request.POST.get("version", "")
        version = int(sent) if sent.isascii() and sent.isdigit() and len(sent) < 9 else 0
        try:
            services.change_schedule(
                name=name, version=version, actor=acting(request), **form.cleaned_data
            )
        except DomainError as error:
            form.add_refusal(error)
        else:
            messages.success(request, f"Schedule {name} is changed.", "ok")
            return redirect("reports")
    context = {"form": form, "title": f"Schedule {name}", "view": view}
    return render_form(request, "capacity/report_schedule.html", context)


@page("POST")
def remove(request: HttpRequest, name: str) -> HttpResponseBase:
    """Delete a schedule; the archive keeps its reports."""
    require(request.user, Permission.MANAGE_SCHEDULES)
    services.remove_schedule(name=name, actor=acting(request))
    messages.success(request, f"Schedule {name} is removed; its reports stay.", "ok")
    return redirect(reverse("reports"))
