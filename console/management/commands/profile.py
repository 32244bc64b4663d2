"""`manage.py profile URL`: measure an endpoint, write a profile that `simulate` accepts."""

import asyncio
import contextlib
import json
import signal
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError

from capacity.simulation.probing import Sample, TooLittleError, fitted, plan
from capacity.simulation.profile_document import profile_json
from capacity.simulation.profiles import EngineProfile
from console.benchmarks.probe import Endpoint, ProbeError, Prober, Told, as_told, probe, told
from console.demo.client import GatewayAddress

STOPPED: Final = 130
BLOCK_TOKENS: Final = 16
UNTOLD_KV_TOKENS: Final = 1 << 20  # so much that nothing waits for KV, and the file says so
UNTOLD_CONTEXT_TOKENS: Final = 4096
MOST_REQUESTS: Final = 10_000
LONGEST_S: Final = 3600.0


class Command(BaseCommand):
    """Costs the endpoint what the plan says: at most `--requests`, for at most `--seconds`."""

    help = "Measure an OpenAI-shaped endpoint and write an engine profile for `simulate`."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare what may be chosen."""
        parser.add_argument("url", help="http://host:port or https://host:port of the endpoint")
        parser.add_argument("--out", type=Path, help="file to write (default: standard output)")
        parser.add_argument("--model", default="", help="which one, if it serves several")
        parser.add_argument("--key", default="", help="API key")
        parser.add_argument("--requests", type=int, default=300, help="at most (300)")
        parser.add_argument("--seconds", type=float, default=300.0, help="at most (300)")
        parser.add_argument("--batch", type=int, default=32, help="requests at once, at most (32)")
        parser.add_argument("--token-budget", type=int, default=2048, help="its batched tokens")
        parser.add_argument("--seats", type=int, default=256, help="its max-num-seqs")
        parser.add_argument("--kv-tokens", type=int, help="its KV, where its metrics do not tell")
        parser.add_argument("--seed", type=int, default=1, help="of the prompts")
        parser.add_argument("--quiet", action="store_true", help="no progress on stderr")

    def handle(self, *args: Any, **options: Any) -> None:
        """Measure, fit, write.

        SIGINT or SIGTERM ends it with exit code 130: no file, which `simulate` might take for a
        whole one, but what was measured so far as JSON on standard output, `is_whole` false.
        """
        _check(options)
        try:
            address = GatewayAddress.from_url(options["url"])
        except ValueError as error:
            raise CommandError(f"url: {error}") from error
        samples: list[Sample] = []
        prober: Prober | None = None
        try:
            model, facts = told(address, options["model"], options["key"])
            prober = Prober(Endpoint(address, model, options["key"]), options["seed"])
            asyncio.run(_measured(prober, facts, options, samples))
            found = fitted(samples, token_budget=options["token_budget"])
        except (ProbeError, TooLittleError) as error:
            raise CommandError(f"{options['url']}: {error}") from error
        except asyncio.CancelledError:
            sys.stderr.write("stopped: no profile is written\n")
            self.stdout.write(json.dumps(_partial(samples, prober, options), sort_keys=True))
            sys.exit(STOPPED)
        block_tokens = facts.block_tokens or BLOCK_TOKENS
        kv_tokens = options["kv_tokens"] or UNTOLD_KV_TOKENS
        blocks = kv_tokens // block_tokens
        if facts.kv_blocks and not options["kv_tokens"]:
            blocks = facts.kv_blocks
        profile = EngineProfile(
            model,
            found.times,
            kv_blocks=blocks,
            block_tokens=block_tokens,
            token_budget=options["token_budget"],
            seats=options["seats"],
            context_tokens=facts.context_tokens or UNTOLD_CONTEXT_TOKENS,
        )
        measured = {
            "url": options["url"],
            "requests": prober.requests,
            "points": found.points,
            "error_ratio": round(found.error_ratio, 4),
            "overhead_s": found.overhead_s,
            **as_told(facts),
        }
        text = json.dumps(profile_json(profile, measured), indent=1, sort_keys=True)
        if options["out"] is None:
            self.stdout.write(text)
            return
        try:
            options["out"].write_text(text + "\n")
        except OSError as error:
            raise CommandError(f"{options['out']}: {error.strerror}") from error


def _check(options: dict[str, Any]) -> None:
    bounds = {
        "requests": (1, MOST_REQUESTS),
        "seconds": (1, LONGEST_S),
        "batch": (1, 1024),
        "token_budget": (1, 1 << 20),
        "seats": (1, 1 << 16),
    }
    for name, (least, most) in bounds.items():
        if not least <= options[name] <= most:
            raise CommandError(f"--{name.replace('_', '-')}: from {least:g} to {most:g}")


async def _measured(
    prober: Prober, facts: Told, options: dict[str, Any], samples: list[Sample]
) -> None:
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread
            loop.add_signal_handler(number, task.cancel if task else lambda: None)
    asks = plan(
        context_tokens=facts.context_tokens or UNTOLD_CONTEXT_TOKENS,
        most_batch=min(options["batch"], options["seats"]),
        most_requests=options["requests"],
    )

    def progress(text: str) -> None:
        if not options["quiet"]:
            print(text, file=sys.stderr)

    await probe(prober, asks, most_s=options["seconds"], progress=progress, samples=samples)


def _partial(
    samples: list[Sample], prober: Prober | None, options: dict[str, Any]
) -> dict[str, Any]:
    """What was measured until it was stopped, and the fit where that is enough for one."""
    try:
        found = fitted(samples, token_budget=options["token_budget"])
    except TooLittleError:
        found = None
    return {
        "is_whole": False,
        "url": options["url"],
        "seed": options["seed"],
        "requests": prober.requests if prober else 0,
        "samples": [asdict(one) for one in samples],
        "times": asdict(found.times) if found else None,
    }
