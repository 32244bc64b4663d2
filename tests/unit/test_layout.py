"""The walls stand where the design put them: top level, slices in layers, lock files."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TOP_LEVEL = {
    *("manage.py", "pyproject.toml", "README.md", "LICENSE"),
    *("requirements.lock", "requirements-forecast.lock", "requirements-aiconfigurator.lock"),
    *("requirements-test.lock", "requirements-tracing.lock", "requirements-vllm.lock"),
    *("console", "tenants", "capacity", "routing", "telemetry"),
    *("templates", "static", "tests", "docker", "docs"),
}
APPS = ("console", "tenants", "routing", "capacity", "telemetry")
# Not slices: data, history, and templates' code.
NO_SLICE = {"models", "migrations", "templatetags", "__pycache__"}
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


def tracked_files() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def layer_modules() -> set[str]:
    layers = next(
        contract["layers"]
        for contract in SETTINGS["tool"]["importlinter"]["contracts"]
        if contract["name"] == "layers"
    )
    return {module.strip() for layer in layers for module in re.split(r"[:|]", layer)}


def exists(module: str) -> bool:
    path = ROOT.joinpath(*module.split("."))
    return (path / "__init__.py").exists() or path.with_suffix(".py").exists()


def test_top_level_is_exactly_what_the_design_names() -> None:
    seen = {name.partition("/")[0] for name in tracked_files()}
    visible = {name for name in seen if not name.startswith(".")}
    assert visible == TOP_LEVEL


def test_every_slice_stands_in_the_layers() -> None:
    named = layer_modules()
    slices = {
        f"{app}.{path.name}"
        for app in APPS
        for path in (ROOT / app).iterdir()
        if path.is_dir() and path.name not in NO_SLICE and (path / "__init__.py").exists()
    }
    assert slices - named == set()


def test_no_layer_names_a_missing_module() -> None:
    assert {module for module in layer_modules() if not exists(module)} == set()


@pytest.mark.parametrize(
    "name",
    [
        "requirements.lock",
        "requirements-aiconfigurator.lock",
        "requirements-forecast.lock",
        "requirements-test.lock",
        "requirements-tracing.lock",
        "requirements-vllm.lock",
        "tests/fuzz/requirements.lock",
    ],
)
def test_lock_file_pins_hashes_and_holds_no_address(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert "index-url" not in text
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if entry.strip()]
    loose = [
        entry.splitlines()[0]
        for entry in entries
        if not re.match(r"[A-Za-z0-9_.\[\],-]+==\S+", entry) or "--hash=sha256:" not in entry
    ]
    assert loose == []


def test_test_lock_holds_every_runtime_pin_unchanged() -> None:
    def pins(name: str) -> set[str]:
        found = re.findall(r"^([A-Za-z0-9_.-]+==\S+)", (ROOT / name).read_text(), re.MULTILINE)
        assert found
        return set(found)

    assert pins("requirements.lock") <= pins("requirements-forecast.lock")
    assert pins("requirements.lock") <= pins("requirements-tracing.lock")
    for extra in ("requirements-forecast.lock", "requirements-tracing.lock"):
        assert pins(extra) <= pins("requirements-test.lock")


def test_bootstrap_needs_nothing_but_the_standard_library() -> None:
    # -S leaves out site-packages: as on a machine where nothing was installed yet.
    done = subprocess.run(
        ["python3", "-S", "-c", "import console.supervisor.bootstrap"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
