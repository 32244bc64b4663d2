"""Light, dark or auto: a cookie, so that the first byte of a page already has the right theme."""

from urllib.parse import urlsplit

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

THEMES = ("auto", "light", "dark")
COOKIE = "headrace_theme"  # `app.js` writes the same one
COOKIE_AGE_S = 365 * 24 * 3600


def theme_of(request: HttpRequest) -> str:
    """The visitor's theme; `auto` if none was chosen."""
    chosen = request.COOKIES.get(COOKIE, "")
    return chosen if chosen in THEMES else THEMES[0]


@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Remember the chosen theme and go back: the switch without scripts."""
    target = urlsplit(request.POST.get("next", "/"))
    path = target.path + (f"?{target.query}" if target.query else "")
    if not url_has_allowed_host_and_scheme(path, allowed_hosts=None):
        path = "/"
    response = HttpResponseRedirect(path)
    chosen = request.POST.get("theme", "")
    if chosen in THEMES:
        response.set_cookie(
            COOKIE, chosen, max_age=COOKIE_AGE_S, samesite="Lax", secure=request.is_secure()
        )
    return response
