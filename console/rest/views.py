"""The base of every endpoint."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from rest_framework.exceptions import ParseError
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView

from console.errors import BadCursor, DomainError
from console.models import User
from console.rest.fields import OutSerializer, StrictSerializer
from console.rest.requests import StrictJSONParser, request_id_of

T = TypeVar("T")


class Endpoint(APIView):
    """Authenticated, strict about its input, and answering with its request id.

    Permissions are asked in each method, by `console.accounts.selectors`.
    """

    parser_classes = [StrictJSONParser]

    @property
    def user(self) -> User:
        """The caller."""
        return cast("User", self.request.user)

    @property
    def request_id(self) -> str:
        """Id of this request, for the audit trail."""
        return request_id_of(self.request)

    def body(self, kind: type[StrictSerializer]) -> dict[str, Any]:
        """The validated JSON body. Raises `ValidationError` or `ParseError`."""
        return _validated(kind, self.request.data)

    def query(self, kind: type[StrictSerializer]) -> dict[str, Any]:
        """The validated query parameters. Raises `ValidationError`."""
        repeated = [name for name, values in self.request.query_params.lists() if len(values) > 1]
        if repeated:
            raise ParseError(f"The parameter {repeated[0]!r} is said twice.")
        return _validated(kind, self.request.query_params.dict())

    def finalize_response(
        self, request: Request, response: Response, *args: Any, **kwargs: Any
    ) -> Response:
        """Forbid caches to keep what only this caller may see."""
        final = super().finalize_response(request, response, *args, **kwargs)
        final.headers.setdefault("Cache-Control", "no-store")
        return final


def shown(kind: type[OutSerializer], value: object, *, status: int = 200) -> Response:
    """A value through its serializer."""
    return Response(kind(value).data, status=status)


def shown_rows(
    kind: type[OutSerializer], rows: Sequence[object], following: str | None
) -> Response:
    """A page, and the `after` of the next one (None: this was the last)."""
    return Response({"items": kind(rows, many=True).data, "next": following})


def shown_page(
    kind: type[OutSerializer],
    found: Sequence[T],
    limit: int,
    key: Callable[[T], object],
) -> Response:
    """A page of `found`, which was read with one more than `limit` to know whether more follow."""
    items = found[:limit]
    return shown_rows(kind, items, str(key(items[-1])) if len(found) > limit else None)


@contextmanager
def fields_named(names: Mapping[str, str]) -> Iterator[None]:
    """Let a refusal name the field that the caller sent instead of the service's argument."""
    try:
        yield
    except DomainError as error:
        error.field = names.get(error.field, error.field)
        raise


def key_before(after: str | None) -> int | None:
    """The numeric key of `after`. Raises `BadCursor` when it is no `next` of ours."""
    if after is None:
        return None
    if not after.isascii() or not after.isdigit() or len(after) > 18:
        raise BadCursor
    return int(after)


def _validated(kind: type[StrictSerializer], data: Any) -> dict[str, Any]:
    serializer: Serializer[Any] = kind(data=data)
    serializer.is_valid(raise_exception=True)
    return cast("dict[str, Any]", serializer.validated_data)
