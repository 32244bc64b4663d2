"""Fields and serializers that take exactly what they say: no coercion, no unknown names."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from rest_framework import serializers

from console.errors import MAX_CURSOR_CHARS, BadCursor
from console.rest.money import nanousd_of, usd_text

_MOST_SHOWN = 80  # of a value that is refused
_OFFSET = re.compile(r"(?:[Zz]|[+-]\d\d:?\d\d)$")


class StrictInteger(serializers.IntegerField):
    """A JSON integer; text and true are refused."""

    def to_internal_value(self, data: Any) -> int:
        """The integer. Raises `ValidationError`."""
        if isinstance(data, bool) or not isinstance(data, int):
            self.fail("invalid")
        return super().to_internal_value(data)


class StrictNumber(serializers.FloatField):
    """A JSON number; text and true are refused."""

    def to_internal_value(self, data: Any) -> float:
        """The number. Raises `ValidationError`."""
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.fail("invalid")
        return super().to_internal_value(data)


class StrictText(serializers.CharField):
    """A JSON string; numbers are refused."""

    def to_internal_value(self, data: Any) -> str:
        """The text. Raises `ValidationError`."""
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class StrictFlag(serializers.BooleanField):
    """JSON true or false, nothing that reads like it."""

    def to_internal_value(self, data: Any) -> bool:
        """The flag. Raises `ValidationError`."""
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return data


class UsdField(serializers.CharField):
    """Nano-dollars inside, decimal text of US dollars outside; `is_signed` takes a minus."""

    def __init__(self, *, is_signed: bool = False, **options: Any) -> None:
        options.setdefault("help_text", "US dollars as decimal text, at most nine decimals.")
        super().__init__(**options)
        self._is_signed = is_signed

    def to_internal_value(self, data: Any) -> int:  # type: ignore[override]
        """Nano-dollars. Raises `ValidationError` for numbers and malformed text."""
        if not isinstance(data, str):
            self.fail("invalid")
        is_negative = self._is_signed and data.startswith("-")
        try:
            amount = nanousd_of(data[1:] if is_negative else data)
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from error
        return -amount if is_negative else amount

    def to_representation(self, value: Any) -> str:
        """Decimal text."""
        return usd_text(value)


class InstantField(serializers.DateTimeField):
    """An instant with its offset, shown in UTC with microseconds; a bare local time is refused."""

    def __init__(self, **options: Any) -> None:
        super().__init__(default_timezone=UTC, format=None, **options)

    def to_internal_value(self, data: Any) -> datetime:
        """An aware instant. Raises `ValidationError`."""
        if not isinstance(data, str) or not _OFFSET.search(data):
            raise serializers.ValidationError(
                "Say the instant with its offset, such as 2026-05-01T00:00:00Z.", code="invalid"
            )
        found = super().to_internal_value(data)
        assert isinstance(found, datetime)  # noqa: S101 - the base class refuses plain dates
        return found

    def to_representation(self, value: Any) -> str:
        """ISO 8601 in UTC, ending in Z."""
        return f"{value.astimezone(UTC).isoformat(timespec='microseconds').removesuffix('+00:00')}Z"


class StrictSerializer(serializers.Serializer[Any]):
    """An input that names every field it takes; others are refused, never ignored."""

    def to_internal_value(self, data: Any) -> Any:
        """Validated values. Raises `ValidationError` naming every field at fault."""
        if isinstance(data, Mapping):
            unknown = [str(name) for name in data if name not in self.fields]
            if unknown:
                there_are = ", ".join(self.fields)
                title = f"Unknown field. There are: {there_are}." if there_are else "Unknown field."
                raise serializers.ValidationError(
                    {
                        name: serializers.ErrorDetail(title, code="unknown_field")
                        for name in sorted(unknown)
                    }
                )
        return super().to_internal_value(data)


class OutSerializer(serializers.Serializer[Any]):
    """An output read from a frozen value's attributes."""


class CursorField(serializers.CharField):
    """The `next` of an earlier page; whatever cannot be one raises `BadCursor`, as a list would."""

    def run_validation(self, data: Any = serializers.empty) -> Any:
        """The text as it is."""
        if isinstance(data, str) and not (data.isprintable() and 0 < len(data) <= MAX_CURSOR_CHARS):
            raise BadCursor
        return super().run_validation(data)


class OfferedField(serializers.ChoiceField):
    """One of `choices`; a refusal lists them."""

    default_error_messages = {"invalid_choice": "{input} is none of: {offered}."}

    def to_internal_value(self, data: Any) -> Any:
        """The choice. Raises `ValidationError`."""
        if data == "" and self.allow_blank:
            return ""
        if not isinstance(data, str) or data not in self.choices:
            offered = ", ".join(str(one) for one in self.choices if one != "")
            self.fail("invalid_choice", input=repr(data)[:_MOST_SHOWN], offered=offered)
        return data


class PageQuery(StrictSerializer):
    """Keyset paging: `after` is the `next` of the page before."""

    after = CursorField(required=False)
    limit = serializers.IntegerField(required=False, default=50, min_value=1, max_value=200)
