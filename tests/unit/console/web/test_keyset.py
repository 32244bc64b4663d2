"""Cursors and page sizes: only what we made is accepted."""

import pytest

from console.errors import InvalidInput
from console.models import AuditEvent
from console.web import keyset


def test_a_cursor_survives_the_round_trip():
    values = ["2025-11-29 18:00:00+00:00", "42", 'a"b,ü']
    assert keyset.decode_cursor(keyset.encode_cursor(values), 3) == values


@pytest.mark.parametrize(
    "text", ["x", "!!!", "ü", "W10", "e30", keyset.encode_cursor(["1", "2"]), "A" * 5000, "WzFd"]
)
def test_any_other_text_is_refused(text):
    with pytest.raises(InvalidInput) as caught:
        keyset.decode_cursor(text, 1)
    assert caught.value.field == "after"


def test_a_cursor_of_the_wrong_type_is_refused_before_the_database():
    with pytest.raises(InvalidInput):
        keyset.take(
            AuditEvent.objects.all(),
            order=("-id",),
            after=keyset.encode_cursor(["1; drop table"]),
            limit=5,
        )


@pytest.mark.parametrize("text", ["0", "201", "-1", "1.5", "ten", "9" * 40])
def test_page_sizes_are_bounded(text):
    with pytest.raises(InvalidInput):
        keyset.parse_limit(text)


def test_page_size_has_a_default():
    assert keyset.parse_limit(None) == keyset.parse_limit("") == 50
    assert keyset.parse_limit("200") == 200
