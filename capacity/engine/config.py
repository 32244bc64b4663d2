"""The engine's settings, by vLLM's own flag names where it has them."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from capacity.simulation.catalogue import named
from capacity.simulation.profile_document import (
    ProfileError,
    SpeculationPart,
    TierPart,
    speculating,
    tiers_of,
)
from capacity.simulation.profiles import EngineProfile, StepTimes, UnknownProfileError

DEFAULT_PROFILE = "demo"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One replica's settings.

    `profile` already holds the overrides and the time scale. `fd` is an inherited listening socket
    (then host and port only name it). `shutdown_timeout_s` 0 cuts live requests on SIGTERM.
    `load_s` is how long it takes until it listens, as loading weights would. `artifact` is what it
    says that it loaded (vLLM's `root`), the model's name if empty.
    """

    model: str
    profile: EngineProfile
    host: str = "127.0.0.1"
    port: int = 8000
    fd: int | None = None
    seed: int = 0
    by_priority: bool = False
    max_queued_requests: int | None = None
    max_queued_tokens: int | None = None
    shutdown_timeout_s: float = 0.0
    keep_alive_s: int = 5
    old_metric_names: bool = False
    faults_path: str = ""
    load_s: float = 0.0
    artifact: str = ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m capacity.engine", description="A simulated vLLM server."
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--fd", type=int, help="serve on this inherited listening socket")
    add("--model", required=True, help="the name that clients ask for")
    add("--profile", default=DEFAULT_PROFILE, help="built-in name, or model/gpu/tpN/weights")
    add("--speculative-config", help='JSON, as {"draft_tokens": 3, "acceptance": 0.7}')
    add(
        "--kv-tiers",
        help="JSON, as [{name, kv_tokens, gbytes_per_s, kv_bytes_per_token}, ...]",
    )
    add("--max-num-seqs", type=int)
    add("--max-num-batched-tokens", type=int)
    add("--max-model-len", type=int)
    add("--long-prefill-token-threshold", type=int, default=0)
    add("--kv-blocks", type=int, help="as vLLM's --num-gpu-blocks-override")
    add("--block-size", type=int)
    add("--scheduling-policy", choices=("fcfs", "priority"), default="fcfs")
    add("--max-num-queued-reqs", type=int)
    add("--max-num-queued-tokens", type=int)
    add("--shutdown-timeout", type=float, default=0.0, help="seconds to finish live requests in")
    add("--timeout-keep-alive", type=int, default=5, help="vLLM's VLLM_HTTP_TIMEOUT_KEEP_ALIVE")
    add("--seed", type=int, default=0)
    add("--time-scale", type=float, default=1.0, help="10 runs ten times faster than the profile")
    add("--load-seconds", type=float, default=0.0, help="time until it listens")
    add("--artifact", default="", help="what it names as loaded, as vLLM names its --model")
    add("--metric-names", choices=("new", "old"), default="new")
    add("--faults", default="", help="JSON file of scripted faults, read each second")
    return parser


def _with_options(base: EngineProfile, speculation: str | None, tiers: str | None) -> EngineProfile:
    """The profile with what a scenario's fleet may add to it too. Raises as those parsers do."""
    if speculation:
        base = speculating(base, msgspec.json.decode(speculation, type=SpeculationPart))
    if tiers:
        parts = msgspec.json.decode(tiers, type=tuple[TierPart, ...])
        base = replace(base, tiers=tiers_of(parts))
    return base


def parse(argv: Sequence[str]) -> EngineConfig:
    """Settings from the command line; exits with a usage line when they make no sense."""
    parser = _parser()
    given = parser.parse_args(argv)
    if given.time_scale <= 0:
        parser.error("--time-scale must be above 0")
    try:
        base = _with_options(named(given.profile), given.speculative_config, given.kv_tiers)
    except (UnknownProfileError, ProfileError, msgspec.MsgspecError) as error:
        parser.error(str(error))
    scaled: StepTimes = base.times.scaled(1 / given.time_scale)
    profile = replace(
        base,
        times=scaled,
        seats=given.max_num_seqs or base.seats,
        token_budget=given.max_num_batched_tokens or base.token_budget,
        kv_blocks=given.kv_blocks or base.kv_blocks,
        block_tokens=given.block_size or base.block_tokens,
        long_prefill_tokens=given.long_prefill_token_threshold,
    )
    # As vLLM at start: a request as long as the context must fit the KV cache.
    context = min(given.max_model_len or base.context_tokens, profile.kv_tokens)
    return EngineConfig(
        model=given.model,
        profile=replace(profile, context_tokens=context),
        host=given.host,
        port=given.port,
        fd=given.fd,
        seed=given.seed,
        by_priority=given.scheduling_policy == "priority",
        max_queued_requests=given.max_num_queued_reqs,
        max_queued_tokens=given.max_num_queued_tokens,
        shutdown_timeout_s=given.shutdown_timeout,
        keep_alive_s=given.timeout_keep_alive,
        old_metric_names=given.metric_names == "old",
        faults_path=given.faults,
        load_s=given.load_seconds,
        artifact=given.artifact,
    )
