"""What answers an address or request that no view has handled: JSON below `/api/`, else a page."""

import sys

from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse

from console.errors import DomainError
from console.outage.lost import lost_by
from console.rest.errors import problem_body
from console.web import views
from console.web.unavailable import unavailable

API_PREFIX = "/api/"


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponseBase:
    """Handler of what is refused before a view is asked: a wrong host, too many fields."""
    if _is_for_programs(request):
        return _problem(request, "bad_request", "This request is malformed.", 400)
    message = "This request is malformed: nothing was done."
    return views.refusal(request, DomainError(message, code="bad_request"))


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponseBase:
    """Handler of what Django itself refuses."""
    if _is_for_programs(request):
        return _problem(request, "forbidden", "This request is not allowed.", 403)
    return views.forbidden(request, exception)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Handler of unknown addresses."""
    if _is_for_programs(request):
        return _problem(request, "not_found", "No such address.", 404)
    return views.not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponseBase:
    """Handler of failures outside the endpoints; the log has them under the request id.

    A server that is away while the session is read or kept fails here too: no fault of ours.
    """
    error = sys.exc_info()[1]
    lost = lost_by(error)
    if lost is not None:
        return unavailable(request, lost, error)
    if _is_for_programs(request):
        return _problem(request, "internal", "Unexpected error.", 500)
    return views.server_error(request)


def _is_for_programs(request: HttpRequest) -> bool:
    return request.path.startswith(API_PREFIX)


def _problem(request: HttpRequest, code: str, title: str, status: int) -> HttpResponse:
    body = problem_body(code, title, status, str(getattr(request, "request_id", "")))
    return JsonResponse(body, status=status, headers={"Cache-Control": "no-store"})
