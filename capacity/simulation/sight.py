"""What a gateway knows of a replica when it begins to send work there."""

from collections.abc import Mapping
from typing import Final

from capacity.simulation.profiles import EngineProfile
from capacity.simulation.scenario import ReplicaSpec
from routing.contracts.enums import WorkClass
from routing.decision.breaker import Breaker
from routing.decision.filters import Candidate
from routing.decision.predict import Ahead, StepModel
from routing.decision.shed import Pressure, is_shed, saturation

LONG_AGO_S: Final = -1e9  # a replica that was there from the start is no young one
_RANKS: Final = {work_class: rank for rank, work_class in enumerate(WorkClass)}


def candidate_of(spec: ReplicaSpec) -> Candidate:
    """The replica as an endpoint to choose."""
    candidate = Candidate(spec.id, spec.pool, Breaker(spec.id), spec.profile.kv_tokens)
    candidate.ready_at_s = spec.ready_at_s if spec.ready_at_s > 0 else LONG_AGO_S
    return candidate


def step_model(profile: EngineProfile) -> StepModel:
    """Its profile in a gateway's four terms: a mixture counts as reading all its experts."""
    times = profile.times
    t0_s = times.t0_s + times.expert_s
    return StepModel(t0_s, times.c_s, times.d_s, times.e_s, profile.token_budget)


def is_pressed(
    work_class: WorkClass,
    target_s: float,
    candidates: Mapping[str, Candidate],
    models: Mapping[str, StepModel],
    ahead: Mapping[str, Ahead],
) -> bool:
    """Whether the classes' ceilings keep this one out, `target_s` of queue being full."""
    replicas = [
        _pressure(one, models[name], ahead[name])
        for name, one in candidates.items()
        if one.breaker.allows()
    ]
    return is_shed(_RANKS[work_class], len(_RANKS), saturation(replicas, target_s))


def _pressure(candidate: Candidate, model: StepModel, ahead: Ahead) -> Pressure:
    report = candidate.report
    kv_ratio = report.kv_usage_ratio if report is not None else None
    return Pressure(model.c_s * max(0, ahead.queued_tokens), kv_ratio or 0.0)
