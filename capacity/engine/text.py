"""The bundled engine's tokens: reversible pieces of text, and text made of them.

A token is the next at most four bytes of a message's UTF-8 text that end on a character; roles and
the end of a message are one token each. Each message is cut on its own, so a prompt that extends an
earlier conversation begins with exactly the tokens of that conversation: prefix reuse over turns is
real, and a text always has the same count. Generated text is readable lower-case ASCII of which
each four bytes are one token, hence a completion sent back in the next turn has the tokens it was
generated as.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import NormalDist

PIECE_BYTES = 4
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_SPECIAL = 0xFE  # first byte of role and end pieces: never in UTF-8
_PIECES = {role: bytes((_SPECIAL, number)) for number, role in enumerate(ROLES, start=1)}
END_PIECE = bytes((_SPECIAL, 0))
_MARK = b"\x01"  # keeps leading zero bytes of a piece in its id
_FIRST_TEXT_ID = 256

# Lengths of answers: lognormal with this median and spread, as chat traffic shows.
MEDIAN_OUTPUT_TOKENS = 150
OUTPUT_LOG_SD = 0.9
_UNIT = 1 << 64

_VOCABULARY = (
    "the of and to in is that it for as with was on be by this are from at or have an they which "
    "one you all were her would there their we him been has when who will no more if out so said "
    "what up its about than into them can only other new some could time these two may then do "
    "first any my now such like our over man even most made after also did many before must "
    "through back years where much your way well down should because each just those people how "
    "too little state good very make world still own see men work long get here between both life "
    "being under never day same another know while last might us great"
)
WORDS = tuple(_VOCABULARY.split())  # 128: a word is seven bits of a digest


class UnknownTokenError(ValueError):
    """A token id that no text has."""


def _wide_pieces(text: str) -> Iterator[bytes]:
    """Pieces of text with characters of more than one byte: none is cut."""
    piece = b""
    for character in text:
        encoded = character.encode("utf-8", "surrogatepass")
        if len(piece) + len(encoded) > PIECE_BYTES:
            yield piece
            piece = encoded
        else:
            piece += encoded
    if piece:
        yield piece


def pieces_of(text: str) -> list[bytes]:
    """Tokens of a plain text."""
    if text.isascii():
        raw = text.encode()
        return [raw[at : at + PIECE_BYTES] for at in range(0, len(raw), PIECE_BYTES)]
    return list(_wide_pieces(text))


def chat_pieces(messages: Iterable[tuple[str, str]], preamble: str = "") -> list[bytes]:
    """Tokens of a conversation of (role, text), ready for the assistant's answer.

    `preamble` (tool definitions) comes first. Unknown roles count as `user`.
    """
    pieces = pieces_of(preamble)
    for role, text in messages:
        pieces.append(_PIECES.get(role, _PIECES["user"]))
        pieces += pieces_of(text)
        pieces.append(END_PIECE)
    pieces.append(_PIECES["assistant"])
    return pieces


def id_of(piece: bytes) -> int:
    """Number of a token: below 256 for role and end pieces."""
    if piece[0] == _SPECIAL:
        return piece[1]
    return int.from_bytes(_MARK + piece, "big")


def piece_of(token_id: int) -> bytes:
    """Inverse of `id_of`. Raises `UnknownTokenError`."""
    if 0 <= token_id <= len(ROLES):
        return bytes((_SPECIAL, token_id))
    raw = token_id.to_bytes((token_id.bit_length() + 7) // 8, "big") if token_id > 0 else b""
    if token_id < _FIRST_TEXT_ID or raw[:1] != _MARK or len(raw) > PIECE_BYTES + 1:
        raise UnknownTokenError(f"no token has the id {token_id}")
    return raw[1:]


def draw_key(pieces: Sequence[bytes], seed: int, choice: int) -> bytes:
    """Key of all chance in one answer: the prompt, the seed, and which of `n` it is."""
    digest = hashlib.blake2b(b"\xff".join(pieces), digest_size=16)
    digest.update(f"{seed}:{choice}".encode())
    return digest.digest()


def natural_output_tokens(key: bytes) -> int:
    """How long the answer is when nobody stops it: at least 1, end token included."""
    raw = hashlib.blake2b(b"length", key=key, digest_size=8).digest()
    share = (int.from_bytes(raw, "big") + 0.5) / _UNIT
    spread = NormalDist().inv_cdf(share) * OUTPUT_LOG_SD
    return max(1, round(MEDIAN_OUTPUT_TOKENS * math.exp(spread)))


def words_of(key: bytes, tokens: int) -> str:
    """Text of exactly `tokens` tokens."""
    length = tokens * PIECE_BYTES
    parts: list[str] = []
    total = counter = 0
    while total < length:
        for number in hashlib.blake2b(counter.to_bytes(8, "big"), key=key).digest():
            word = WORDS[number & 127] + (". " if number > 242 else " ")
            parts.append(word)
            total += len(word)
        counter += 1
    return "".join(parts)[:length]
