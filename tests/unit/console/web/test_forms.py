"""Fields that people type into."""

import pytest
from django import forms

from console.web.forms import WholeNumberField


@pytest.mark.parametrize(("text", "number"), [("7", 7), (" 12 ", 12), ("-3", -3), ("", None)])
def test_a_whole_number_is_read_as_written(text: str, number: int | None) -> None:
    assert WholeNumberField(required=False).clean(text) == number


@pytest.mark.parametrize("text", ["1_000", "\u0663", "1e3", "1.0", "9" * 19, "0x10"])
def test_what_people_do_not_write_as_a_number_is_refused(text: str) -> None:
    with pytest.raises(forms.ValidationError, match="digits only"):
        WholeNumberField().clean(text)
