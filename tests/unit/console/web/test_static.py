"""Vendored scripts are the ones that were read; our own stay inside their budgets."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
STATIC = ROOT / "static"
MANIFEST = json.loads((STATIC / "vendor" / "manifest.json").read_text())
CSS_BUDGET_BYTES = 16 * 1024
SCRIPT_BUDGET_BYTES = 70 * 1024


def zipped(paths) -> int:
    return sum(len(gzip.compress(path.read_bytes(), 9)) for path in paths)


@pytest.mark.parametrize("entry", MANIFEST, ids=lambda entry: entry["file"])
def test_vendored_file_has_its_digest(entry):
    raw = (STATIC / "vendor" / entry["file"]).read_bytes()
    assert hashlib.sha256(raw).hexdigest() == entry["sha256"]


def test_every_vendored_file_is_named():
    names = {path.name for path in (STATIC / "vendor").iterdir()} - {"manifest.json"}
    assert names == {entry["file"] for entry in MANIFEST}
    assert all(entry["licence"] and entry["version"] for entry in MANIFEST)


def test_styles_and_scripts_stay_inside_their_budgets():
    assert zipped(STATIC.rglob("*.css")) <= CSS_BUDGET_BYTES
    assert zipped(STATIC.rglob("*.js")) <= SCRIPT_BUDGET_BYTES


def test_no_template_holds_inline_script_or_style():
    inline = re.compile(
        r"<style|<[a-z][^>]*\s(style|on[a-z]+)=|javascript:|<script(?![^>]*\bsrc=)(?![^>]*json)"
    )
    # A report is one file that is read without the console, so it brings its style along.
    alone = ROOT / "templates/capacity/report_file.html"
    for path in {*(ROOT / "templates").rglob("*.html")} - {alone}:
        assert not inline.search(path.read_text()), path


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_tokens_keep_their_contrast(theme):
    css = (STATIC / "css" / "tokens.css").read_text()
    block = css.split(f'data-theme="{theme}"]', 1)[1].split("}", 1)[0]
    tokens = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", block))
    for ground in ("bg", "surface", "raised"):
        for ink in ("text", "muted", "accent", "ok", "warn", "bad", "stale"):
            assert contrast(tokens[ink], tokens[ground]) >= 4.5, (ink, ground)
        assert contrast(tokens["control"], tokens[ground]) >= 3, ground
    for tone in ("ok", "warn", "bad", "stale"):
        assert contrast(tokens[tone], tokens[f"{tone}-soft"]) >= 4.5, tone
    assert contrast(tokens["accent"], tokens["accent-soft"]) >= 4.5
    assert contrast(tokens["on-accent"], tokens["accent"]) >= 4.5


def test_auto_theme_equals_the_dark_one():
    css = (STATIC / "css" / "tokens.css").read_text()
    dark, auto = (
        re.findall(
            r"--[a-z0-9-]+: #[0-9a-f]{6}", css.split(f'data-theme="{name}"]', 1)[1].split("}")[0]
        )
        for name in ("dark", "auto")
    )
    assert dark == auto
