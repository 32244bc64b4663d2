"""Put one row of an inventory table: made if it is new, changed if it differs, else left alone.

So every write may be repeated. Each change is audited with what it was before.
"""

import csv
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.db import models, transaction

from capacity.fleet.rules.table import Value
from capacity.fleet.services.inventory import (
    PUSH_SNAPSHOT,
    create_domain,
    create_model,
    create_pool,
    create_region,
    set_desired_replicas,
)
from capacity.models import Artifact, FailureDomain, GpuType, Model, Node, NodeState, Pool, Region
from console.audit.rules import Actor
from console.audit.services import record
from console.errors import DomainError, InvalidInput, NotFound
from console.jobs.services import enqueue
from console.validation import save_valid

_GPU_TYPES = Path(__file__).resolve().parent.parent / "data" / "gpu_types.csv"
_SHA256_CHARS = 64

Values = Mapping[str, Any]


class Outcome(StrEnum):
    """What putting a row did."""

    CREATED = "created"
    CHANGED = "changed"
    SAME = "same"


@lru_cache(maxsize=1)
def reference_gpu_types() -> dict[str, dict[str, str]]:
    """GPU types that come with the product, by name: text as in their file."""
    with _GPU_TYPES.open(newline="", encoding="utf-8") as file:
        return {row["name"]: row for row in csv.DictReader(file)}


@transaction.atomic
def put(*, kind: str, values: Mapping[str, Value], actor: Actor) -> Outcome:
    """Put one row of a kind, with a value for each of its columns.

    Raises `NotFound` (kind, or what it refers to), `InvalidInput` or `Conflict`, naming the column.
    """
    if kind not in _PUT:
        raise NotFound(f"No such kind: {kind}.", hint=f"One of {', '.join(_PUT)}.")
    return _PUT[kind](values, actor)


def _region(values: Values, actor: Actor) -> Outcome:
    row = Region.objects.select_for_update().filter(slug=values["slug"]).first()
    if row is None:
        create_region(slug=values["slug"], name=values["name"], actor=actor)
        return Outcome.CREATED
    return _change(row, {"name": values["name"]}, actor, "region", row.slug)


def _domain(values: Values, actor: Actor) -> Outcome:
    where = {"region__slug": values["region"], "slug": values["slug"]}
    if FailureDomain.objects.filter(**where).exists():
        return Outcome.SAME
    create_domain(region=values["region"], slug=values["slug"], actor=actor)
    return Outcome.CREATED


def _gpu_type(values: Values, actor: Actor) -> Outcome:
    row = GpuType.objects.select_for_update().filter(name=values["name"]).first()
    if row is not None:
        return _change(row, values, actor, "gpu_type", row.name)
    return _make(GpuType(**values), values, actor, "gpu_type", "name")


def _node(values: Values, actor: Actor) -> Outcome:
    state = values["state"]
    if state not in NodeState.values:
        raise InvalidInput(
            f"No such state: {state!r}.", field="state", hint=f"One of {', '.join(NodeState)}."
        )
    if values["gpu_count"] and not values["gpu_type"]:
        raise InvalidInput(
            "GPUs need a type.", field="gpu_type", hint="Name it, or say gpu_count 0."
        )
    fields = {
        "name": values["name"],
        "domain": _domain_of(values["region"], values["domain"]),
        "gpu_type": _gpu_type_of(values["gpu_type"], actor) if values["gpu_type"] else None,
        "gpu_count": values["gpu_count"],
        "state": state,
        "note": values["note"],
    }
    row = Node.objects.select_for_update().filter(name=values["name"]).first()
    if row is not None:
        return _change(row, fields, actor, "node", row.name)
    return _make(Node(**fields), values, actor, "node", "name")


def _model(values: Values, actor: Actor) -> Outcome:
    row = Model.objects.select_for_update().filter(name=values["name"]).first()
    if row is None:
        create_model(**values, actor=actor)
        return Outcome.CREATED
    outcome = _change(row, values, actor, "model", row.name)
    if outcome is Outcome.CHANGED:
        enqueue(PUSH_SNAPSHOT, dedupe_key=PUSH_SNAPSHOT)
    return outcome


def _artifact(values: Values, actor: Actor) -> Outcome:
    digest = values["sha256"].lower()
    is_hex = len(digest) == _SHA256_CHARS and all(one in "0123456789abcdef" for one in digest)
    if digest and not is_hex:
        raise InvalidInput("It is not 64 hexadecimal digits.", field="sha256")
    model = Model.objects.filter(name=values["model"]).first()
    if model is None:
        raise NotFound("No such model.", field="model", hint="Add the model first.")
    fields = {**values, "model": model, "sha256": digest}
    row = Artifact.objects.filter(model=model, version=values["version"]).first()
    if row is None:
        return _make(Artifact(**fields), values, actor, "artifact", "version")
    if _differences(row, fields):
        raise InvalidInput(
            f"Artifact {values['version']} of {model.name} is known otherwise.",
            field="version",
            hint="Weights of a version never change: give these a version of their own.",
        )
    return Outcome.SAME


def _pool(values: Values, actor: Actor) -> Outcome:
    row = Pool.objects.select_for_update(of=("self",)).filter(name=values["name"])
    present = row.select_related("model", "domain__region").first()
    spec = values["spec"]
    if present is None:
        gpus = values["gpus_per_replica"]
        rest = {name: value for name, value in values.items() if name != "gpus_per_replica"}
        create_pool(**{**rest, "spec": spec or {}}, actor=actor)
        Pool.objects.filter(name=values["name"]).update(gpus_per_replica=gpus)
        return Outcome.CREATED
    fixed: dict[str, tuple[object, object]] = {
        "model": (present.model.name, values["model"]),
        "driver": (present.driver, values["driver"]),
        "region": (present.domain.region.slug, values["region"]),
        "domain": (present.domain.slug, values["domain"]),
        "block_size_tokens": (present.block_size_tokens, values["block_size_tokens"]),
        "spec": (present.spec, present.spec if spec is None else spec),
    }
    for name, (now, wanted) in fixed.items():
        if now != wanted:
            hint = "Roll the pool out." if name == "spec" else "Make another pool."
            raise InvalidInput(f"The pool has {now!r} here.", field=name, hint=hint)
    loose = {name: values[name] for name in ("hardware", "gpus_per_replica")}
    outcome = _change(present, loose, actor, "pool", present.name)
    wanted = values["desired_replicas"]
    if wanted == present.desired_replicas:
        return outcome
    try:
        set_desired_replicas(pool=present.name, replicas=wanted, actor=actor)
    except DomainError as error:
        error.field = "desired_replicas"
        raise
    return Outcome.CHANGED


_PUT: dict[str, Callable[[Values, Actor], Outcome]] = {
    "region": _region,
    "domain": _domain,
    "gpu_type": _gpu_type,
    "node": _node,
    "model": _model,
    "artifact": _artifact,
    "pool": _pool,
}


def _domain_of(region: str, slug: str) -> FailureDomain:
    row = FailureDomain.objects.filter(region__slug=region, slug=slug).first()
    if row is None:
        raise NotFound(
            f"Region {region} has no failure domain {slug}.",
            field="domain",
            hint="Add the domain first.",
        )
    return row


def _gpu_type_of(name: str, actor: Actor) -> GpuType:
    """A known type; one of the reference is kept when it is first used."""
    row = GpuType.objects.filter(name=name).first()
    if row is not None:
        return row
    told = reference_gpu_types().get(name)
    if told is None:
        known = ", ".join(sorted(reference_gpu_types()))
        raise NotFound(
            f"No such GPU type: {name}.", field="gpu_type", hint=f"Add it, or use one of {known}."
        )
    values: dict[str, Any] = {
        "name": name,
        "memory_gib": float(told["memory_gib"]),
        "memory_tb_s": float(told["memory_tb_s"]),
        "bf16_tflops": float(told["bf16_tflops"]),
        "fp8_tflops": float(told["fp8_tflops"]) if told["fp8_tflops"] else None,
        "tdp_w": int(told["tdp_w"]),
        "source": told["source"],
        "note": told["note"],
    }
    row = GpuType(**values)
    _make(row, values, actor, "gpu_type", "name")
    return row


def _make(row: models.Model, values: Values, actor: Actor, kind: str, field: str) -> Outcome:
    save_valid(row, taken=f"This {kind.replace('_', ' ')} exists.", field=field)
    record(
        actor=actor,
        act=f"{kind}.create",
        object_type=kind,
        object_id=str(row),
        after=dict(values),
    )
    return Outcome.CREATED


def _differences(row: models.Model, fields: Values) -> list[str]:
    return [name for name, value in fields.items() if getattr(row, name) != value]


def _change(row: models.Model, fields: Values, actor: Actor, kind: str, name: str) -> Outcome:
    changed = _differences(row, fields)
    if not changed:
        return Outcome.SAME
    before = {one: _plain(getattr(row, one)) for one in changed}
    for one in changed:
        setattr(row, one, fields[one])
    save_valid(row, taken=f"This {kind.replace('_', ' ')} exists.")
    record(
        actor=actor,
        act=f"{kind}.change",
        object_type=kind,
        object_id=name,
        before=before,
        after={one: _plain(fields[one]) for one in changed},
    )
    return Outcome.CHANGED


def _plain(value: object) -> object:
    return str(value) if isinstance(value, models.Model) else value
