"""Parts of the OpenAPI document that every endpoint shares."""

from collections.abc import Callable
from typing import Any, TypeVar

from drf_spectacular.utils import OpenApiResponse, extend_schema, inline_serializer
from rest_framework import serializers

from console.rest.fields import OutSerializer, PageQuery

Method = TypeVar("Method", bound=Callable[..., Any])


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
) -> Callable[[Method], Method]:
    """Describe one method of an endpoint: what it takes, gives, and how it refuses."""
    gives: Any = OpenApiResponse(description="Done.") if answer is None else answer
    described: Callable[[Method], Method] = extend_schema(
        operation_id=operation_id,
        summary=summary,
        request=request,
        parameters=[query] if query is not None else None,
        responses={status: gives, "4XX": ProblemSerializer},
    )
    return described
