"""A server that a page needs is away: says which, what goes on without it, and when to try again.

Nothing here asks a server, and nothing of the error reaches the answer: it may hold data.
"""

import logging
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.template import loader

from console.outage.lost import AWAY_HEADER, RETRY_AFTER_S, Lost, lost_by, problem_of

logger = logging.getLogger(__name__)

API_PREFIX = "/api/"
SAFE = ("GET", "HEAD", "OPTIONS")


def unavailable(request: HttpRequest, lost: Lost, error: BaseException | None) -> HttpResponseBase:
    """503 as a page, or as a problem below `/api/`. One line in the log, no trace."""
    request_id = str(getattr(request, "request_id", ""))
    words = type(error).__name__ if error is not None else "-"
    logger.warning("request %s not answered: %s (%s)", request_id, lost.title, words)
    headers = {
        "Retry-After": str(RETRY_AFTER_S),
        "Cache-Control": "no-store",
        AWAY_HEADER: lost.title,
    }
    if request.path.startswith(API_PREFIX):
        body = problem_of(lost, request_id)
        return JsonResponse(body, status=503, headers=headers)
    context = {
        "lost": lost,
        "request_id": request_id,
        "retry_after_s": RETRY_AFTER_S,
        "is_safe": request.method in SAFE,
    }
    html = loader.render_to_string("unavailable.html", context)
    return HttpResponse(html, status=503, headers=headers)


class Unavailable:
    """Middleware: a view that failed because a server is away is answered with its name."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer as the view does."""
        return self.get_response(request)

    def process_exception(
        self, request: HttpRequest, exception: Exception
    ) -> HttpResponseBase | None:
        """503 if a server is away; other failures are not ours."""
        lost = lost_by(exception)
        return None if lost is None else unavailable(request, lost, exception)
