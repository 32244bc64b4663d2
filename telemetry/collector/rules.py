"""What an engine's pages say about it: exposition text to a sample, samples to a state.

Names are those of vLLM 0.32 and, where they were renamed, older ones. A process may hold several
engines (label `engine`): counters and queues add up, occupancy is their mean.

Health: `ok`; `stale`, no good scrape for `STALE_AFTER_S` although something listens; `lost`,
nothing listens or the engine says that it is dead; `hung`, healthy but not completing, is what
gateways say, who send completions.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from routing.contracts.endpoint_state import EndpointState
from routing.contracts.enums import ReplicaHealth
from telemetry.stats.windows import Counter, Tally, mean_s, rate_per_s

HUNG_REASON = "answers health checks, but gateways wait for its completions in vain"
STALE_AFTER_S = 3.0  # three periods
ARRIVALS_MAX = 600  # steps remembered of a queue that never empties: ten minutes of scrapes
VERSION_CHARS_MAX = 40

# Ours -> the engine's names, newest first.
_NAMES = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generation_tokens": ("vllm:generation_tokens_total",),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "preemptions": ("vllm:num_preemptions_total",),
    "ttft_sum": ("vllm:time_to_first_token_seconds_sum",),
    "ttft_count": ("vllm:time_to_first_token_seconds_count",),
    "queue_sum": ("vllm:request_queue_time_seconds_sum",),
    "queue_count": ("vllm:request_queue_time_seconds_count",),
    "steps": ("vllm:iteration_tokens_total_count",),
    "by_source": ("vllm:prompt_tokens_by_source_total",),
    "itl_sum": (
        "vllm:inter_token_latency_seconds_sum",
        "vllm:time_per_output_token_seconds_sum",
    ),
    "itl_count": (
        "vllm:inter_token_latency_seconds_count",
        "vllm:time_per_output_token_seconds_count",
    ),
    "start_time": ("process_start_time_seconds",),
    "cache_config": ("vllm:cache_config_info",),
}
_OURS = {name.encode(): ours for ours, names in _NAMES.items() for name in names}
_OLD = frozenset(names[1].encode() for names in _NAMES.values() if len(names) > 1)
# One sample line of a wanted name. Label values may hold any character, braces too, when quoted.
_LINE = re.compile(
    rb"^("
    + b"|".join(sorted((re.escape(name) for name in _OURS), reverse=True))
    + rb')(?:\{((?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*)\})?[ \t]+([^ \t\n\r]+)',
    re.MULTILINE,
)
_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One reading of a metrics page at `at_s` (monotonic). None: the page does not say."""

    at_s: float
    running: int | None = None
    waiting: int | None = None
    kv_usage_ratio: float | None = None
    kv_capacity_tokens: int | None = None
    block_size_tokens: int | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    preemptions: float | None = None
    ttft_sum_s: float | None = None
    ttft_count: float | None = None
    queue_sum_s: float | None = None
    queue_count: float | None = None
    steps: float | None = None
    computed_tokens: float | None = None
    itl_sum_s: float | None = None
    itl_count: float | None = None
    run: float | None = None


def parse_exposition(page: bytes, at_s: float) -> EngineSample | None:
    """The sample on a metrics page, or None when it names no engine (then it is no engine's page).

    Lines that cannot be read are skipped; NaN and infinities are unknown.
    """
    values: dict[str, list[float]] = {}
    configs: list[dict[bytes, bytes]] = []
    has_new = dict.fromkeys(_NAMES, False)
    for match in _LINE.finditer(page):
        name, labels, text = match.groups()
        ours = _OURS[name]
        if ours == "cache_config":
            configs.append(dict(_LABEL.findall(labels or b"")))
            continue
        value = _number(text)
        if value is None or (ours == "by_source" and b'"local_compute"' not in (labels or b"")):
            continue
        if name in _OLD:
            if has_new[ours]:
                continue
        elif not has_new[ours]:
            has_new[ours] = True
            values.pop(ours, None)
        values.setdefault(ours, []).append(value)
    if "running" not in values and "kv_usage" not in values:
        return None
    return _sample(values, configs, at_s)


def _sample(
    values: dict[str, list[float]], configs: list[dict[bytes, bytes]], at_s: float
) -> EngineSample:
    def total(name: str) -> float | None:
        found = values.get(name)
        return sum(found) if found else None

    def whole(name: str) -> int | None:
        found = total(name)
        return None if found is None else max(0, round(found))

    usage = values.get("kv_usage")
    block_size = _whole(configs[0].get(b"block_size")) if configs else None
    return EngineSample(
        at_s=at_s,
        running=whole("running"),
        waiting=whole("waiting"),
        kv_usage_ratio=min(1.0, max(0.0, sum(usage) / len(usage))) if usage else None,
        kv_capacity_tokens=_capacity_tokens(configs),
        block_size_tokens=block_size,
        prompt_tokens=total("prompt_tokens"),
        generation_tokens=total("generation_tokens"),
        prefix_queries=total("prefix_queries"),
        prefix_hits=total("prefix_hits"),
        preemptions=total("preemptions"),
        ttft_sum_s=total("ttft_sum"),
        ttft_count=total("ttft_count"),
        queue_sum_s=total("queue_sum"),
        queue_count=total("queue_count"),
        steps=total("steps"),
        computed_tokens=_computed(total),
        itl_sum_s=total("itl_sum"),
        itl_count=total("itl_count"),
        run=total("start_time"),
    )


def _computed(total: Callable[[str], float | None]) -> float | None:
    """Prompt tokens that were computed; of an engine that does not say it, those not found."""
    said, prompts, hits = total("by_source"), total("prompt_tokens"), total("prefix_hits")
    if said is not None or prompts is None or hits is None:
        return said
    return prompts - hits


def _capacity_tokens(configs: list[dict[bytes, bytes]]) -> int | None:
    capacity = 0
    for config in configs:
        tokens = _whole(config.get(b"kv_cache_size_tokens"))
        if tokens is None:
            block, blocks = _whole(config.get(b"block_size")), _whole(config.get(b"num_gpu_blocks"))
            if block is None or blocks is None:
                return None
            tokens = block * blocks
        capacity += tokens
    return capacity or None


def _whole(text: bytes | None) -> int | None:
    value = _number(text or b"")
    return None if value is None else int(value)


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value - value == 0 else None  # NaN and infinities differ from themselves


Arrivals = tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one attempt to read a replica gave.

    `sample` None means that it failed for `reason`; `is_gone`: nothing listens, or the engine
    reports that it is dead.
    """

    sample: EngineSample | None = None
    is_gone: bool = False
    reason: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Track:
    """What is remembered of a replica between scrapes."""

    state: EndpointState
    first_asked_at_s: float
    sample: EngineSample | None = None
    arrivals: Arrivals = ()


def first_track(replica_id: str, pool: str, now_s: float) -> Track:
    """A replica that was never scraped: everything unknown, stale until it answers."""
    state = EndpointState(
        replica_id=replica_id,
        pool=pool,
        at_ms=0,
        health=ReplicaHealth.STALE,
        reason="not scraped yet",
    )
    return Track(state=state, first_asked_at_s=now_s)


def advance(track: Track, outcome: Outcome, now_s: float, now_ms: int) -> Track:
    """The next track after one attempt at `now_s` (monotonic) and `now_ms` (Unix)."""
    if outcome.sample is not None:
        arrivals = waiting_since(track.arrivals, track.sample, outcome.sample)
        return replace(
            track,
            state=_fresh(track, outcome, outcome.sample, arrivals, now_ms),
            sample=outcome.sample,
            arrivals=arrivals or (),
        )
    state = track.state
    last_s = track.sample.at_s if track.sample else track.first_asked_at_s
    if outcome.is_gone:
        return replace(track, state=_unknown(state, ReplicaHealth.LOST, outcome.reason))
    if state.health is ReplicaHealth.OK and now_s - last_s <= STALE_AFTER_S:
        return track
    return replace(
        track,
        state=msgspec.structs.replace(state, health=ReplicaHealth.STALE, reason=outcome.reason),
    )


def judged(state: EndpointState, hung: frozenset[str]) -> EndpointState:
    """The state as told: a replica that looks well but lets gateways wait is `hung`.

    `hung` holds the replicas that at least one gateway has stopped using for that reason. What the
    engine says of itself stays, so that the next round starts from it.
    """
    if state.health is not ReplicaHealth.OK or state.replica_id not in hung:
        return state
    return msgspec.structs.replace(state, health=ReplicaHealth.HUNG, reason=HUNG_REASON)


def with_resident_blocks(state: EndpointState, blocks: int | None) -> EndpointState:
    """The state with what the engine's KV events say; of one that is not well it is unknown."""
    if blocks is None or state.health not in (ReplicaHealth.OK, ReplicaHealth.HUNG):
        return state
    return msgspec.structs.replace(state, resident_kv_blocks=blocks)


def waiting_since(
    known: Arrivals, before: EngineSample | None, sample: EngineSample
) -> Arrivals | None:
    """When requests that still wait were first seen: (time, requests that had come by then).

    The engine counts a request's time in its queue when it ends, so all that ever came are those
    counted, running and waiting; its queue is first come, first served, so the last ones of them
    wait. The first entry is then the oldest one's. One that leaves the queue unserved takes the
    newest place, not its own: until it empties the oldest may look older. None: the page does not
    say. Bounded: of a queue that never empties the second oldest step is forgotten, which makes a
    request look younger, never older.
    """
    if sample.waiting is None or sample.running is None or sample.queue_count is None:
        return None
    came = round(sample.queue_count) + sample.running + sample.waiting
    if before is not None and before.run != sample.run:
        known = ()
    clipped = [(at_s, min(count, came)) for at_s, count in known]
    kept = [(at_s, count) for at_s, count in clipped if count > came - sample.waiting]
    if sample.waiting and (not kept or kept[-1][1] < came):
        kept.append((sample.at_s, came))
    if len(kept) > ARRIVALS_MAX:
        del kept[1]
    return tuple(kept)


def _queue_age_s(arrivals: Arrivals | None, sample: EngineSample) -> float | None:
    if arrivals is None:
        return None
    return sample.at_s - arrivals[0][0] if arrivals else 0.0


def _fresh(
    track: Track,
    outcome: Outcome,
    sample: EngineSample,
    arrivals: Arrivals | None,
    now_ms: int,
) -> EndpointState:
    before = track.sample
    ratio = None
    hits = _rise(before, sample, "prefix_hits")
    queries = _rise(before, sample, "prefix_queries")
    if hits is not None and queries:
        ratio = min(1.0, hits / queries)
    return EndpointState(
        replica_id=track.state.replica_id,
        pool=track.state.pool,
        at_ms=now_ms,
        health=ReplicaHealth.OK,
        running=sample.running,
        waiting=sample.waiting,
        kv_usage_ratio=sample.kv_usage_ratio,
        kv_capacity_tokens=sample.kv_capacity_tokens,
        block_size_tokens=sample.block_size_tokens,
        prompt_tokens_per_s=_rise(before, sample, "prompt_tokens"),
        generation_tokens_per_s=_rise(before, sample, "generation_tokens"),
        prefix_hit_ratio=ratio,
        ttft_mean_s=mean_s(_ttft(before), _ttft(sample)),
        queue_mean_s=mean_s(_queue(before), _queue(sample)),
        queue_age_s=_queue_age_s(arrivals, sample),
        preemptions_total=sample.preemptions,
        engine_version=(outcome.version or track.state.engine_version)[:VERSION_CHARS_MAX],
    )


def _unknown(state: EndpointState, health: ReplicaHealth, reason: str) -> EndpointState:
    return EndpointState(
        replica_id=state.replica_id,
        pool=state.pool,
        at_ms=state.at_ms,
        health=health,
        reason=reason,
    )


def _rise(before: EngineSample | None, after: EngineSample, name: str) -> float | None:
    return rate_per_s(_counter(before, name), _counter(after, name))


def _counter(sample: EngineSample | None, name: str) -> Counter | None:
    value: float | None = getattr(sample, name) if sample else None
    return None if sample is None or value is None else Counter(value, sample.at_s, sample.run)


def _ttft(sample: EngineSample | None) -> Tally | None:
    return _tally(sample, sample.ttft_sum_s, sample.ttft_count) if sample else None


def _queue(sample: EngineSample | None) -> Tally | None:
    return _tally(sample, sample.queue_sum_s, sample.queue_count) if sample else None


def _tally(sample: EngineSample, total_s: float | None, count: float | None) -> Tally | None:
    return None if total_s is None or count is None else Tally(total_s, count, sample.run)
