"""Parts of the OpenAPI document that every endpoint shares."""

from collections.abc import Callable
from typing import Any, TypeVar

from drf_spectacular.utils import (
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
    inline_serializer,
)
from rest_framework import serializers

from console.rest.fields import OutSerializer, PageQuery
from console.rest.idempotency import once

Method = TypeVar("Method", bound=Callable[..., Any])

_WRITES = frozenset({"post", "put", "patch", "delete"})
_REPEATABLE = (
    "8 to 200 visible characters that name this act. The same call with the same key within 24 h"
    " is answered as the first one was and does nothing; a refused call may be mended and sent"
    " again with it."
)


class ProblemSerializer(OutSerializer):
    """A refusal (`console.rest.errors`)."""

    code = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    field = serializers.CharField()
    hint = serializers.CharField()
    request_id = serializers.CharField()
    part = serializers.CharField(required=False)


def page_of(item: type[OutSerializer]) -> Any:
    """The schema of a page of items."""
    name = item.__name__.removesuffix("Serializer") + "Page"
    return inline_serializer(
        name=name,
        fields={"items": item(many=True), "next": serializers.CharField(allow_null=True)},
    )


def endpoint(
    *,
    answer: Any = None,
    request: Any = None,
    query: type[PageQuery] | Any = None,
    status: int = 200,
    summary: str = "",
    operation_id: str,
    is_read: bool = False,
    if_match: str = "",
) -> Callable[[Method], Method]:
    """Describe one method of an endpoint: what it takes, gives, and how it refuses.

    A write also takes an `Idempotency-Key` and is carried out once for it; `is_read` marks a POST
    that changes nothing. `if_match` says what that header has to name, where it is taken.
    """

    def described(method: Method) -> Method:
        is_write = method.__name__ in _WRITES and not is_read
        parameters = [] if query is None else [query]
        if if_match:
            parameters.append(_header("If-Match", if_match))
        if is_write:
            parameters.append(_header("Idempotency-Key", _REPEATABLE))
        gives: Any = OpenApiResponse(description="Done.") if answer is None else answer
        describe: Callable[[Method], Method] = extend_schema(
            operation_id=operation_id,
            summary=summary,
            request=request,
            parameters=parameters or None,
            responses={status: gives, "4XX": ProblemSerializer},
        )
        return describe(once(method) if is_write else method)

    return described


def _header(name: str, note: str) -> OpenApiParameter:
    return OpenApiParameter(name, str, OpenApiParameter.HEADER, description=note)
