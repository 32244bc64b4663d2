"""Fields and serializers that take exactly what they say: no coercion, no unknown names."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from console.rest.money import nanousd_of, usd_text


class StrictInteger(serializers.IntegerField):
    """A JSON integer; text and true are refused."""

    def to_internal_value(self, data: Any) -> int:
        """The integer. Raises `ValidationError`."""
        if isinstance(data, bool) or not isinstance(data, int):
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
    """Nano-dollars inside, decimal text of US dollars outside."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("help_text", "US dollars as decimal text, at most nine decimals.")
        super().__init__(**options)

    def to_internal_value(self, data: Any) -> int:  # type: ignore[override]
        """Nano-dollars. Raises `ValidationError` for numbers and malformed text."""
        if not isinstance(data, str):
            self.fail("invalid")
        try:
            return nanousd_of(data)
        except ValueError as error:
            raise serializers.ValidationError(str(error)) from error

    def to_representation(self, value: Any) -> str:
        """Decimal text."""
        return usd_text(value)


class StrictSerializer(serializers.Serializer[Any]):
    """An input that names every field it takes; others are refused, never ignored."""

    def to_internal_value(self, data: Any) -> Any:
        """Validated values. Raises `ValidationError` naming every field at fault."""
        if isinstance(data, Mapping):
            unknown = [str(name) for name in data if name not in self.fields]
            if unknown:
                raise serializers.ValidationError(
                    {
                        name: serializers.ErrorDetail("Unknown field.", code="unknown_field")
                        for name in sorted(unknown)
                    }
                )
        return super().to_internal_value(data)


class OutSerializer(serializers.Serializer[Any]):
    """An output read from a frozen value's attributes."""


class PageQuery(StrictSerializer):
    """Keyset paging: `after` is the `next` of the page before."""

    after = serializers.CharField(required=False, max_length=200)
    limit = serializers.IntegerField(required=False, default=50, min_value=1, max_value=200)
