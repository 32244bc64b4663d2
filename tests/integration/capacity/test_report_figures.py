"""Every figure of a report equals a query over rows, and every file says the same figures."""

import csv
import io
import json
from datetime import timedelta
from html.parser import HTMLParser
from math import floor
from statistics import fmean

import pytest
from django.db.models import Sum
from django.utils import timezone

from capacity.forecasts.rules.series import hour_of
from capacity.models import Forecast, PlaybookAct, PlaybookRun, PoolPlan, Rollout, RolloutLane
from capacity.reports.document import document_of
from capacity.reports.figures import gather
from capacity.reports.pdf import latin
from capacity.reports.render import files_of
from capacity.reports.rules.due import Period
from console.models import AuditEvent
from console.web.units import usd_short, usd_text
from telemetry.models import ObjectiveMinute, PoolSample, SliceMinute
from telemetry.stats import sketch
from tenants.models import UsageRollup
from tests import factories
from tests.playbooking import make_runs
from tests.reporting import make_day, pdf_text

pytestmark = pytest.mark.django_db


@pytest.fixture
def day(store) -> tuple[Period, dict]:
    world = factories.World()
    factories.make_tenant(world, "acme")
    factories.make_tenant(world, "globex")
    factories.make_fleet(world, {"p-a": 2})
    until = hour_of(timezone.now())
    make_day(world, until)
    UsageRollup.objects.filter(grain="h").update(failed=3, cancelled=2, cached_tokens=70)
    period = Period(until - timedelta(hours=24), until)
    return period, gather(period, "Europe/Berlin")


def rollups(period: Period):
    return UsageRollup.objects.filter(
        grain="h", start_at__gte=period.since, start_at__lt=period.until
    )


def test_totals_and_spend_equal_the_ledgers_rows(day):
    period, figures = day
    names = list(figures["totals"])
    assert len(names) == 7
    for name in names:
        wanted = rollups(period).aggregate(all=Sum(name))["all"]
        assert figures["totals"][name] == wanted > 0
        for tenant in figures["tenants"]:
            own = rollups(period).filter(tenant__slug=tenant["tenant"]).aggregate(all=Sum(name))
            assert tenant[name] == own["all"]
    assert {tenant["tenant"] for tenant in figures["tenants"]} == {"acme", "globex"}
    spent = [tenant["spend_nanousd"] for tenant in figures["tenants"]]
    assert spent == sorted(spent, reverse=True)


def test_each_hour_of_demand_equals_its_rows_and_what_was_said_a_day_before(day):
    period, figures = day
    assert len(figures["demand"]) == 2 * 3
    for series in figures["demand"]:
        assert len(series["hours"]) == 24
        for hour in series["hours"]:
            came = rollups(period).filter(model=series["model"], start_at=hour["at"])
            assert hour["came"] == came.aggregate(all=Sum(series["measure"]))["all"]
        assert series["came"] == sum(hour["came"] for hour in series["hours"])
        said = [hour for hour in series["hours"] if hour["p50"] is not None]
        assert len(said) == series["compared_hours"]
        if series["model"] == "qwen-32b":  # no forecast was made of it
            assert series["compared_hours"] == 0
            assert series["error_ratio"] is None
            continue
        (hour,) = said
        row = Forecast.objects.get(
            model=series["model"], measure=series["measure"], horizon_h=24, tenant="",
            as_of=period.until - timedelta(hours=24),
        )  # fmt: skip
        assert [hour["p5"], hour["p50"], hour["p95"]] == row.points[-1]
        assert hour["at"] == (period.until - timedelta(hours=1)).isoformat()
        assert series["error_ratio"] == pytest.approx(
            abs(hour["p50"] - hour["came"]) / hour["came"]
        )
        assert series["coverage_ratio"] == float(hour["p5"] <= hour["came"] <= hour["p95"])


def test_goodput_equals_the_judged_minutes_and_classes_the_slice_minutes(day):
    period, figures = day
    (one,) = figures["objectives"]
    judged = ObjectiveMinute.objects.filter(minute_at__gte=period.since, minute_at__lt=period.until)
    assert one["total"] == judged.aggregate(all=Sum("total"))["all"] > 0
    assert one["good"] == judged.aggregate(all=Sum("good"))["all"]
    assert one["good_ratio"] == pytest.approx(one["good"] / one["total"])
    found = {row["work_class"]: row for row in figures["classes"]}
    assert set(found) == {"interactive", "standard", "batch"}
    for name, row in found.items():
        minutes = SliceMinute.objects.filter(
            work_class=name, minute_at__gte=period.since, minute_at__lt=period.until
        )
        assert row["requests"] == minutes.aggregate(all=Sum("requests"))["all"] > 0
        assert row["failed"] == minutes.aggregate(all=Sum("failed"))["all"]
        assert row["refused"] == sum(sum(one.refused.values()) for one in minutes)
        seconds = sorted(
            0.99 * sketch.value_of(index)
            for one in minutes
            for index, count in sketch.unpack(bytes(one.ttft_sketch)).items()
            for _ in range(count)
        )
        assert row["samples"] == len(seconds) > 0
        for quantile in (50, 95, 99):  # the lower one, within what a bin spans
            wanted = seconds[floor(quantile / 100 * (len(seconds) - 1))] / 0.99
            assert row[f"ttft_p{quantile}_s"] == pytest.approx(wanted, rel=0.021), (name, quantile)
    assert found["interactive"]["ttft_p50_s"] == pytest.approx(0.54, rel=0.011)


def test_pools_equal_their_samples_and_unknown_is_not_zero(day):
    period, figures = day
    samples = PoolSample.objects.filter(
        pool="p-a", minute_at__gte=period.since, minute_at__lt=period.until
    )
    full, unknown = figures["pools"]
    assert full["minutes"] == full["known_minutes"] == samples.count()
    assert full["kv_max_ratio"] == max(row.kv_max_ratio for row in samples)
    assert full["kv_mean_ratio"] == pytest.approx(fmean(row.kv_mean_ratio for row in samples))
    for name in ("running", "waiting"):
        assert full[f"{name}_max"] == max(getattr(row, name) for row in samples) > 0
    assert unknown["pool"] == "p-z"
    assert (unknown["minutes"], unknown["known_minutes"], unknown["kv_max_ratio"]) == (1, 0, None)
    hours = next(one for one in figures["pool_hours"] if one["pool"] == "p-a")["hours"]
    for hour in hours:
        mine = [row for row in samples if row.minute_at.isoformat()[:13] == hour["at"][:13]]
        assert hour["kv_max_ratio"] == max(row.kv_max_ratio for row in mine)
        assert hour["waiting_max"] == max(row.waiting for row in mine)


def test_replicas_and_changes_equal_their_rows(day):
    period, figures = day
    (row,) = PoolPlan.objects.filter(run__as_of__lte=period.until + timedelta(hours=24)).order_by(
        "-run__as_of", "pool"
    )
    (plan,) = figures["plans"]
    for name in plan.keys() - {"need", "short_by"}:
        assert plan[name] == getattr(row, name), name
    needs = (row.need_now, row.need_domain_lost, row.need_quarter_lost)
    assert plan["need"] == max(need for need in needs if need is not None)
    assert plan["short_by"] == max(0, plan["need"] - row.ready_replicas)
    assert figures["plan_as_of"] == row.run.as_of.isoformat()
    later = gather(Period(period.since, timezone.now() + timedelta(hours=1)), "UTC")
    named = AuditEvent.objects.filter(act__startswith="pool.") | AuditEvent.objects.filter(
        act__startswith="limit."
    )
    said = [(act["at"], act["act"], act["actor"], act["reason"]) for act in later["acts"]]
    assert said == [
        (one.at.isoformat(), one.act.replace(".", " "), one.actor_label, one.reason)
        for one in named.order_by("id")
    ]
    shown = {act["object"]: act["page"] for act in later["acts"]}
    assert shown["pool p-a"] == "/fleet/pools/p-a/"
    assert {object_: page for object_, page in shown.items() if object_.startswith("limit:")}
    for object_, page in shown.items():
        slug = object_.rpartition(" of ")[2]
        assert page == (f"/tenants/{slug}/" if object_.startswith("limit:") else page)
    changes = document_of(later).sections[-1].tables[-1]
    assert ("pool p-a", "/fleet/pools/p-a/") in [line[2] for line in changes.lines]
    assert {page for line in changes.lines for at, (_, page) in enumerate(line) if at != 2} == {""}


def test_rollouts_and_playbook_runs_equal_their_own_records(store, db):
    world = factories.World()
    factories.make_tenant(world, "acme")
    factories.make_people(world)
    factories.make_fleet(world, {"p-a": 2, "p-b": 2, "p-c": 2})
    now = timezone.now()
    for pool in ("p-a", "p-b", "p-c"):
        factories.make_rollout(world, pool)
    before, ended, during = (Rollout.objects.get(pk=pk) for pk in world.rollouts)
    day_ago = now - timedelta(days=1)
    Rollout.objects.filter(pk=before.pk).update(created_at=day_ago, ended_at=day_ago, state="done")
    Rollout.objects.filter(pk=ended.pk).update(
        created_at=day_ago, ended_at=now - timedelta(hours=1), state="rolled_back", cause="no token"
    )
    RolloutLane.objects.filter(rollout=ended).update(result="done")
    make_runs(world, 2)
    old = make_runs(world, 1, started_at=day_ago, ended_at=day_ago + timedelta(hours=1))
    figures = gather(Period(now - timedelta(hours=2), now + timedelta(hours=1)), "UTC")

    found = {one["rollout"]: one for one in figures["rollouts"]}
    assert list(found) == [ended.pk, during.pk]
    for row in Rollout.objects.filter(pk__in=found).select_related("pool"):
        one = found[row.pk]
        lanes = row.lanes.filter(result="done", revision=row.to_revision).count()
        assert one == {
            "rollout": row.pk,
            "pool": row.pool.name,
            "state": row.state,
            "from_revision": row.from_revision,
            "to_revision": row.to_revision,
            "replicas": row.replicas,
            "replaced": lanes,
            "started_at": row.created_at.isoformat(),
            "ended_at": row.ended_at.isoformat() if row.ended_at else None,
            "why": row.cause or row.reason,
        }
    assert found[ended.pk]["replaced"] == 1
    assert found[during.pk]["ended_at"] is None

    rows = PlaybookRun.objects.exclude(pk=old).order_by("pk")
    assert figures["playbook_runs"] == [
        {
            "run": row.pk,
            "playbook": row.playbook.name,
            "subject": row.label,
            "state": "ended" if row.ended_at else "acting",
            "is_dry_run": row.is_dry_run,
            "acts": PlaybookAct.objects.filter(run=row).count(),
            "start_value": row.start_value,
            "peak_value": row.peak_value,
            "started_at": row.started_at.isoformat(),
            "ended_at": row.ended_at.isoformat() if row.ended_at else None,
            "why": row.end_reason,
        }
        for row in rows
    ]
    assert [one["acts"] for one in figures["playbook_runs"]] == [2, 2]

    (happened,) = [one for one in document_of(figures).sections if one.slug == "acts"]
    tables = {table.title: table.rows for table in happened.tables}
    assert [row[3:6] for row in tables["Rollouts"]] == [
        ("rolled back", "1 to 2", "1 of 2"),
        ("running", "1 to 2", "0 of 2"),
    ]
    assert [row[4:6] for row in tables["Runs of playbooks"]] == [("acting", "2"), ("ended", "2")]
    written = pdf_text(files_of(figures)["pdf"]).replace("\n", " ")
    for words in ("rolled back", "no token", "noisy-tenant", "The signal has ended."):
        assert words in written
    # a report that was issued before these were gathered
    older = {name: figures[name] for name in figures.keys() - {"rollouts", "playbook_runs"}}
    assert len(files_of(older)["pdf"]) > 1000


def test_the_headline_facts_equal_their_rows(day):
    period, figures = day
    facts = {name: (value, unit) for name, value, unit in document_of(figures).facts}
    sums = {
        name: rollups(period).aggregate(all=Sum(name))["all"]
        for name in ("requests", "failed", "input_tokens", "output_tokens", "spend_nanousd")
    }
    kv = PoolSample.objects.filter(minute_at__gte=period.since, minute_at__lt=period.until)
    fullest = max(row.kv_max_ratio for row in kv if row.kv_max_ratio is not None)
    plan = PoolPlan.objects.latest("run__as_of")
    need = max(plan.need_now, plan.need_domain_lost or 0, plan.need_quarter_lost or 0)
    assert facts == {
        "Requests": (f"{sums['requests']:,}", ""),
        "Failed": (f"{sums['failed']:,}", ""),
        "Input": (f"{sums['input_tokens']:,}", "tok"),
        "Output": (f"{sums['output_tokens']:,}", "tok"),
        "Spend": (usd_short(sums["spend_nanousd"]), "USD"),
        "KV max": (f"{fullest * 100:.0f} %", ""),
        "Replicas short": (str(max(0, need - plan.ready_replicas)), ""),
    }


class Texts(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.found.append(data.strip())


def test_every_file_says_the_same_figures(day):
    _, figures = day
    stored = json.loads(json.dumps(figures))  # as the column gives them back
    files = files_of(stored)
    assert json.loads(files["json"]) == stored
    rows = list(csv.reader(io.StringIO(files["csv"].decode(), newline="")))
    named = {tuple(row[:4]): row[4] for row in rows[1:]}
    assert named["totals", "all", "", "spend_usd"] == usd_text(figures["totals"]["spend_nanousd"])
    for tenant in figures["tenants"]:
        key = ("tenants", tenant["tenant"], "", "spend_usd")
        assert named[key] == usd_text(tenant["spend_nanousd"])
    for series in figures["demand"]:
        for hour in series["hours"]:
            key = ("demand", f"{series['model']} {series['measure']}", hour["at"], "came")
            assert named[key] == str(hour["came"])
    document = document_of(stored)
    cells = {
        cell
        for section in document.sections
        for table in section.tables
        for row in table.rows
        for cell in row
        if cell
    }
    assert len(cells) > 40
    html = set(Texts(files["html"].decode()).found)
    assert cells - html == set()
    written = pdf_text(files["pdf"]).replace("\n", " ")
    missing = {cell for cell in cells if latin(cell) not in written}
    assert {cell for cell in missing if " " not in cell} == set()  # long ones may wrap
    for name, value, _ in document.facts:
        assert name in written
        assert value in written


def test_the_same_figures_give_the_same_bytes(day):
    _, figures = day
    assert files_of(figures) == files_of(json.loads(json.dumps(figures)))


def test_a_report_of_nothing_says_so_in_every_section(store, db):
    until = hour_of(timezone.now())
    figures = gather(Period(until - timedelta(hours=24), until), "UTC")
    document = document_of(figures)
    assert all(section.empty for section in document.sections)
    files = files_of(figures)
    written = pdf_text(files["pdf"]).replace("\n", " ")
    assert "No request was booked in this period." in written
    assert {name: value for name, value, _ in document.facts}["KV max"] == "—"


def test_hostile_names_are_text_in_every_file(store, db):
    """R39: in HTML no element, in CSV no formula, in PDF no markup."""
    world = factories.World()
    factories.make_tenant(world, "acme")
    factories.make_tenant(world, "globex")
    factories.make_fleet(world, {"p-a": 1})
    until = hour_of(timezone.now())
    hostile = '"><script>alert(1)</script>'
    factories.make_usage(world, "acme", 3, model="=cmd()<b>東</b>")
    UsageRollup.objects.filter(grain="h").update(start_at=until - timedelta(hours=1))
    UsageRollup.objects.filter(grain="m").delete()
    UsageRollup.objects.filter(grain="d").delete()
    PoolSample.objects.create(minute_at=until - timedelta(minutes=3), pool=hostile, replicas=1,
                              fresh_replicas=1, kv_max_ratio=0.5)  # fmt: skip
    files = files_of(gather(Period(until - timedelta(hours=2), until), "UTC"))
    html = files["html"].decode()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    for row in csv.reader(io.StringIO(files["csv"].decode(), newline="")):
        assert not [cell for cell in row if cell[:1] in tuple("=+-@\t\r")]
    written = pdf_text(files["pdf"]).replace("\n", "")  # long names wrap
    assert "<script>" in written
    assert "<U+6771>" in written
