"""Names for pages: of keys by their ids, and of a model to try a key with."""

from collections.abc import Iterable

from tenants.models import ApiKey, PriceRow


def labels_of(key_ids: Iterable[int]) -> dict[int, tuple[str, str, str]]:
    """Prefix, name and tenant slug of each key id that exists: one query."""
    rows = ApiKey.objects.filter(pk__in=set(key_ids)).values_list(
        "pk", "prefix", "name", "tenant__slug"
    )
    return {pk: (prefix, name, slug) for pk, prefix, name, slug in rows}


def a_priced_model() -> str:
    """The model whose price was set last; empty if none is priced."""
    return PriceRow.objects.order_by("-pk").values_list("model__name", flat=True).first() or ""
