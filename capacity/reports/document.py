"""A report as sections of tables and charts, made from its figures alone.

Pages, HTML, and PDF draw this; CSV and JSON hold the figures themselves.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from capacity.reports.happened import happened
from capacity.reports.sections import Document, Section, Table, instant_of
from console.web import units
from console.web.plots import Bars, Chart, Line, Span
from console.web.tables import Column, number

WORDS = {"requests": "Requests", "input_tokens": "Input tokens", "output_tokens": "Output tokens"}
PERCENT = 100.0
OBJECTIVE_COLUMNS = (
    Column("Objective"),
    number("Judged"),
    number("Good"),
    number("Goodput", "%"),
    number("Target", "%"),
)
CLASS_COLUMNS = (
    Column("Class"),
    number("Requests"),
    number("Failed"),
    number("Refused"),
    number("TTFT p50", "ms"),
    number("p95", "ms"),
    number("p99", "ms"),
)


def document_of(figures: Mapping[str, Any]) -> Document:
    """The document of a report's figures."""
    zone = str(figures["timezone"])
    since, until = (units.moment(instant_of(figures[name]), zone) for name in ("since", "until"))
    return Document(
        title="Capacity report",
        period=f"{since} to {until}{_left_out(figures)}",
        facts=_facts(figures),
        sections=(
            _demand(figures, zone),
            _service(figures),
            _pools(figures, zone),
            _spend(figures),
            _replicas(figures),
            happened(figures, zone),
        ),
    )


def _left_out(figures: Mapping[str, Any]) -> str:
    minutes = figures.get("left_out_min", 0)  # older reports do not say
    if not minutes:
        return ""
    return f", the last whole hour; {minutes} min of traffic after it are not in it"


def _facts(figures: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    totals = figures["totals"]
    kv = [pool["kv_max_ratio"] for pool in figures["pools"] if pool["kv_max_ratio"] is not None]
    short: dict[str, int] = {}  # by model: each of its pools counts all of its replicas
    for plan in figures["plans"]:
        short[plan["model"]] = max(short.get(plan["model"], 0), plan["short_by"])
    return (
        ("Requests", units.count(totals["requests"]), ""),
        ("Failed", units.count(totals["failed"]), ""),
        ("Input", units.count(totals["input_tokens"]), "tok"),
        ("Output", units.count(totals["output_tokens"]), "tok"),
        ("Spend", units.usd_short(totals["spend_nanousd"]), "USD"),
        ("KV max", units.percent(max(kv, default=None)), ""),
        ("Replicas short", units.count(sum(short.values())), ""),
    )


def _demand(figures: Mapping[str, Any], zone: str) -> Section:
    rows = tuple(
        (
            series["model"],
            WORDS[series["measure"]],
            units.count(series["came"]),
            f"{series['compared_hours']} of {len(series['hours'])}",
            units.percent(series["error_ratio"], 1),
            units.percent(series["coverage_ratio"]),
        )
        for series in figures["demand"]
    )
    columns = (
        Column("Model"),
        Column("Measure"),
        number("Came"),
        number("Hours compared"),
        number("Error", "%"),
        number("Inside", "%"),
    )
    return Section(
        "demand",
        "Demand against its forecast",
        "The forecast of an hour is the one made 24 hours before its end. Error: sum of absolute "
        "errors over sum of what came; inside: share of hours inside p5 to p95, 90 % is meant.",
        (Table("Demand and forecast", columns, rows),) if rows else (),
        tuple(_demand_chart(series, zone) for series in figures["demand"]),
        "" if rows else "No request was booked in this period.",
    )


def _demand_chart(series: Mapping[str, Any], zone: str) -> Chart:
    hours = series["hours"]
    word = WORDS[series["measure"]]
    is_said = series["compared_hours"] > 0
    lines = [Line("came", _column(hours, "came"))]
    if is_said:
        lines.append(Line("p50, a day before", _column(hours, "p50"), is_dashed=True))
    return Chart(
        title=f"{series['model']}: {word.lower()}",
        unit=f"{'requests' if series['measure'] == 'requests' else 'tok'}/h, {zone}",
        labels=_labels(hours, zone),
        lines=tuple(lines),
        sentence=f"{word} of {series['model']} by hour, {units.count(series['came'])} in all",
        span=Span("p5 to p95", _column(hours, "p5"), _column(hours, "p95")) if is_said else None,
    )


def _service(figures: Mapping[str, Any]) -> Section:
    kept = tuple(
        (
            one["objective"],
            units.count(one["total"]),
            units.count(one["good"]),
            units.percent(one["good_ratio"], 2),
            units.percent(one["target_ratio"], 2),
        )
        for one in figures["objectives"]
    )
    classes = tuple(
        (
            one["work_class"],
            units.count(one["requests"]),
            units.count(one["failed"]),
            units.count(one["refused"]),
            _ms(one["ttft_p50_s"]),
            _ms(one["ttft_p95_s"]),
            _ms(one["ttft_p99_s"]),
        )
        for one in figures["classes"]
    )
    judged = tuple(
        (one["objective"], one["good_ratio"] * PERCENT, units.percent(one["good_ratio"], 2))
        for one in figures["objectives"]
        if one["good_ratio"] is not None
    )
    bars = Bars("Goodput", "% that kept their objective", judged, "Goodput by objective")
    tables = (
        *((Table("Objectives", OBJECTIVE_COLUMNS, kept),) if kept else ()),
        *((Table("By class", CLASS_COLUMNS, classes),) if classes else ()),
    )
    return Section(
        "service",
        "Goodput and service levels",
        "Good: kept its objective, of all that ended or was refused for want of capacity. "
        "TTFT: accepted to first output token.",
        tables,
        (bars,) if judged else (),
        "" if tables else figures["classes_trouble"] or "No request ended in this period.",
    )


def _pools(figures: Mapping[str, Any], zone: str) -> Section:
    columns = (
        Column("Pool"),
        number("KV max", "%"),
        number("KV mean", "%"),
        number("Running max"),
        number("Waiting max"),
        number("Minutes known"),
    )
    rows = tuple(
        (
            pool["pool"],
            units.percent(pool["kv_max_ratio"]),
            units.percent(pool["kv_mean_ratio"]),
            units.count(pool["running_max"]),
            units.count(pool["waiting_max"]),
            f"{pool['known_minutes']:,} of {pool['minutes']:,}",
        )
        for pool in figures["pools"]
    )
    charts: list[Chart | Bars] = []
    for groups, kind in ((figures["pool_hours"], "pool"), (figures["engines"], "model")):
        if groups:
            origin = "pools" if kind == "pool" else "models, from Prometheus"
            charts += [
                _by_hour(groups, kind, "kv_max_ratio", f"KV occupancy of {origin}", "% max", zone),
                _by_hour(groups, kind, "waiting_max", f"Queue in {origin}", "waiting max", zone),
            ]
    note = "Sampled once a minute; a chart shows the largest sample of each hour."
    if figures["engines_trouble"]:
        note += f" No figures from Prometheus: {figures['engines_trouble']}"
    return Section(
        "pools",
        "KV cache and queue",
        note,
        (Table("By pool", columns, rows),) if rows else (),
        tuple(charts),
        "" if rows or charts else "No pool was sampled in this period.",
    )


def _by_hour(
    groups: Sequence[Mapping[str, Any]], kind: str, name: str, title: str, unit: str, zone: str
) -> Chart:
    scale = PERCENT if name.endswith("_ratio") else 1.0
    return Chart(
        title=title,
        unit=f"{unit}, {zone}",
        labels=_labels(groups[0]["hours"], zone),
        lines=tuple(
            Line(group[kind], _column(group["hours"], name, scale), is_dashed=at % 2 == 1)
            for at, group in enumerate(groups)
        ),
        sentence=f"{title}, hour by hour, of {', '.join(group[kind] for group in groups)}",
    )


def _spend(figures: Mapping[str, Any]) -> Section:
    total = figures["totals"]["spend_nanousd"]
    columns = (
        Column("Tenant"),
        number("Spend", "USD"),
        number("Share", "%"),
        number("Requests"),
        number("Input", "tok"),
        number("Output", "tok"),
    )
    rows = tuple(
        (
            one["tenant"],
            units.usd(one["spend_nanousd"]),
            units.percent(one["spend_nanousd"] / total, 1) if total else units.UNKNOWN,
            units.count(one["requests"]),
            units.count(one["input_tokens"]),
            units.count(one["output_tokens"]),
        )
        for one in figures["tenants"]
    )
    bars = Bars(
        "Spend by tenant",
        "USD",
        tuple(
            (one["tenant"], float(one["spend_nanousd"]), units.usd_short(one["spend_nanousd"]))
            for one in figures["tenants"]
        ),
        "Spend by tenant, dearest first",
    )
    return Section(
        "spend",
        "Spend by tenant",
        f"Exact amounts of the ledger; {units.usd(total)} USD over all tenants.",
        (Table("By tenant, dearest first", columns, rows),) if rows else (),
        (bars,) if rows else (),
        "" if rows else "Nothing was spent in this period.",
    )


def _replicas(figures: Mapping[str, Any]) -> Section:
    columns = (
        Column("Pool"),
        Column("Model"),
        number("Ready"),
        number("Now"),
        number("Domain lost"),
        number("Quarter lost"),
        number("Short by"),
        Column("Set by"),
        Column("Binds"),
        Column("Demand from"),
    )
    rows = tuple(
        (
            plan["pool"],
            plan["model"],
            units.count(plan["ready_replicas"]),
            units.count(plan["need_now"]),
            units.count(plan["need_domain_lost"]),
            units.count(plan["need_quarter_lost"]),
            units.UNKNOWN if plan["trouble"] else units.count(plan["short_by"]),
            plan["set_by"],
            plan["binds"],
            plan["trouble"] or plan["basis"],
        )
        for plan in figures["plans"]
    )
    as_of = figures["plan_as_of"]
    needed = tuple(
        (
            plan["pool"],
            float(plan["need"]),
            _needed_words(plan),
        )
        for plan in figures["plans"]
        if plan["need"] is not None
    )
    bars = Bars("Replicas needed", "replicas", needed, "Replicas needed by pool")
    return Section(
        "replicas",
        "Replicas needed",
        "By closed forms over the forecast: now, so that enough are left when one failure domain "
        "is lost, and when a quarter of the fleet is."
        + (f" As of {units.moment(instant_of(as_of))}." if as_of else ""),
        (Table("By pool", columns, rows),) if rows else (),
        (bars,) if needed else (),
        "" if rows else "No forecast run had ended.",
    )


def _needed_words(plan: Mapping[str, Any]) -> str:
    return f"{plan['need']} needed, {plan['ready_replicas']} ready"


def _column(
    hours: Sequence[Mapping[str, Any]], name: str, scale: float = 1.0
) -> tuple[float | None, ...]:
    return tuple(None if hour[name] is None else hour[name] * scale for hour in hours)


def _labels(hours: Sequence[Mapping[str, Any]], zone: str) -> tuple[str, ...]:
    tz = ZoneInfo(zone)
    return tuple(instant_of(hour["at"]).astimezone(tz).strftime("%d %b %H:%M") for hour in hours)


def _ms(value_s: float | None) -> str:
    return units.UNKNOWN if value_s is None else f"{value_s * 1000:,.0f}"
