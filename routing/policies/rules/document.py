"""A policy document with its defaults filled in: what gateways honour, and nothing else.

Units end names: `_s` seconds, `_ratio` 0 to 1, `_tokens`; a bare plural counts. Documents reach
these types only through `schema.read`, which says everything that is wrong at once.
"""

import hashlib
import json

import msgspec

from routing.contracts.enums import WorkClass
from routing.decision.filters import SLOW_START_S

SCHEMA_VERSION = 1
FLOOR_RATIO = 0.05
_UNSAID_BACKOFF = BACKOFF_BASE_S, BACKOFF_MAX_S = 0.05, 2.0
# Of a class; not written out (nor is the back-off), so that documents from before they existed keep
# their digest.
UNSAID: dict[str, float] = {"reserve_ratio": 0.0, "floor_ratio": FLOOR_RATIO}


class TargetRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pool that serves the model; low `order` first, `weight` 0 drains.

    `adapter`: the model is this adapter of the pool's own model; empty for the pool's own.
    """

    pool: str
    order: int
    weight: float
    adapter: str = ""
    note: str = ""


class FallbackRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Another model that may answer when this one cannot.

    `evaluation` names the record that it is good enough; `headroom_ratio` of its pools' limits is
    kept for such work.
    """

    model: str
    when: list[str]
    evaluation: str
    headroom_ratio: float
    note: str = ""


class ModelRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Names and targets of one model. `context_tokens` narrows what the model can take.

    `fallbacks` are other models, in order of preference.
    """

    aliases: list[str]
    targets: list[TargetRule]
    context_tokens: int | None
    fallbacks: list[FallbackRule] = []
    note: str = ""


class Deadlines(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long a request of a class may take to start, pause and end."""

    first_token_s: float
    between_tokens_s: float
    total_s: float
    note: str = ""


class ClassCaps(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bounds of a class beside admission's."""

    output_tokens: int | None
    note: str = ""


class ClassRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One work class.

    `reserve_ratio` of every pool's limits is its own; lent while it asks for nothing, except
    `floor_ratio`.
    """

    deadlines: Deadlines
    caps: ClassCaps
    reserve_ratio: float = 0.0
    floor_ratio: float = FLOOR_RATIO
    note: str = ""


class ClassRules(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The three classes, in rank."""

    interactive: ClassRule
    standard: ClassRule
    batch: ClassRule
    note: str = ""

    def by_name(self) -> dict[WorkClass, ClassRule]:
        """The rule of each class."""
        return {
            WorkClass.INTERACTIVE: self.interactive,
            WorkClass.STANDARD: self.standard,
            WorkClass.BATCH: self.batch,
        }


class AdmissionCaps(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bounds of every request; `output_tokens` is also used when the caller asks for none."""

    output_tokens: int
    choices: int
    note: str = ""


class Estimate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How input is bounded before it is counted; `None` takes each model's own figure."""

    bytes_per_token: float | None
    note: str = ""


class AdmissionRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What enters."""

    default_class: WorkClass
    caps: AdmissionCaps
    estimate: Estimate
    note: str = ""


class RoutingRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How replicas are chosen."""

    stale_after_s: float
    slow_start_s: float = SLOW_START_S  # not written out where it is the default, as `UNSAID`
    note: str = ""


class RetryBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Retries allowed: `per_success` earned by each success, `burst` at most saved up."""

    per_success: float
    burst: float
    note: str = ""


class Backoff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is waited between two tries: a part of `base_s`, doubled each time, up to `max_s`."""

    base_s: float = BACKOFF_BASE_S
    max_s: float = BACKOFF_MAX_S
    note: str = ""


class FailuresRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is tried again; a lost stream ends with an `error`, or goes on elsewhere: `continue`."""

    attempts: int
    retry_budget: RetryBudget
    resend_before_output: bool
    on_stream_loss: str = "error"
    backoff: Backoff = Backoff()
    note: str = ""


class OutageRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What admission does while the store is away."""

    store_away: str
    share_ratio: float
    max_s: float
    note: str = ""


class HookRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A hook that is asked `before` a call, `after` a whole answer, or along a `stream`.

    `on_failure`: what a hook that fails, or is late, does to the call: `refuse` or `pass`.
    `classes` are those whose calls it is asked about, None for all.
    """

    hook: str
    at: str
    deadline_ms: int
    on_failure: str
    classes: list[WorkClass] | None = None
    note: str = ""


class WorkflowRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Caps of tasks of one kind; what is not said is as `default` says it.

    `max_spend_usd` is decimal text.
    """

    max_steps: int | None = None
    max_spend_usd: str | None = None
    max_wall_s: int | None = None
    max_repeats: int | None = None
    note: str = ""


class Document(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole policy."""

    schema_version: int
    name: str
    note: str = ""
    models: dict[str, ModelRule]
    classes: ClassRules
    admission: AdmissionRule
    routing: RoutingRule
    failures: FailuresRule
    outage: OutageRule
    hooks: list[HookRule] = []
    workflows: dict[str, WorkflowRule] = {}


def from_plain(plain: object) -> Document:
    """The typed document of values that `schema.read` accepted."""
    return msgspec.convert(plain, Document)


def to_plain(document: Document) -> dict[str, object]:
    """JSON values of a document, defaults (but those of `UNSAID`) and notes included."""
    plain = msgspec.to_builtins(document)
    assert isinstance(plain, dict)  # noqa: S101 - a struct becomes a dict
    for rule in plain["classes"].values():
        for key, default in UNSAID.items() if isinstance(rule, dict) else ():
            if rule.get(key) == default:
                del rule[key]
    backoff = document.failures.backoff
    if (backoff.base_s, backoff.max_s) == _UNSAID_BACKOFF:
        plain["failures"].pop("backoff", None)
        if backoff.note:
            plain["failures"]["backoff"] = {"note": backoff.note}
    return plain


def in_order(plain: dict[str, object]) -> dict[str, object]:
    """The same document in its own field order, names in order, whole numbers without a fraction.

    JSON columns keep keys in an order of their own and people type them in any: only texts of this
    order can be compared line by line. Raises `msgspec.ValidationError` if it is not a document.
    """
    ordered = to_plain(from_plain(plain))
    whole = _whole_numbers(
        {
            key: dict(sorted(value.items()))
            if key in ("models", "workflows") and isinstance(value, dict)
            else value
            for key, value in ordered.items()
        }
    )
    assert isinstance(whole, dict)  # noqa: S101 - a mapping stays one
    return whole


def digest_of(document: Document) -> str:
    """SHA-256 of the canonical JSON with defaults and without notes: equal means equal effect."""
    plain = _whole_numbers(_without_notes(to_plain(document)))
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_notes(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_notes(item) for key, item in value.items() if key != "note"}
    if isinstance(value, list):
        return [_without_notes(item) for item in value]
    return value


def _whole_numbers(value: object) -> object:
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # 5 and 5.0 are one value, also after a trip through JSON columns
    return value
