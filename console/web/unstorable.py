"""Refuses what no column can hold before a page sees it: a NUL character in what was sent.

PostgreSQL stores every character but this one, so that one in an address or a form would end as a
failure of ours deep inside a query. The REST API refuses it field by field.
"""

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase, QueryDict

from console.errors import InvalidInput, NotFound
from console.web.views import refusal

GetResponse = Callable[[HttpRequest], HttpResponseBase]

NUL = "\x00"
API_PREFIX = "/api/"  # answers in its own form


class RefuseNul:
    """404 for an address that holds a NUL, 422 naming the field for a parameter that does."""

    def __init__(self, get_response: GetResponse) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Answer, or refuse. Stands behind sign-in: a refusal has the frame of every page."""
        if request.path_info.startswith(API_PREFIX):
            return self.get_response(request)
        if NUL in request.path_info:
            return refusal(request, NotFound("No such page."))
        name = _name_with_nul(request.GET) or _name_with_nul(request.POST)
        if name:
            shown = name.replace(NUL, "␀")
            fault = InvalidInput(f"{shown}: a NUL character cannot be stored.", field=shown)
            return refusal(request, fault)
        return self.get_response(request)


def _name_with_nul(sent: QueryDict) -> str:
    for name, values in sent.lists():
        if NUL in name or any(isinstance(value, str) and NUL in value for value in values):
            return name
    return ""
