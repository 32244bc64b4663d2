"""Local models: the same bytes everywhere, made whole or not at all, ASCII in what they can say."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from capacity.drivers import vllm_models
from capacity.drivers.vllm_models import RECIPE_FILE, SHAPES, ModelError, ensure_model, vocabulary

# Another digest means other answers than before: raise FORMAT, so that old files are made anew.
TINY_WEIGHTS = "da278ee87f1da6bd71ea268d4349696c8ff84397f2b1d8e63b8e4fa47f76cc1a"


def test_weights_are_the_same_on_every_machine(tmp_path: Path) -> None:
    made = ensure_model("tiny", tmp_path)
    digest = hashlib.sha256((made / "model.safetensors").read_bytes()).hexdigest()
    assert digest == TINY_WEIGHTS


def test_only_whole_ascii_words_and_punctuation_can_be_sampled(tmp_path: Path) -> None:
    bias_of = dict(zip(vocabulary(), vllm_models._biases(), strict=True))
    sampled = {token for token, bias in bias_of.items() if bias == 0}
    assert len(sampled) == 258
    said = {token.replace("Ġ", " ").replace("Ċ", "\n") for token in sampled}
    assert all(text.isascii() for text in said)
    assert " the" in said
    assert " th" not in said
    assert bias_of[vllm_models.END_OF_TEXT] == bias_of["Ġth"] == vllm_models._NEVER


def test_every_merge_makes_a_token_and_every_byte_is_one(tmp_path: Path) -> None:
    model = json.loads((ensure_model("tiny", tmp_path) / "tokenizer.json").read_text())["model"]
    ids = model["vocab"]
    assert sorted(ids.values()) == list(range(len(ids)))
    assert all(left in ids and left + right in ids for left, right in model["merges"])
    assert len([token for token in ids if len(token) == 1]) == 256


def test_header_of_the_weights_covers_the_file(tmp_path: Path) -> None:
    raw = (ensure_model("tiny", tmp_path) / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    ends = [it["data_offsets"][1] for name, it in header.items() if name != "__metadata__"]
    assert max(ends) == len(raw) - 8 - size
    assert header["lm_head.weight"]["shape"] == [len(vocabulary()), SHAPES["tiny"].hidden]


def test_half_made_and_outdated_models_are_made_anew(tmp_path: Path) -> None:
    made = ensure_model("tiny", tmp_path)
    (made / RECIPE_FILE).unlink()
    (made / "model.safetensors").write_bytes(b"half")
    again = ensure_model("tiny", tmp_path)
    assert again == made
    assert (made / "model.safetensors").stat().st_size > 100_000
    (made / RECIPE_FILE).write_text('{"recipe": "older"}')
    (made / "left-over").touch()
    ensure_model("tiny", tmp_path)
    assert not (made / "left-over").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_made_once_however_many_ask(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: ensure_model("tiny", tmp_path), range(8)))
    assert set(found) == {tmp_path / "tiny"}
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]
    before = (tmp_path / "tiny" / "model.safetensors").stat().st_mtime_ns
    ensure_model("tiny", tmp_path)
    assert (tmp_path / "tiny" / "model.safetensors").stat().st_mtime_ns == before


def test_unknown_model_and_unusable_directory_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no local model 'huge': choose one of tiny, small"):
        ensure_model("huge", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot make model 'tiny'"):
        ensure_model("tiny", tmp_path / "file")
