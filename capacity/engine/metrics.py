"""vLLM 0.32's metrics by its own names, labels and bucket edges; older names by a switch."""

import os
import resource
import time
from dataclasses import dataclass

from capacity.engine.exposition import Family, Histogram, Number, Registry, label_text
from capacity.simulation.engine import Replica
from capacity.simulation.requests import Finish, Generation

TTFT_EDGES = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_GAP_EDGES = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
PHASE_EDGES = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_EDGES = tuple(float(edge) for edge in (1, *(2**power for power in range(3, 15))))
CHOICE_EDGES = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTION_EDGES = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
HTTP_EDGES = (0.1, 0.5, 1.0)

# What vLLM called these before 0.10 or so; collectors must take both.
OLD_NAMES = {
    "vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc",
    "vllm:inter_token_latency_seconds": "vllm:time_per_output_token_seconds",
    "vllm:prefix_cache_queries": "vllm:gpu_prefix_cache_queries",
    "vllm:prefix_cache_hits": "vllm:gpu_prefix_cache_hits",
}
ONLY_NEW = {
    "vllm:num_requests_waiting_by_reason",
    "vllm:prompt_tokens_by_source",
    "vllm:prompt_tokens_cached",
    "vllm:prompt_tokens_cached_by_source",
    "vllm:admission_rejections",
    "vllm:request_time_per_output_token_seconds",
    "vllm:request_num_preemptions",
    "vllm:request_prefill_kv_computed_tokens",
}

_CACHE_CONFIG = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_memory_bytes": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}


@dataclass(slots=True)
class RequestTimes:
    """Seconds of one finished request's phases, as its caller saw them."""

    e2e_s: float
    queue_s: float
    prefill_s: float
    decode_s: float


def size_edges(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, ... up to `limit` tokens."""
    edges = []
    power = 1
    while power <= limit:
        edges += [float(step * power) for step in (1, 2, 5) if step * power <= limit]
        power *= 10
    return tuple(edges)


class EngineMetrics:
    """The metric set of one replica. Counters of the scheduler are read when scraped."""

    def __init__(
        self, replica: Replica, model: str, context_tokens: int, *, old_names: bool = False
    ) -> None:
        self.registry = Registry()
        self._replica = replica
        self._old_names = old_names
        self._labels = {"engine": "0", "model_name": model}
        self._started = time.time()
        self._process()
        self._gauges()
        self._counters(model)
        self._histograms(context_tokens)
        self._cache_config(context_tokens)
        self._http()
        self.registry.refresh.append(self._refresh)

    def _family(self, name: str, kind: str, text: str) -> Family:
        """A family under its name of the chosen age; one that is too new is not written."""
        created = None if kind == "gauge" else self._started
        family = Family(OLD_NAMES.get(name, name) if self._old_names else name, kind, text)
        family.created = created
        if not (self._old_names and name in ONLY_NEW):
            self.registry.families.append(family)
        return family

    def _number(self, family: Family, **labels: str) -> Number:
        series = Number()
        family.series[label_text({**self._labels, **labels})] = series
        return series

    def _histogram(self, name: str, text: str, edges: tuple[float, ...]) -> Histogram:
        series = Histogram(edges)
        self._family(name, "histogram", text).series[label_text(self._labels)] = series
        return series

    def _process(self) -> None:
        cpu = self._family(
            "process_cpu_seconds", "counter", "Total user and system CPU time spent in seconds."
        )
        memory = self._family(
            "process_resident_memory_bytes", "gauge", "Resident memory size in bytes."
        )
        start = self._family(
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
        )
        cpu.created = None
        self._cpu_s, self._memory = Number(), Number()
        cpu.series[""], memory.series[""] = self._cpu_s, self._memory
        start.series[""] = Number(self._started)

    def _gauges(self) -> None:
        self.running = self._number(
            self._family(
                "vllm:num_requests_running",
                "gauge",
                "Number of requests in model execution batches.",
            )
        )
        self.waiting = self._number(
            self._family(
                "vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed."
            )
        )
        by_reason = self._family(
            "vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason."
        )
        self.waiting_capacity = self._number(by_reason, reason="capacity")
        self._number(by_reason, reason="deferred")
        sleep = self._family("vllm:engine_sleep_state", "gauge", "Engine sleep state.")
        self._number(sleep, sleep_state="awake").value = 1.0
        self._number(sleep, sleep_state="weights_offloaded")
        self._number(sleep, sleep_state="discard_all")
        self.kv_usage = self._number(
            self._family(
                "vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage."
            )
        )

    def _counter(self, name: str, text: str) -> Number:
        return self._number(self._family(name, "counter", text))

    def _counters(self, model: str) -> None:
        for kind in ("estimated_flops", "estimated_read_bytes", "estimated_write_bytes"):
            self._counter(f"vllm:{kind}_per_gpu", "Estimated work per GPU; not estimated here.")
        self.prefix_queries = self._counter(
            "vllm:prefix_cache_queries",
            "Prefix cache queries, in terms of number of queried tokens.",
        )
        self.prefix_hits = self._counter(
            "vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens."
        )
        for cache in ("external_prefix", "mm"):
            self._counter(f"vllm:{cache}_cache_queries", "Queries of a cache not kept here.")
            self._counter(f"vllm:{cache}_cache_hits", "Hits of a cache not kept here.")
        self.preemptions = self._counter(
            "vllm:num_preemptions", "Cumulative number of preemption from the engine."
        )
        self.prompt_tokens = self._counter(
            "vllm:prompt_tokens", "Number of prefill tokens processed."
        )
        by_source = self._family(
            "vllm:prompt_tokens_by_source", "counter", "Number of prompt tokens by source."
        )
        self.computed_tokens = self._number(by_source, source="local_compute")
        self.hit_tokens = self._number(by_source, source="local_cache_hit")
        self._number(by_source, source="external_kv_transfer")
        self.cached_tokens = self._counter(
            "vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external)."
        )
        by_tier = self._family(
            "vllm:prompt_tokens_cached_by_source", "counter", "Prefix-cache hit tokens by tier."
        )
        self.device_tokens = self._number(by_tier, source="device")
        for tier in ("host", "p2p", "disk", "external_unspecified"):
            self._number(by_tier, source=tier)
        self.generation_tokens = self._counter(
            "vllm:generation_tokens", "Number of generation tokens processed."
        )
        success = self._family(
            "vllm:request_success", "counter", "Count of successfully processed requests."
        )
        self.success = {
            reason: self._number(success, finished_reason=reason)
            for reason in ("stop", "length", "abort", "error", "repetition")
        }
        rejections = self._family(
            "vllm:admission_rejections",
            "counter",
            "Number of admission attempts rejected by a queue limit, by reason.",
        )
        self.rejections = {}
        for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
            self.rejections[reason] = series = Number()
            rejections.series[label_text({"model_name": model, "reason": reason})] = series

    def _histograms(self, context_tokens: int) -> None:
        sizes = size_edges(context_tokens)
        made = self._histogram
        self.request_prompt = made(
            "vllm:request_prompt_tokens", "Number of prefill tokens processed.", sizes
        )
        self.request_generation = made(
            "vllm:request_generation_tokens", "Number of generation tokens processed.", sizes
        )
        self.iteration_tokens = made(
            "vllm:iteration_tokens_total",
            "Histogram of number of tokens per engine_step.",
            STEP_EDGES,
        )
        self.request_max_generation = made(
            "vllm:request_max_num_generation_tokens",
            "Histogram of maximum number of requested generation tokens.",
            sizes,
        )
        self.params_n = made(
            "vllm:request_params_n", "Histogram of the n request parameter.", CHOICE_EDGES
        )
        self.params_max_tokens = made(
            "vllm:request_params_max_tokens",
            "Histogram of the max_tokens request parameter.",
            sizes,
        )
        self.ttft = made(
            "vllm:time_to_first_token_seconds",
            "Histogram of time to first token in seconds.",
            TTFT_EDGES,
        )
        self.itl = made(
            "vllm:inter_token_latency_seconds",
            "Histogram of inter-token latency in seconds.",
            TOKEN_GAP_EDGES,
        )
        self.tpot = made(
            "vllm:request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            TOKEN_GAP_EDGES,
        )
        self.e2e = made(
            "vllm:e2e_request_latency_seconds",
            "Histogram of e2e request latency in seconds.",
            PHASE_EDGES,
        )
        phases = ("queue", "inference", "prefill", "decode")
        states = ("WAITING", "RUNNING", "PREFILL", "DECODE")
        self.phases = {
            phase: made(
                f"vllm:request_{phase}_time_seconds",
                f"Histogram of time spent in {state} phase for request.",
                PHASE_EDGES,
            )
            for phase, state in zip(phases, states, strict=True)
        }
        self.request_preemptions = made(
            "vllm:request_num_preemptions",
            "Histogram of the number of times a request was preempted.",
            PREEMPTION_EDGES,
        )
        self.prefill_computed = made(
            "vllm:request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            sizes,
        )

    def _cache_config(self, context_tokens: int) -> None:
        profile = self._replica.profile
        family = self._family(
            "vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig"
        )
        labels = {
            **_CACHE_CONFIG,
            "block_size": str(profile.block_tokens),
            "effective_attention_block_size": str(profile.block_tokens),
            "engine": "0",
            "kv_cache_max_concurrency": str(profile.kv_tokens / context_tokens),
            "kv_cache_size_tokens": str(profile.kv_tokens),
            "num_gpu_blocks": str(profile.kv_blocks),
        }
        family.series[label_text(labels)] = Number(1.0)

    def _http(self) -> None:
        self._http_count = self._family(
            "http_requests",
            "counter",
            "Total number of requests by method, status and handler.",
        )
        self._http_time = self._family(
            "http_request_duration_seconds",
            "histogram",
            "Latency with only few buckets by handler.",
        )

    def http_request(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Count one answered HTTP request. `handler` is one of the known routes."""
        labels = label_text({"handler": handler, "method": method, "status": f"{status // 100}xx"})
        count = self._http_count.series.setdefault(labels, Number())
        timed = self._http_time.series.setdefault(
            label_text({"handler": handler, "method": method}), Histogram(HTTP_EDGES)
        )
        if isinstance(count, Number) and isinstance(timed, Histogram):
            count.add()
            timed.observe(seconds)

    def prefilled(self, generation: Generation) -> int:
        """Count a prompt whose prefill is done; the tokens that it took."""
        prompt, cached = generation.request.prompt_tokens, generation.cached_tokens
        self.prompt_tokens.add(prompt)
        self.computed_tokens.add(prompt - cached)
        for series in (self.hit_tokens, self.cached_tokens, self.device_tokens):
            series.add(cached)
        return prompt - cached

    def finished(self, generation: Generation, times: RequestTimes) -> None:
        """Count a request that ran to its end. Aborted ones are not counted, as in vLLM."""
        made = generation.made_tokens
        self.success[str(generation.finish or Finish.STOP)].add()
        self.request_prompt.observe(generation.request.prompt_tokens)
        self.request_generation.observe(made)
        self.request_preemptions.observe(generation.preemptions)
        self.prefill_computed.observe(generation.request.prompt_tokens - generation.cached_tokens)
        self.e2e.observe(times.e2e_s)
        self.phases["queue"].observe(times.queue_s)
        self.phases["prefill"].observe(times.prefill_s)
        self.phases["decode"].observe(times.decode_s)
        self.phases["inference"].observe(times.prefill_s + times.decode_s)
        if made > 1:
            self.tpot.observe(times.decode_s / (made - 1))

    def _refresh(self) -> None:
        replica = self._replica
        self.running.value = float(replica.running_count)
        self.waiting.value = self.waiting_capacity.value = float(replica.waiting_count)
        self.kv_usage.value = replica.kv_usage_ratio
        self.prefix_queries.value = float(replica.counters.prefix_queries)
        self.prefix_hits.value = float(replica.counters.prefix_hits)
        self.preemptions.value = float(replica.counters.preemptions)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._cpu_s.value = usage.ru_utime + usage.ru_stime
        self._memory.value = float(_resident_bytes())


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
