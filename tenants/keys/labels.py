"""Names of keys for pages that hold only their ids."""

from collections.abc import Iterable

from tenants.models import ApiKey


def labels_of(key_ids: Iterable[int]) -> dict[int, tuple[str, str, str]]:
    """Prefix, name and tenant slug of each key id that exists: one query."""
    rows = ApiKey.objects.filter(pk__in=set(key_ids)).values_list(
        "pk", "prefix", "name", "tenant__slug"
    )
    return {pk: (prefix, name, slug) for pk, prefix, name, slug in rows}
