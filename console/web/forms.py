"""Form base: what a person typed goes to one service call, its refusals come back to the fields."""

from typing import Any

from django import forms

from console.characters import refused_in, said_of
from console.errors import DomainError
from console.web.units import parse_whole


class WholeNumberField(forms.IntegerField):
    """A whole number as people write one: see `units.parse_whole`."""

    def to_python(self, value: object) -> int | None:
        """The number, None for an empty input; raises `ValidationError`."""
        if value in self.empty_values:
            return None
        try:
            return parse_whole(str(value))
        except ValueError:
            raise forms.ValidationError("Enter a whole number, in digits only.") from None


class ServiceForm(forms.Form):
    """A form whose values are a service's keyword arguments.

    Field names equal argument names, so that `DomainError.field` finds its input. Every text is
    judged as one that comes over REST is (`console.characters`).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            if isinstance(field, forms.CharField):
                field.validators = [*field.validators, _showable]

    def add_refusal(self, error: DomainError) -> None:
        """Show a service's refusal at its field, or above the form if no field is at fault."""
        text = f"{error.message} {error.hint}".strip()
        self.add_error(error.field if error.field in self.fields else None, text)


def _showable(text: str) -> None:
    """Raise `ValidationError` for a text with a character that no text may hold."""
    if character := refused_in(text):
        raise forms.ValidationError(said_of(character))


class TypedConfirmation(ServiceForm):
    """Asks to type a given word before a dangerous act.

    `expected` is compared without case or surrounding space.
    """

    confirm = forms.CharField(max_length=120, widget=forms.TextInput(attrs={"autocomplete": "off"}))

    def __init__(self, *args: object, expected: str, label: str, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.expected = expected
        self.fields["confirm"].label = label

    def clean_confirm(self) -> str:
        """The typed word; refused unless it is the expected one."""
        typed = str(self.cleaned_data["confirm"]).strip()
        if typed.casefold() != self.expected.casefold():
            raise forms.ValidationError("That is not it: nothing was changed.")
        return typed
