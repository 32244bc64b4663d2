import json

import pytest

from routing.contracts.enums import LimitScope
from routing.decision.types import Reason, Refusal
from routing.gateway.refusal import error_event, error_object, retry_headers, status_of


def lines(refusal: Refusal) -> dict[str, str]:
    pairs = (
        line.split(": ", 1)
        for line in retry_headers(refusal, status_of(refusal)).decode().split("\r\n")
        if line
    )
    return dict(pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_status_and_an_openai_body(reason: Reason) -> None:
    refusal = Refusal(reason, "why")
    assert 400 <= status_of(refusal) <= 504
    error = json.loads(error_object(refusal))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == reason.value
    assert error_event(refusal).startswith(b"data: {")
    assert error_event(refusal).endswith(b"\n\n")


def test_short_waits_are_exact_in_ms_and_rounded_up_in_seconds() -> None:
    found = lines(Refusal(Reason.RATE_LIMITED, "", 0.2, LimitScope.TENANT, "requests_per_minute"))
    assert found == {
        "retry-after": "1", "retry-after-ms": "200", "x-should-retry": "true",
        "x-headrace-limit": "requests_per_minute", "x-headrace-scope": "tenant",
    }  # fmt: skip


def test_long_waits_and_spend_tell_sdks_not_to_retry() -> None:
    assert lines(Refusal(Reason.RATE_LIMITED, "", 121))["x-should-retry"] == "false"
    assert lines(Refusal(Reason.BUDGET_EXCEEDED, "", 5))["x-should-retry"] == "false"
    assert lines(Refusal(Reason.RATE_LIMITED, "", 120))["x-should-retry"] == "true"


def test_overload_names_the_fleet() -> None:
    assert lines(Refusal(Reason.NO_CAPACITY, "", 1.0))["x-headrace-scope"] == "fleet"


def test_a_limit_that_waiting_cannot_help_tells_sdks_not_to_retry() -> None:
    hopeless = Refusal(Reason.RATE_LIMITED, "", None, LimitScope.KEY, "requests_per_minute")
    assert lines(hopeless)["x-should-retry"] == "false"
    assert lines(Refusal(Reason.UPSTREAM_ERROR, "")) == {"x-should-retry": "true"}
