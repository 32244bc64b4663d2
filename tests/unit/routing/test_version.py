"""One version, said by every process."""

import tomllib
from pathlib import Path

from routing.contracts.process import ProcessStatus
from routing.contracts.version import VERSION

ROOT = Path(__file__).resolve().parents[3]


def test_every_process_says_the_version_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    assert ProcessStatus("worker", 1, 0, 0).version == VERSION
