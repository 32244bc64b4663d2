"""Coverage-guided search over the gateway's parsers: `python -m tests.fuzz.run [TARGET...]`.

Atheris instruments `routing.gateway`, libFuzzer mutates the inputs of `corpus/`. It is no
dependency of the tests; its wheels are for Linux with CPython 3.11 to 3.13:

    .venv/bin/python -m pip install --require-hashes -r tests/fuzz/requirements.lock
    .venv/bin/python -m tests.fuzz.run --seconds 600        # each target, ten minutes in all
    .venv/bin/python -m tests.fuzz.run stream --seconds 60 --keep

An input that breaks a target is written to test-artifacts/fuzz/<target>/ and printed in base64; add
that line to `corpus/<target>.b64` with the repair. `--keep` adds the smallest set of inputs that
reach new code.
"""

import argparse
import base64
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CORPUS = HERE / "corpus"
FOUND = ROOT / "test-artifacts" / "fuzz"
MAX_BYTES = 700  # longer inputs find nothing more here, and are slower
INPUT_LIMIT_S = 5  # one that takes longer is a finding
MEMORY_MB = 1024
NAMES = ("request", "response", "stream", "body", "answer", "picture")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", choices=[*NAMES, []], help="default: all of them")
    parser.add_argument("--seconds", type=int, default=600, help="in all")
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("--keep", action="store_true", help="add what reaches new code to corpus/")
    options = parser.parse_args()
    targets = options.targets or list(NAMES)
    codes = [search(one, options.seconds // len(targets), options) for one in targets]
    return max(codes)


def search(target: str, seconds: int, options: argparse.Namespace) -> int:
    """One target in a process of its own, since libFuzzer ends with it. 0 when nothing broke."""
    broken = FOUND / target
    broken.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        seeds, grown, merged = (Path(directory, name) for name in ("seeds", "grown", "merged"))
        for folder in (seeds, grown, merged):
            folder.mkdir()
        for number, one in enumerate(kept(target)):
            (seeds / str(number)).write_bytes(one)
        again = _launcher(target, Path(directory))
        words = [
            f"-max_total_time={max(1, seconds)}",
            f"-max_len={MAX_BYTES}",
            f"-timeout={INPUT_LIMIT_S}",
            f"-rss_limit_mb={MEMORY_MB}",
            f"-seed={options.seed}",
            f"-artifact_prefix={broken}{os.sep}",
            "-print_final_stats=1",
        ]
        code = _fuzzer(target, [*words, str(grown), str(seeds)], again)
        if options.keep and code == 0:
            code = _fuzzer(target, ["-merge=1", str(merged), str(seeds), str(grown)], again)
            keep(target, {path.read_bytes() for path in merged.iterdir()} | {*kept(target)})
    return code


def kept(target: str) -> list[bytes]:
    """The inputs of a target: one a line, in base64."""
    lines = (CORPUS / f"{target}.b64").read_text().splitlines()
    return [base64.b64decode(line, validate=True) for line in lines]


def keep(target: str, inputs: Collection[bytes]) -> None:
    """Write a target's inputs, the shortest first."""
    ordered = sorted(inputs, key=lambda one: (len(one), one))
    lines = [base64.b64encode(one).decode() for one in ordered]
    (CORPUS / f"{target}.b64").write_text("\n".join(lines) + "\n")


def _fuzzer(target: str, words: list[str], again: Path) -> int:
    print(f"== {target}: {' '.join(words)}", flush=True)
    command = [sys.executable, "-m", "tests.fuzz.child", target, str(again), *words]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _launcher(target: str, directory: Path) -> Path:
    """A program that libFuzzer can start: to merge, it runs itself again."""
    path = directory / "again"
    words = [sys.executable, "-m", "tests.fuzz.child", target, str(path)]
    path.write_text(f'#!/bin/sh\ncd {shlex.quote(str(ROOT))}\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o700)
    return path


if __name__ == "__main__":
    sys.exit(main())
