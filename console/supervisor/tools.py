"""Programs that only tests need and pip cannot bring: a browser, Prometheus, nginx."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from console.supervisor.state import StartRefused


@dataclass(frozen=True, slots=True)
class Tool:
    """`variable` may name the program and tells the tests where it is."""

    name: str
    variable: str
    commands: tuple[str, ...]
    package: str

    def find(self) -> str:
        """Its path, or empty."""
        chosen = os.environ.get(self.variable, "")
        if chosen:
            return chosen if os.access(chosen, os.X_OK) else ""
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin"])
        return next((at for name in self.commands if (at := shutil.which(name, path=path))), "")


CHROMIUM = Tool(
    "Chromium", "HEADRACE_CHROMIUM", ("chromium", "chromium-browser", "google-chrome"), "chromium"
)
TOOLS = (
    CHROMIUM,
    Tool("Prometheus", "HEADRACE_PROMETHEUS", ("prometheus",), "prometheus"),
    Tool("nginx", "HEADRACE_NGINX", ("nginx",), "nginx-light"),
)


def ensure(say: Callable[[str], None], tools: Sequence[Tool] = TOOLS) -> dict[str, str]:
    """Find or bring every tool; variable -> path.

    System packages where we may install them, else Playwright's own browser. Raises `StartRefused`
    with one line naming what is missing: a test that needs it would otherwise be left out unseen.
    """
    found = {tool.variable: tool.find() for tool in tools}
    missing = [tool for tool in tools if not found[tool.variable]]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        _install_packages(missing, say)
        found |= {tool.variable: tool.find() for tool in missing}
    if CHROMIUM in tools and not found[CHROMIUM.variable]:
        say("downloading Playwright's Chromium ...")
        found[CHROMIUM.variable] = _playwright_browser()
    missing = [tool for tool in tools if not found[tool.variable]]
    if missing:
        names = ", ".join(tool.name for tool in missing)
        variables = ", ".join(tool.variable for tool in missing)
        packages = " ".join(tool.package for tool in missing)
        raise StartRefused(
            f"the tests need {names}: apt-get install {packages}, or set {variables}"
        )
    return found


def _install_packages(missing: Sequence[Tool], say: Callable[[str], None]) -> None:
    names = [tool.package for tool in missing]
    say(f"installing {' '.join(names)} with apt-get ...")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *names],
    ):
        subprocess.run(command, env=environment, capture_output=True, check=False)  # noqa: S603


def _playwright_browser() -> str:
    """Path of the browser that Playwright downloads; empty if it cannot."""
    playwright = [sys.executable, "-m", "playwright"]
    subprocess.run([*playwright, "install", "chromium"], capture_output=True, check=False)  # noqa: S603
    code = (
        "from playwright.sync_api import sync_playwright as s\n"
        "with s() as p: print(p.chromium.executable_path)"
    )
    asked = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    path = asked.stdout.strip()
    # The download may be there and still lack system libraries: only a start tells.
    works = path and Path(path).exists()
    if works:
        tried = subprocess.run([path, "--version"], capture_output=True, check=False)  # noqa: S603
        works = tried.returncode == 0
    return path if works else ""
