"""The report's section of what acted in its period: rollouts, runs of playbooks, changes."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.urls import reverse

from capacity.reports.sections import Section, Table, instant_of
from console.web import units
from console.web.tables import Column, number


def happened(figures: Mapping[str, Any], zone: str) -> Section:
    """What acted in the period, and what people changed."""
    tables = [
        table
        for table in (
            _rollouts(figures.get("rollouts", ()), zone),  # reports of before have none
            _playbook_runs(figures.get("playbook_runs", ()), zone),
            _changes(figures["acts"], zone),
        )
        if table.rows
    ]
    return Section(
        "acts",
        "Rollouts, playbooks and changes",
        "Rollouts and runs from their own records, if under way in this period; changes from the "
        "audit trail: policies, rollouts, playbooks, overrides, limits and pools.",
        tuple(tables),
        (),
        "" if tables else "Nothing was changed in this period.",
    )


def _rollouts(rows: Sequence[Mapping[str, Any]], zone: str) -> Table:
    cells = tuple(
        (
            _span(one, zone),
            str(one["rollout"]),
            one["pool"],
            one["state"].replace("_", " "),
            f"{one['from_revision']} to {one['to_revision']}",
            f"{one['replaced']} of {one['replicas']}",
            one["why"],
        )
        for one in rows
    )
    columns = (
        Column("When"), number("Rollout"), Column("Pool"), Column("State"), Column("Revision"),
        Column("Replicas"), Column("Why"),
    )  # fmt: skip
    pages = tuple(reverse("rollout", kwargs={"rollout_id": one["rollout"]}) for one in rows)
    return Table("Rollouts", columns, cells, pages, linked=1)


def _playbook_runs(rows: Sequence[Mapping[str, Any]], zone: str) -> Table:
    cells = tuple(
        (
            _span(one, zone),
            str(one["run"]),
            one["playbook"],
            one["subject"],
            "dry run" if one["is_dry_run"] else one["state"],
            units.count(one["acts"]),
            units.decimal(one["peak_value"], 2),
            one["why"],
        )
        for one in rows
    )
    columns = (
        Column("When"), number("Run"), Column("Playbook"), Column("Subject"), Column("State"),
        number("Acts"), number("Peak signal"), Column("Why it ended"),
    )  # fmt: skip
    pages = tuple(
        reverse("playbook_run", kwargs={"name": one["playbook"], "run_id": one["run"]})
        for one in rows
    )
    return Table("Runs of playbooks", columns, cells, pages, linked=1)


def _changes(rows: Sequence[Mapping[str, Any]], zone: str) -> Table:
    cells = tuple(
        (
            units.moment(instant_of(one["at"]), zone),
            one["act"],
            one["object"],
            one["actor"],
            one["reason"],
        )
        for one in rows
    )
    columns = (Column("When"), Column("Act"), Column("On"), Column("By"), Column("Reason"))
    pages = tuple(one.get("page", "") for one in rows)  # reports of before have none
    return Table("Changes in order of time", columns, cells, pages, linked=2)


def _span(one: Mapping[str, Any], zone: str) -> str:
    since = units.moment(instant_of(one["started_at"]), zone)
    if one["ended_at"] is None:
        return f"since {since}"
    return f"{since} to {units.moment(instant_of(one['ended_at']), zone)}"
