"""Ledger tests commit for real: writers use connections of their own."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db.backends.postgresql.operations import DatabaseOperations


@pytest.fixture(scope="session", autouse=True)
def flush_reaches_partitions() -> Iterator[None]:
    """Django's flush skips unmanaged tables, and then cannot truncate what they refer to."""
    original = DatabaseOperations.sql_flush

    def flush(self: Any, style: Any, tables: Any, **options: Any) -> Any:
        return original(self, style, [*tables, "tenants_usage", "tenants_shape"], **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseOperations, "sql_flush", flush)
        yield
