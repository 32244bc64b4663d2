"""What every page shares: sign-in required, refusals as pages, nothing kept by caches."""

from collections.abc import Callable, Collection
from functools import wraps
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.template import loader
from django.views.decorators.http import require_http_methods

from console.errors import DomainError, Forbidden, InvalidInput, NotFound
from console.web.htmx import is_partial

View = Callable[..., HttpResponseBase]

SHOWN_CHARS = 60  # of what was sent, in a refusal

_TITLES = {
    403: "Not allowed",
    404: "Not found",
    409: "Changed meanwhile",
    422: "Not accepted",
}


def page(*methods: str, query: Collection[str] | None = None) -> Callable[[View], View]:
    """Decorate a page that answers `methods` (GET and HEAD are meant by `GET`).

    `query` names the parameters that a page with filters reads. Another one is refused: a filter
    that is silently ignored shows rows that nobody asked for as if they were the answer.

    A visitor without a session goes to sign-in and comes back; a `DomainError` becomes its page
    (for htmx: a fragment with the same status). Responses are `no-store`: after access is lost the
    back button shows nothing.
    """
    allowed = [*methods, "HEAD"] if "GET" in methods else list(methods)

    def decorate(view: View) -> View:
        @wraps(view)
        def inner(request: HttpRequest, **captured: object) -> HttpResponseBase:
            if not request.user.is_authenticated:
                return redirect_to_login(request.get_full_path(), settings.LOGIN_URL)
            try:
                if query is not None:
                    _refuse_unknown(request, query)
                response = view(request, **captured)
            except DomainError as error:
                response = refusal(request, error)
            response.headers.setdefault("Cache-Control", "no-store")
            return response

        guarded: View = require_http_methods(allowed)(inner)
        return guarded

    return decorate


def choice(request: HttpRequest, name: str, known: Collection[str], default: str) -> str:
    """A parameter that takes one of a few words; `default` if absent, `InvalidInput` otherwise."""
    given = request.GET.get(name, "")
    if not given:
        return default
    if given not in known:
        raise InvalidInput(
            f"{name}: there is no {given[:SHOWN_CHARS]!r}.",
            field=name,
            hint=f"One of: {', '.join(known)}.",
        )
    return given


def _refuse_unknown(request: HttpRequest, known: Collection[str]) -> None:
    for name in request.GET:
        if name not in known:
            raise InvalidInput(
                f"{name[:SHOWN_CHARS]}: this page has no such filter.",
                field=name[:SHOWN_CHARS],
                hint=f"It knows: {', '.join(sorted(known))}.",
            )


def refusal(request: HttpRequest, error: DomainError) -> HttpResponse:
    """The page of a refusal; what may not be seen and what does not exist look the same."""
    is_absent = isinstance(error, NotFound) or error.status == 404
    template = "partials/refusal.html" if is_partial(request) else "refused.html"
    context = {
        "title": _TITLES.get(error.status, "Refused"),
        "message": "There is no such page, or it is not yours to see."
        if is_absent
        else error.message,
        "hint": "" if is_absent else error.hint,
        "status": error.status,
    }
    return render(request, template, context, status=error.status)


def query_with(request: HttpRequest, **changes: str | None) -> str:
    """The request's query string with parameters replaced; None removes one. Starts with `?`."""
    values = {key: request.GET[key] for key in request.GET}
    for key, value in changes.items():
        values.pop(key, None)
        if value:
            values[key] = value
    return f"?{urlencode(values)}"


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Handler of unknown addresses."""
    return refusal(request, NotFound("No such page."))


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Handler of what Django itself refuses."""
    return refusal(request, Forbidden("This request is not allowed."))


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """A form that was open too long, or came from elsewhere: nothing was done."""
    message = "This form is no longer valid: nothing was done."
    return refusal(request, Forbidden(message, hint="Open the page again and repeat it."))


def server_error(request: HttpRequest) -> HttpResponse:
    """Handler of failures: names the request id and touches neither database nor store."""
    context = {"request_id": getattr(request, "request_id", "")}
    return HttpResponse(loader.render_to_string("500.html", context), status=500)
