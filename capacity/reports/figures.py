"""The figures of a report, gathered once by the selectors that pages use, as plain JSON values.

Every file is made from these and from nothing else, so no two can disagree. Money is integer
nano-dollars, instants are ISO text in UTC, unknown is null.
"""

import logging
from dataclasses import asdict
from datetime import datetime
from typing import Any

from capacity.forecasts.rules.backtest import scored
from capacity.forecasts.rules.bands import Band
from capacity.forecasts.rules.series import HOUR
from capacity.forecasts.selectors import MODELS_MAX, Point, plans, said_a_day_ahead
from capacity.models.forecast import MEASURES
from capacity.playbooks.selectors import runs_between
from capacity.reports.rules.due import Period, unfinished_min
from capacity.rollouts.selectors import rollouts_between
from console.audit.selectors import acts_between
from console.trail.objects import act_words, described
from telemetry.exporters.prometheus import HistoryAwayError, is_configured, query_range
from telemetry.pools.selectors import pool_hours, pool_periods
from telemetry.slices.by_class import TooManyError, class_periods
from telemetry.slos.selectors import judged_between
from tenants.ledger.demand import HourRow, model_hours
from tenants.ledger.selectors import ledger_totals, spend_by_tenant

logger = logging.getLogger(__name__)

SHOWN_MODELS = 5  # with hours of their own, by tokens; the totals hold all
SHOWN_POOLS = 8  # with hours of their own, fullest first
SHOWN_TENANTS = 50  # by spend; the totals hold all
SHOWN_ACTS = 200
SHOWN_RUNS = 100  # of playbooks, and as many rollouts
# Acts that a capacity report lists, by the beginning of their audit name: who changed what. What
# became of a rollout or a playbook's run is told from its own record.
ACTS = (
    "policy.", "rollout.", "playbook.", "override.", "limit.", "capacity_limit.", "quota",
    "pool.", "inventory.",
)  # fmt: skip
SCHEMA = 1
_KV = 'max by (model_name) (max_over_time({__name__="vllm:kv_cache_usage_perc"}[1h]))'
_WAITING = 'max by (model_name) (max_over_time({__name__="vllm:num_requests_waiting"}[1h]))'


def gather(period: Period, zone: str, *, asked_at: datetime | None = None) -> dict[str, Any]:
    """All figures of a period; `asked_at` when a person asked for its last whole hours."""
    since, until = period.since, period.until
    pools = pool_periods(since=since, until=until)
    run, planned = plans(until=until + 24 * HOUR)
    return {
        "schema": SCHEMA,
        "since": since.isoformat(),
        "until": until.isoformat(),
        "timezone": zone,
        "left_out_min": unfinished_min(asked_at) if asked_at else 0,
        "totals": asdict(ledger_totals(tenant_ids=None, since=since, until=until)),
        "demand": _demand(since, until),
        "objectives": [
            {
                "objective": f"{one.label}: {one.promise}",
                "target_ratio": one.target_ratio,
                "total": judged.total,
                "good": judged.good,
                "good_ratio": judged.good_ratio,
            }
            for one, judged in judged_between(since=since, until=until)
        ],
        **_classes(since, until),
        "pools": [asdict(pool) for pool in pools],
        "pool_hours": _pool_hours(since, until, tuple(pool.pool for pool in pools[:SHOWN_POOLS])),
        **_engines(since, until),
        "tenants": [
            {"tenant": spend.label, **asdict(spend.totals)}
            for spend in spend_by_tenant(tenant_ids=None, since=since, until=until)[:SHOWN_TENANTS]
        ],
        "plan_as_of": run.as_of.isoformat() if run else None,
        "plans": [
            {**asdict(plan), "need": plan.need, "short_by": plan.short_by} for plan in planned
        ],
        "rollouts": _rollouts(since, until),
        "playbook_runs": _playbook_runs(since, until),
        "acts": _acts(since, until),
    }


def _acts(since: datetime, until: datetime) -> list[dict[str, Any]]:
    lines = acts_between(ACTS, since=since, until=until, limit=SHOWN_ACTS)
    return [
        {
            "at": one.line.at.isoformat(),
            "actor": one.line.actor,
            "act": act_words(one.line),
            "object": one.object,
            "page": one.url,
            "reason": one.line.reason,
        }
        for one in described(lines)
    ]


def _rollouts(since: datetime, until: datetime) -> list[dict[str, Any]]:
    return [
        {
            "rollout": one.id,
            "pool": one.pool,
            "state": one.state,
            "from_revision": one.from_revision,
            "to_revision": one.to_revision,
            "replicas": one.replicas,
            "replaced": one.replaced,
            "started_at": one.created_at.isoformat(),
            "ended_at": one.ended_at.isoformat() if one.ended_at else None,
            "why": one.cause or one.reason,
        }
        for one in rollouts_between(since, until, SHOWN_RUNS)
    ]


def _playbook_runs(since: datetime, until: datetime) -> list[dict[str, Any]]:
    return [
        {
            "run": one.id,
            "playbook": one.playbook,
            "subject": one.label,
            "state": one.state,
            "is_dry_run": one.is_dry_run,
            "acts": acts,
            "start_value": one.start_value,
            "peak_value": one.peak_value,
            "started_at": one.started_at.isoformat(),
            "ended_at": one.ended_at.isoformat() if one.ended_at else None,
            "why": one.end_reason,
        }
        for one, acts in runs_between(since, until, SHOWN_RUNS)
    ]


def _demand(since: datetime, until: datetime) -> list[dict[str, Any]]:
    by_model: dict[str, list[HourRow]] = {}
    for row in model_hours(since=since, until=until):
        by_model.setdefault(row.model, []).append(row)
    tokens = {
        model: sum(row.input_tokens + row.output_tokens for row in rows)
        for model, rows in by_model.items()
    }
    said = said_a_day_ahead(since=since, until=until)
    largest = sorted(by_model, key=lambda model: (-tokens[model], model))
    return [
        _compared(model, measure, by_model[model], said.get((model, measure), {}), since, until)
        for model in largest[: min(SHOWN_MODELS, MODELS_MAX)]
        for measure in MEASURES
    ]


def _compared(
    model: str,
    measure: str,
    rows: list[HourRow],
    said: dict[datetime, Point],
    since: datetime,
    until: datetime,
) -> dict[str, Any]:
    came = {row.hour_at: getattr(row, measure) for row in rows}
    hours, pairs = [], []
    at = since
    while at < until:
        point = said.get(at)
        hours.append(
            {
                "at": at.isoformat(),
                "came": came.get(at, 0),
                "p5": point.p5 if point else None,
                "p50": point.p50 if point else None,
                "p95": point.p95 if point else None,
            }
        )
        if point is not None:
            pairs.append((Band(point.p5, point.p50, point.p95), float(came.get(at, 0))))
        at += HOUR
    score = scored("", len(pairs), pairs) if pairs else None
    return {
        "model": model,
        "measure": measure,
        "came": sum(came.values()),
        "hours": hours,
        "compared_hours": len(pairs),
        "error_ratio": score.error_ratio if score else None,
        "coverage_ratio": score.coverage_ratio if score else None,
    }


def _classes(since: datetime, until: datetime) -> dict[str, Any]:
    try:
        found = class_periods(since=since, until=until)
    except TooManyError as error:
        return {"classes": [], "classes_trouble": f"Not merged: {error}."}
    return {
        "classes": [asdict(one) for one in found],
        "classes_trouble": "",
    }


def _pool_hours(since: datetime, until: datetime, pools: tuple[str, ...]) -> list[dict[str, Any]]:
    found = {
        (one.pool, one.hour_at): one for one in pool_hours(since=since, until=until, pools=pools)
    }
    return [
        {"pool": pool, "hours": [_worst(found.get((pool, at)), at) for at in _hours(since, until)]}
        for pool in pools
    ]


def _worst(seen: Any, at: datetime) -> dict[str, Any]:
    return {
        "at": at.isoformat(),
        "kv_max_ratio": seen.kv_max_ratio if seen else None,
        "waiting_max": seen.waiting_max if seen else None,
    }


def _engines(since: datetime, until: datetime) -> dict[str, Any]:
    """By model from a Prometheus, if there is one: it may reach further back than our samples."""
    if not is_configured():
        return {"engines": [], "engines_trouble": ""}
    cells: dict[str, dict[datetime, dict[str, float]]] = {}
    try:
        for name, query in (("kv_max_ratio", _KV), ("waiting_max", _WAITING)):
            for series in query_range(query, since=since + HOUR, until=until, step_s=3600):
                hours = cells.setdefault(series.labels.get("model_name", "")[:200], {})
                for at, value in series.points:
                    hours.setdefault(at - HOUR, {})[name] = value
    except HistoryAwayError as error:
        return {"engines": [], "engines_trouble": f"{error}."}
    return {
        "engines": [
            {
                "model": model,
                "hours": [
                    {
                        "at": at.isoformat(),
                        "kv_max_ratio": hours.get(at, {}).get("kv_max_ratio"),
                        "waiting_max": hours.get(at, {}).get("waiting_max"),
                    }
                    for at in _hours(since, until)
                ],
            }
            for model, hours in sorted(cells.items())[:SHOWN_MODELS]
        ],
        "engines_trouble": "",
    }


def _hours(since: datetime, until: datetime) -> list[datetime]:
    return [since + at * HOUR for at in range((until - since) // HOUR)]
