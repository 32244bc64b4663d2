"""The REST reference: what can be called, with which fields, and what comes back."""

from functools import cache

from django.http import HttpRequest, HttpResponseBase
from drf_spectacular.generators import SchemaGenerator

from console.rest.reference import Topic, topics
from console.web.htmx import render
from console.web.views import page


@page("GET")
def reference(request: HttpRequest) -> HttpResponseBase:
    """Every operation, for everyone who is signed in; no scripts and no other host's files."""
    context = {
        "topics": _topics(),
        "base_url": f"{request.scheme}://{request.get_host()}",
    }
    return render(request, "console/reference.html", "", context)


@cache
def _topics() -> tuple[Topic, ...]:
    """Made once a process: the document follows from the code alone."""
    return topics(SchemaGenerator().get_schema(request=None, public=True))  # type: ignore[no-untyped-call]
