"""Longer history from a Prometheus, when `PROMETHEUS_URL` names one.

Needs the optional package `prometheus-api-client`. It asks by blocking HTTP, so only background
work and shell commands call it, never a page or the request path.
"""

import importlib.util
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from django.conf import settings

logger = logging.getLogger(__name__)

TIMEOUT_S = 15
SERIES_MAX = 200  # of one answer; the rest is left out and said in the log
POINTS_MAX = 10_000  # of one series; Prometheus itself refuses more than 11,000


class HistoryAwayError(Exception):
    """There is no such history, or it cannot be had now; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Ranged:
    """One series of an answer: its labels, and its value at each step; NaN is no value."""

    labels: dict[str, str]
    points: tuple[tuple[datetime, float], ...]


def is_configured() -> bool:
    """Whether a Prometheus was named."""
    return bool(settings.PROMETHEUS_URL)


def query_range(query: str, *, since: datetime, until: datetime, step_s: int) -> list[Ranged]:
    """PromQL over `[since, until]` in steps. Values that are not numbers are left out.

    An idle stretch is NaN in Prometheus' words: it is left out, not taken as 0. Raises
    `HistoryAwayError`, and `ValueError` for a span of more than `POINTS_MAX` steps.
    """
    if step_s <= 0 or (until - since).total_seconds() / step_s > POINTS_MAX:
        raise ValueError(f"at most {POINTS_MAX} steps")
    if not is_configured():
        raise HistoryAwayError("PROMETHEUS_URL is not set")
    if importlib.util.find_spec("prometheus_api_client") is None:
        raise HistoryAwayError(
            "PROMETHEUS_URL is set, but the package prometheus-api-client is not installed"
        )
    rows = _asked(query, since, until, step_s)
    if len(rows) > SERIES_MAX:
        logger.warning("%d series answer %s: the first %d are used", len(rows), query, SERIES_MAX)
    return [_ranged(row) for row in rows[:SERIES_MAX]]


def _asked(query: str, since: datetime, until: datetime, step_s: int) -> list[dict[str, Any]]:
    import requests  # noqa: PLC0415 - comes with the optional package
    from prometheus_api_client import PrometheusConnect  # noqa: PLC0415
    from prometheus_api_client.exceptions import PrometheusApiClientException  # noqa: PLC0415

    try:
        client = PrometheusConnect(url=settings.PROMETHEUS_URL.rstrip("/"), timeout=TIMEOUT_S)
        rows = client.custom_query_range(query, since, until, str(step_s))
    except (PrometheusApiClientException, requests.RequestException, ValueError, KeyError) as error:
        # the address may hold a password, and the error the address
        logger.warning("Prometheus did not answer: %s", type(error).__name__)
        raise HistoryAwayError(f"Prometheus did not answer ({type(error).__name__})") from error
    return list(rows)


def _ranged(row: dict[str, Any]) -> Ranged:
    points = []
    for at_s, text in row.get("values", ())[:POINTS_MAX]:
        value = float(text)  # NaN comes as text
        if isfinite(value):
            points.append((datetime.fromtimestamp(float(at_s), UTC), value))
    labels = {str(name): str(value) for name, value in row.get("metric", {}).items()}
    return Ranged(labels, tuple(points))
