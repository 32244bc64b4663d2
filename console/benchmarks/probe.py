"""Asks an OpenAI-shaped endpoint what `probing` plans, and writes down how it was served."""

import asyncio
import http.client
import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from capacity.simulation.chance import Chance
from capacity.simulation.probing import Ask, Sample
from console.demo.client import Answer, GatewayAddress, stream_chat

REQUEST_LIMIT_S: Final = 120.0
ANSWER_BYTES_MOST: Final = 4 << 20
WORDS: Final = ("time", "year", "people", "way", "day", "thing", "life", "child", "world")
TRIAL_WORDS: Final = 200

Progress = Callable[[str], None]


class ProbeError(Exception):
    """The endpoint did not answer as it must; the text says what it said."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask, as whom, and for which model."""

    address: GatewayAddress
    model: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """What an engine says of itself; None where it says nothing."""

    context_tokens: int | None = None
    kv_blocks: int | None = None
    block_tokens: int | None = None


def told(address: GatewayAddress, model: str, key: str = "") -> tuple[str, Told]:
    """The model that is served (`model`, or the only one), and what the engine tells of itself."""
    try:
        cards = json.loads(_get(address, "/v1/models", key)).get("data", [])
    except (ValueError, AttributeError) as error:
        raise ProbeError("/v1/models is not a list of models") from error
    names = [str(card.get("id")) for card in cards]
    if not model and len(names) != 1:
        raise ProbeError(f"say --model: it serves {', '.join(names) or 'none'}")
    name = model or names[0]
    if name not in names:
        raise ProbeError(f"it serves {', '.join(names)}, not {name}")
    context = next((card.get("max_model_len") for card in cards if card.get("id") == name), None)
    blocks, size = _kv(address, key)
    return name, Told(context if isinstance(context, int) else None, blocks, size)


def _kv(address: GatewayAddress, key: str) -> tuple[int | None, int | None]:
    """Blocks and their tokens out of vLLM's `cache_config_info`."""
    try:
        page = _get(address, "/metrics", key).decode(errors="replace")
    except ProbeError:
        return None, None
    line = next((one for one in page.splitlines() if one.startswith("vllm:cache_config_info{")), "")
    return _label(line, "num_gpu_blocks"), _label(line, "block_size")


def _label(line: str, name: str) -> int | None:
    value = line.partition(f'{name}="')[2].partition('"')[0]
    return int(value) if value.isdecimal() else None


def _get(address: GatewayAddress, path: str, key: str) -> bytes:
    kind = http.client.HTTPSConnection if address.is_tls else http.client.HTTPConnection
    connection = kind(address.host, address.port, timeout=REQUEST_LIMIT_S)
    try:
        connection.request("GET", path, headers={"authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MOST)
    except (OSError, http.client.HTTPException) as error:
        raise ProbeError(f"{path}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise ProbeError(f"{path} answers {answer.status}")
    return body


class Prober:
    """Sends asks one after the other; no prompt begins as any before it, also of an earlier run:
    an engine that still holds that run's prefixes would compute none of them again.
    """

    def __init__(self, endpoint: Endpoint, seed: int) -> None:
        """`seed` fixes the prompts but for their first word, which is this run's own."""
        self._endpoint = endpoint
        self._run = secrets.token_hex(4)
        self._chance = Chance(seed)
        self._words_per_token = 1.0
        self._fixed_tokens = 0.0
        self._extra: dict[str, object] = {"ignore_eos": True}
        self.requests = 0

    async def learn(self) -> None:
        """How many words make a token here; and whether answers may be kept from ending early."""
        try:
            long = await self._call(TRIAL_WORDS, 1)
        except ProbeError:
            self._extra = {}  # an endpoint that knows no `ignore_eos`
            long = await self._call(TRIAL_WORDS, 1)
        short = await self._call(1, 1)
        if long.input_tokens is None or short.input_tokens is None:
            raise ProbeError("its streams carry no usage: lengths cannot be known")
        per_word = max(0.1, (long.input_tokens - short.input_tokens) / (TRIAL_WORDS - 1))
        self._words_per_token = 1 / per_word
        self._fixed_tokens = max(0.0, short.input_tokens - per_word)

    async def ask(self, ask: Ask) -> list[Sample]:
        """All requests of an ask at once; raises `ProbeError`."""
        words = self.words_for(ask.prompt_tokens)
        calls = [self.timed(words, ask.output_tokens) for _ in range(ask.batch)]
        served = await asyncio.gather(*calls)
        return [_sample(ask.batch, start_s, answer) for start_s, answer, _end_s in served]

    def words_for(self, prompt_tokens: int) -> int:
        """Words of a prompt of about so many tokens."""
        return max(1, round((prompt_tokens - self._fixed_tokens) * self._words_per_token))

    async def timed(self, words: int, output_tokens: int) -> tuple[float, Answer, float]:
        """One request, with the monotonic instants of its start and end."""
        start_s = time.monotonic()
        answer = await self._call(words, output_tokens)
        return start_s, answer, time.monotonic()

    async def _call(self, words: int, output_tokens: int) -> Answer:
        text = " ".join(WORDS[self._chance.below(len(WORDS))] for _ in range(words - 1))
        body: dict[str, object] = {
            "model": self._endpoint.model,
            "messages": [{"role": "user", "content": f"{self._run}{self._chance.bits():x} {text}"}],
            "max_tokens": output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }
        self.requests += 1
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                answer = await stream_chat(self._endpoint.address, self._endpoint.key, body, {})
        except TimeoutError as error:
            raise ProbeError(f"no whole answer within {REQUEST_LIMIT_S:.0f} s") from error
        except (OSError, EOFError) as error:
            raise ProbeError(f"the connection failed: {error}") from error
        if answer.status != 200 or answer.error:
            raise ProbeError(f"it answers {answer.status} {answer.error}".strip())
        return answer


def _sample(batch: int, start_s: float, answer: Answer) -> Sample:
    """Its TPOT is that of its second half, when the prompts of the others are done."""
    at, made = answer.text_at, answer.output_tokens or 1
    if not at:
        raise ProbeError("an answer had no text")
    half, tpot_s = len(at) // 2, None
    if len(at) - 1 > half:
        tokens_per_text = made / len(at)
        tpot_s = (at[-1] - at[half]) / ((len(at) - 1 - half) * tokens_per_text)
    return Sample(batch, answer.input_tokens or 1, made, at[0] - start_s, tpot_s)


async def probe(
    prober: Prober,
    asks: Sequence[Ask],
    *,
    most_s: float,
    progress: Progress,
    samples: list[Sample] | None = None,
) -> list[Sample]:
    """Every ask in turn, as many as begin within `most_s` seconds.

    They are added to `samples` as they come, for a caller that may be cancelled.
    """
    await prober.learn()
    samples = [] if samples is None else samples
    end_s = time.monotonic() + most_s
    for number, ask in enumerate(asks, 1):
        if time.monotonic() >= end_s:
            progress(f"stopped after {most_s:.0f} s: {number - 1} of {len(asks)} asked")
            break
        samples += await prober.ask(ask)
        progress(f"{number}/{len(asks)}: {ask.batch} x {ask.prompt_tokens} tokens")
    return samples


def as_told(facts: Told) -> dict[str, Any]:
    """For the profile's `measured`."""
    return {"kv_told": facts.kv_blocks is not None, "context_told": facts.context_tokens}
