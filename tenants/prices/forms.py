"""Forms of the price book: dollars as people type them, nano-dollars as services take them."""

from django import forms

from console.errors import DomainError
from console.web import units
from console.web.forms import ServiceForm

WRITE_DOLLARS = "Write dollars, such as 0.60; 0 must be said."
RATES = ("input_nanousd", "cached_nanousd", "output_nanousd")
OWN_RATES = ("cache_write_nanousd", "reasoning_nanousd", "image_nanousd")  # may be left empty


class AddForm(ServiceForm):
    """What adding any price asks: from when on, why, and that an odd one is meant."""

    unit = ""
    valid_from = forms.DateTimeField(
        required=False,
        help_text="UTC; empty: now.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
    )
    note = forms.CharField(required=False, max_length=200)
    confirm = forms.BooleanField(label="Yes, this unusual price is meant", required=False)
    is_doubted = False

    def add_refusal(self, error: DomainError) -> None:
        """A doubtful price is the one refusal that a tick overrules."""
        if error.code == "price_needs_confirmation":
            self.is_doubted = True
            error.hint = f"Check the unit, {self.unit}; tick below if it is meant."
        super().add_refusal(error)


class PriceForm(AddForm):
    """A model's next price, typed in USD per million tokens."""

    unit = "USD per million tokens"

    model = forms.CharField(max_length=200)
    input_nanousd = forms.CharField(label="Input, USD/M tok", max_length=24)
    cached_nanousd = forms.CharField(label="Cached input, USD/M tok", max_length=24)
    output_nanousd = forms.CharField(label="Output, USD/M tok", max_length=24)
    cache_write_nanousd = forms.CharField(
        label="Cache write, USD/M tok",
        max_length=24,
        required=False,
        help_text="Empty: as input.",
    )
    reasoning_nanousd = forms.CharField(
        label="Reasoning, USD/M tok",
        max_length=24,
        required=False,
        help_text="Empty: as output.",
    )
    image_nanousd = forms.CharField(
        label="Image, USD each",
        max_length=24,
        required=False,
        help_text="Besides its tokens; empty: nothing more.",
    )
    field_order = (  # the price first, then from when on and why
        "model",
        *RATES,
        *OWN_RATES,
        "valid_from",
        "note",
        "confirm",
    )

    def clean(self) -> dict[str, object]:
        """Rates in nano-dollars per million tokens."""
        cleaned = dict(super().clean() or {})
        for name in (*RATES, *OWN_RATES):
            if name in OWN_RATES and not cleaned.get(name):
                cleaned[name] = 0 if name == "image_nanousd" else None
                continue
            try:
                cleaned[name] = units.parse_usd(str(cleaned.get(name, "")))
            except ValueError:
                self.add_error(name, WRITE_DOLLARS)
        return cleaned


class SingleForm(AddForm):
    """The next price of one rate; `rate` names its field."""

    rate = ""

    def clean(self) -> dict[str, object]:
        """The rate in nano-dollars."""
        cleaned = dict(super().clean() or {})
        try:
            cleaned[self.rate] = units.parse_usd(str(cleaned.get(self.rate, "")))
        except ValueError:
            self.add_error(self.rate, WRITE_DOLLARS)
        return cleaned


class ResourcePriceForm(SingleForm):
    """A named resource's next price, typed in USD a use."""

    unit, rate = "USD a use", "unit_nanousd"
    resource = forms.CharField(
        max_length=100, help_text="Such as vector_query, tool:search or db:orders."
    )
    unit_nanousd = forms.CharField(label="One use, USD", max_length=24, help_text="0 must be said.")
    field_order = ("resource", "unit_nanousd", "valid_from", "note", "confirm")


class PoolPriceForm(SingleForm):
    """What a pool of ours costs next, typed in USD per GPU and second."""

    unit, rate = "USD per GPU and second", "gpu_second_nanousd"
    pool = forms.CharField(max_length=120)
    gpu_second_nanousd = forms.CharField(
        label="One GPU for a second, USD",
        max_length=24,
        help_text="An hour's price divided by 3600: 2.50 an hour is 0.000694445.",
    )
    field_order = ("pool", "gpu_second_nanousd", "valid_from", "note", "confirm")
