"""Every refusal as one body: `{code, title, status, field, hint, request_id}`.

Several bad fields add `errors`, a refused policy adds `findings`. Unexpected errors say nothing of
their inside; the log has it under the request id.
"""

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

from django.core.exceptions import (
    BadRequest,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.db import DatabaseError, DataError
from django.http import Http404, UnreadablePostError
from django.http.multipartparser import MultiPartParserError
from rest_framework import exceptions
from rest_framework.response import Response

from console.errors import DomainError
from console.outage.lost import AWAY_HEADER, RETRY_AFTER_S, lost_by, problem_of
from console.rest.requests import request_id_of

logger = logging.getLogger(__name__)

_SERVER_ERROR = 500


class TooLarge(exceptions.APIException):
    """The body is larger than any endpoint takes."""

    status_code = 413
    default_detail = "The body is too large."
    default_code = "too_large"


class Unstorable(exceptions.APIException):
    """A value of the right type that the database cannot hold."""

    status_code = 422
    default_detail = "A value is out of range, or holds characters that cannot be stored."
    default_code = "invalid"


def problem(error: Exception, context: dict[str, Any]) -> Response:
    """The response to an exception of a view."""
    request = context.get("request")
    request_id = request_id_of(request) if request is not None else ""
    if isinstance(error, DomainError):
        return _domain(error, request_id)
    if isinstance(error, exceptions.ValidationError):
        return _validation(error, request_id)
    error = _as_refusal(error)
    if isinstance(error, exceptions.APIException):
        return _framework(error, request_id)
    lost = lost_by(error)
    if lost is not None:
        logger.warning("request %s not answered: %s", request_id, lost.title)
        headers = {"Retry-After": str(RETRY_AFTER_S), AWAY_HEADER: lost.title}
        return Response(problem_of(lost, request_id), status=503, headers=headers)
    if isinstance(error, DatabaseError):
        logger.error("request %s failed: a server is away", request_id, exc_info=error)
        body = problem_body("unavailable", "A server that this needs is away.", 503, request_id)
        body["hint"] = "Try again shortly."
        return Response(body, status=503, headers={"Retry-After": str(RETRY_AFTER_S)})
    logger.error("request %s failed", request_id, exc_info=error)
    return Response(
        problem_body("internal", "Unexpected error.", 500, request_id), status=_SERVER_ERROR
    )


def problem_body(code: str, title: str, status: int, request_id: str) -> dict[str, Any]:
    """The body of a refusal that no field is at fault for."""
    return {
        "code": code,
        "title": title,
        "status": status,
        "field": "",
        "hint": "",
        "request_id": request_id,
    }


def _as_refusal(error: Exception) -> Exception:
    """What Django raises about a request, as the framework's refusal; others as they are.

    The order matters: a body that is too big is also a suspicious operation, a value that the
    database cannot hold is also a database error.
    """
    refused: exceptions.APIException | None = None
    if isinstance(error, Http404):
        refused = exceptions.NotFound()
    elif isinstance(error, PermissionDenied):
        refused = exceptions.PermissionDenied()
    elif isinstance(error, RequestDataTooBig):
        refused = TooLarge()
    elif isinstance(error, UnreadablePostError):
        refused = exceptions.ParseError("The body ended early: send it again.")
    elif isinstance(error, SuspiciousOperation | BadRequest | MultiPartParserError):
        refused = exceptions.ParseError()
    elif isinstance(error, DataError | UnicodeEncodeError):
        refused = Unstorable()
    return error if refused is None else refused


def _domain(error: DomainError, request_id: str) -> Response:
    body = problem_body(error.code, error.message, error.status, request_id)
    body["field"], body["hint"] = error.field, error.hint
    findings = getattr(error, "findings", None)
    if findings:
        body["findings"] = [dataclasses.asdict(finding) for finding in findings]
    changes = getattr(error, "changes", None)
    if changes:
        body["changes"] = [dataclasses.asdict(change) for change in changes]
    return Response(body, status=error.status)


def _validation(error: exceptions.ValidationError, request_id: str) -> Response:
    faults = list(_flat(error.detail, ""))
    field, code, title = faults[0] if faults else ("", "invalid", "Invalid input.")
    body = problem_body(
        code, f"{field}: {title}" if field else title, error.status_code, request_id
    )
    body["field"] = field
    body["errors"] = [
        {"field": field, "code": code, "title": title} for field, code, title in faults
    ]
    return Response(body, status=error.status_code)


def _flat(detail: Any, path: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(detail, dict):
        for name, inner in detail.items():
            is_whole = name == "non_field_errors"
            yield from _flat(inner, path if is_whole else f"{path}.{name}" if path else str(name))
    elif isinstance(detail, list):
        for inner in detail:
            yield from _flat(inner, path)
    else:
        yield path, getattr(detail, "code", "invalid"), str(detail)


def _framework(error: exceptions.APIException, request_id: str) -> Response:
    codes = error.get_codes()
    code = codes if isinstance(codes, str) else error.default_code
    headers: dict[str, str] = {}
    challenge = getattr(error, "auth_header", None)
    if challenge:
        headers["WWW-Authenticate"] = challenge
    wait_s = getattr(error, "wait", None)
    if wait_s:
        headers["Retry-After"] = str(int(wait_s) + 1)
    body = problem_body(code, str(error.detail), error.status_code, request_id)
    return Response(body, status=error.status_code, headers=headers)
