"""Tokens of the bundled engine are reversible and stable over turns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.engine.text import (
    END_PIECE,
    WORDS,
    UnknownTokenError,
    chat_pieces,
    draw_key,
    id_of,
    natural_output_tokens,
    piece_of,
    pieces_of,
    words_of,
)
from capacity.simulation.kv import chain_hashes

texts = st.text(st.characters(codec="utf-8"), max_size=60)


@given(text=texts)
def test_pieces_give_the_text_back(text: str) -> None:
    pieces = pieces_of(text)
    assert b"".join(pieces).decode() == text
    assert all(1 <= len(piece) <= 4 and piece.decode() for piece in pieces)
    assert [piece_of(id_of(piece)) for piece in pieces] == pieces


def test_ids_of_special_pieces_are_their_own() -> None:
    pieces = chat_pieces([("system", "a"), ("user", "b"), ("assistant", "c")])
    assert [piece_of(id_of(piece)) for piece in pieces] == pieces


@pytest.mark.parametrize("token_id", [-1, 100, 255, 2**50, 0x0200])
def test_id_that_no_text_has_is_refused(token_id: int) -> None:
    with pytest.raises(UnknownTokenError):
        piece_of(token_id)


def test_text_is_exactly_as_long_as_asked_and_has_those_tokens() -> None:
    for tokens in (1, 2, 17, 400):
        text = words_of(b"key", tokens)
        assert text.isascii()
        assert len(pieces_of(text)) == tokens
        assert set(text) <= set("abcdefghijklmnopqrstuvwxyz. T")


def test_next_turn_begins_with_the_tokens_of_this_one() -> None:
    turn1 = [("user", "what is a headrace?")]
    prompt1 = chat_pieces(turn1)
    answer = words_of(draw_key(prompt1, 0, 0), 40)
    prompt2 = chat_pieces([*turn1, ("assistant", answer), ("user", "and a tailrace?")])
    through = [*prompt1, *pieces_of(answer), END_PIECE]
    assert prompt2[: len(through)] == through
    shared = len(through) // 16
    assert chain_hashes(prompt2, 16)[:shared] == chain_hashes(through, 16)[:shared]


def test_same_prompt_and_seed_give_the_same_answer_and_another_seed_another() -> None:
    prompt = pieces_of("hello")
    assert words_of(draw_key(prompt, 1, 0), 9) == words_of(draw_key(prompt, 1, 0), 9)
    assert words_of(draw_key(prompt, 1, 0), 9) != words_of(draw_key(prompt, 2, 0), 9)
    assert words_of(draw_key(prompt, 1, 0), 9) != words_of(draw_key(prompt, 1, 1), 9)


def test_lengths_are_spread_as_chat_answers_are() -> None:
    lengths = sorted(natural_output_tokens(bytes([n % 256, n // 256])) for n in range(2000))
    assert 130 < lengths[1000] < 170
    assert 200 < sum(lengths) / 2000 < 250
    assert lengths[0] >= 1


def test_vocabulary_is_one_word_for_seven_bits() -> None:
    assert len(set(WORDS)) == 128
