"""Two small models for a real vLLM, made here: no download, the same bytes on every machine.

Both are Qwen2 decoders with random weights drawn from a fixed seed, so all replicas, restarts and
hosts give the same answer to the same prompt at temperature 0. The vocabulary is every byte (for
any input) and a few hundred words with a space before them, and those words' beginnings. Only whole
words, full stop, comma and line break can be sampled: output is ASCII, an answer ends at
`max_tokens` or a stop string, and the tokenizer reads an answer as the tokens that were sampled.
"""

import hashlib
import json
import math
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

FORMAT = 1  # part of each directory's recipe: raise it when the files change
SEED = 20_260_113
END_OF_TEXT = "<|endoftext|>"
RECIPE_FILE = "headrace.json"
# The first column of every hidden state is the same positive value in all layers (nothing writes
# to it), so the output matrix's first column is a bias of each token's logit.
_CONSTANT = 8.0
_NEVER = -1000.0
_EMBEDDING_STD = 1.0
_OUTPUT_STD = 3.0  # of a logit: the likeliest word stands out, and no word is certain
_PUNCTUATION = ".,\n"
_WORD_TEXT = """
able about above across after again air all almost along also always and answer any are area around
ask away back base be because been before began being below best better between big black book both
bring build but by call came can car care change check children city close cold come common could
country course cover day deep did direct do done door down draw during each early earth east end
enough even ever every example eye face fact family far father few field final find fine first
follow food foot for force form found four free friend from front full game gave get girl give go
gold good got great green ground group grow had half hand hard has have he head hear help her here
high him his hold home hour house how idea if in is it just keep kind knew know land language large
last late lead learn leave left less let letter life light like line list listen little live long
look love low made make man many map mark may me mean measure men might mind minute miss money more
morning most mother move much music must my name near need never new next night no north not note
nothing notice now number of on one or our out over people said see she so some that the their them
then there they this time to two up us use was water way we were what when which who will with word
work world would year you your
"""
_WORDS = tuple(_WORD_TEXT.split())

_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a model."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    context_tokens: int

    @property
    def head_size(self) -> int:
        """Columns of one attention head."""
        return self.hidden // self.heads


# `small` computes so much per prompt token that a prefix cache hit is seen on two cores.
SHAPES = {
    "tiny": Shape(2, 128, 256, 2, 1, 8192),
    "small": Shape(4, 512, 1408, 8, 2, 8192),
}


class ModelError(Exception):
    """A model cannot be made; one line for a person."""


def ensure_model(name: str, directory: Path) -> Path:
    """Path of the model below `directory`, made now if it is not there as this code makes it.

    Raises `ModelError`. Several processes may ask at once; a killed one leaves nothing half made.
    """
    if name not in SHAPES:
        raise ModelError(f"no local model {name!r}: choose one of {', '.join(SHAPES)}")
    path = directory / name
    recipe = _recipe(name)
    if _is_made(path, recipe):
        return path
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=directory))
        try:
            _write(part, SHAPES[name], recipe)
            _put_in_place(part, path, recipe)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise ModelError(f"cannot make model {name!r} in {directory}: {error.strerror}") from error
    return path


def _is_made(path: Path, recipe: str) -> bool:
    try:
        return bool(json.loads((path / RECIPE_FILE).read_text()).get("recipe") == recipe)
    except (OSError, ValueError, AttributeError):
        return False


def _put_in_place(part: Path, path: Path, recipe: str) -> None:
    """Rename the finished directory; an older one, or what was left of one, goes first."""
    for _attempt in range(3):
        try:
            os.rename(part, path)
        except OSError:
            if _is_made(path, recipe):
                return  # another process was faster
            shutil.rmtree(path, ignore_errors=True)
        else:
            return
    os.rename(part, path)


def _recipe(name: str) -> str:
    told = repr((FORMAT, SEED, SHAPES[name], vocabulary(), _TEMPLATE, _CONSTANT, _NEVER))
    told += repr((_EMBEDDING_STD, _OUTPUT_STD, _PUNCTUATION))
    return hashlib.sha256(told.encode()).hexdigest()


def vocabulary() -> list[str]:
    """Every token in order of its id, as a byte-level tokenizer writes it."""
    return [END_OF_TEXT, *_byte_alphabet(), *(left + right for left, right in _merges())]


def _merges() -> list[tuple[str, str]]:
    """Each word grows from its space letter by letter: no two merges ever compete."""
    space = _byte_alphabet()[0x20]
    parts = {(space + word[:end], word[end]): None for word in _WORDS for end in range(len(word))}
    return list(parts)


def _byte_alphabet() -> list[str]:
    """A printable character for each byte, in order: the map that byte-level tokenizers share."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(0x100) if byte not in printable)
    shifted = {byte: chr(0x100 + index) for index, byte in enumerate(others)}
    return [shifted.get(byte, chr(byte)) for byte in range(0x100)]


def _biases() -> list[float]:
    """Bias of each token's logit; what stays for input only is never sampled."""
    alphabet = _byte_alphabet()
    sampled = {alphabet[byte] for byte in _PUNCTUATION.encode()}
    sampled |= {alphabet[0x20] + word for word in _WORDS}
    return [0.0 if token in sampled else _NEVER for token in vocabulary()]


def _write(directory: Path, shape: Shape, recipe: str) -> None:
    texts = {
        "config.json": _config(shape),
        "generation_config.json": {"eos_token_id": 0, "pad_token_id": 0},
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_OF_TEXT,
            "pad_token": END_OF_TEXT,
            "model_max_length": shape.context_tokens,
            "clean_up_tokenization_spaces": False,
            "chat_template": _TEMPLATE,
        },
    }
    for name, content in texts.items():
        (directory / name).write_text(json.dumps(content, indent=1))
    _write_weights(directory / "model.safetensors", shape)
    (directory / RECIPE_FILE).write_text(json.dumps({"recipe": recipe}))  # last: all is there


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": len(vocabulary()),
        "max_position_embeddings": shape.context_tokens,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 0,
        "hidden_act": "silu",
    }


def _tokenizer() -> dict[str, Any]:
    """Byte-level BPE: a piece of text becomes its longest known beginning and then bytes."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 0,
                "content": END_OF_TEXT,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(vocabulary())},
            "merges": [list(pair) for pair in _merges()],
        },
    }


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A matrix (or a vector: `rows` 0) of bfloat16 values drawn around 0, or all `fill`."""

    name: str
    rows: int
    columns: int
    std: float = 0.0
    fill: float = 0.0
    is_blind: bool = False  # its first row is 0: it writes nothing to the constant column
    first_column: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        return max(1, self.rows) * self.columns

    @property
    def shape(self) -> list[int]:
        return [self.rows, self.columns] if self.rows else [self.columns]


def _tensors(shape: Shape) -> Iterator[_Tensor]:
    tokens = len(vocabulary())
    hidden, wide, kv = shape.hidden, shape.intermediate, shape.kv_heads * shape.head_size
    unit = 1 / math.sqrt(hidden)
    # Attention that picks few tokens, and layers that outweigh the token itself: else the greedy
    # answer is one word for ever.
    constant = (_CONSTANT,) * tokens
    yield _Tensor("model.embed_tokens.weight", tokens, hidden, _EMBEDDING_STD, 0, False, constant)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        yield _Tensor(at + "input_layernorm.weight", 0, hidden, fill=1.0)
        yield _Tensor(at + "post_attention_layernorm.weight", 0, hidden, fill=1.0)
        for name, rows, scale in (("q", hidden, 12), ("k", kv, 2), ("v", kv, 2)):
            yield _Tensor(f"{at}self_attn.{name}_proj.weight", rows, hidden, scale * unit)
            yield _Tensor(f"{at}self_attn.{name}_proj.bias", 0, rows)
        yield _Tensor(at + "self_attn.o_proj.weight", hidden, hidden, 12 * unit, 0, True)
        yield _Tensor(at + "mlp.gate_proj.weight", wide, hidden, unit)
        yield _Tensor(at + "mlp.up_proj.weight", wide, hidden, 3 * unit)
        yield _Tensor(at + "mlp.down_proj.weight", hidden, wide, 12 / math.sqrt(wide), 0, True)
    yield _Tensor("model.norm.weight", 0, hidden, fill=1.0)
    biases = tuple(_biases())
    yield _Tensor("lm_head.weight", tokens, hidden, _OUTPUT_STD * unit, 0, False, biases)


def _write_weights(path: Path, shape: Shape) -> None:
    """A safetensors file: the header's length, the header, then each tensor's bytes in order."""
    tensors = list(_tensors(shape))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for tensor in tensors:
        end = start + 2 * tensor.count
        header[tensor.name] = {
            "dtype": "BF16",
            "shape": tensor.shape,
            "data_offsets": [start, end],
        }
        start = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    draw = random.Random(SEED)  # noqa: S311 - weights, not secrets
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors:
            file.write(_values(tensor, draw))


def _values(tensor: _Tensor, draw: random.Random) -> bytes:
    """Little-endian bfloat16 values: each drawn byte chooses one of 256 steps of a normal curve."""
    if not tensor.std:
        return _bfloat16(tensor.fill) * tensor.count
    curve = NormalDist(0, tensor.std)
    steps = [_bfloat16(curve.inv_cdf((byte + 0.5) / 256)) for byte in range(256)]
    drawn = draw.randbytes(tensor.count)
    values = bytearray(2 * tensor.count)
    for half in (0, 1):
        values[half::2] = drawn.translate(bytes(step[half] for step in steps))
    row_bytes = 2 * tensor.columns
    if tensor.is_blind:
        values[:row_bytes] = bytes(row_bytes)
    for row, value in enumerate(tensor.first_column):
        values[row * row_bytes : row * row_bytes + 2] = _bfloat16(value)
    return bytes(values)


def _bfloat16(value: float) -> bytes:
    """The upper half of the float32, cut, little-endian."""
    return struct.pack("<f", value)[2:]
