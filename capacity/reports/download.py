"""A report's file as an HTTP response, for pages and REST alike."""

from django.http import HttpResponse

from capacity.reports.render import KINDS
from capacity.reports.selectors import file_content
from console.errors import NotFound


def download(report_id: int, kind: str) -> HttpResponse:
    """A file as a download. Raises `NotFound`."""
    if kind not in KINDS:
        raise NotFound("No such file.")
    response = HttpResponse(file_content(report_id, kind), content_type=KINDS[kind])
    name = f"headrace-report-{report_id}.{kind}"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    response.headers["Cache-Control"] = "no-store"
    return response
