"""What a replica is given, and what it says of it."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple


class NeverFitsError(ValueError):
    """The request needs more KV than the replica has, so it could never be served."""


class Finish(StrEnum):
    """Why a request ended, in vLLM's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What the scheduler needs to know.

    `output_tokens` is how many it will generate (at least 1) and `finish` why it then stops.
    `block_hashes` are chained hashes of its whole blocks from the start of the prompt, and may go
    on into the output: blocks without a hash are never reused. Lower `priority` is sooner.
    The KV of the first `ready_tokens` comes with the request, from an engine that computed it.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    finish: Finish = Finish.LENGTH
    priority: int = 0
    block_hashes: tuple[int, ...] = ()
    ready_tokens: int = 0


@dataclass(slots=True, eq=False)
class Generation:
    """A request inside the replica. Callers read it; only the replica writes it.

    Instants are in the caller's seconds; `cached_tokens` is the prefix hit of its first admission.
    `blocks` are those with a hash, `spare_blocks` counts the others, which nobody can find.
    """

    request: EngineRequest
    arrived_s: float
    serial: int
    total_tokens: int
    made_tokens: int = 0
    computed_tokens: int = 0
    planned_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    is_running: bool = False
    finish: Finish | None = None
    scheduled_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float | None = None
    blocks: list[int] = field(default_factory=list)
    spare_blocks: int = 0
    guest: Any = None  # the caller's own, never read here


class StepResult(NamedTuple):
    """One step.

    `emitted` generations have one more token each (`finish` is set on those that ended with it),
    visible from `end_s` on. `prefill_tokens`, `decodes`, `context_tokens` are P, D, K of the step
    time.
    """

    duration_s: float
    end_s: float
    prefill_tokens: int
    decodes: int
    context_tokens: int
    emitted: list[Generation]
    admitted: list[Generation]
    preempted: int


@dataclass(slots=True)
class Counters:
    """Totals since the replica's start; prefix counters are in tokens, first admissions only."""

    steps: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    prefill_tokens: int = 0
    generated_tokens: int = 0
