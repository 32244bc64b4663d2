"""Ledger tests commit for real: writers use connections of their own."""

from tests.ledgering import flush_reaches_partitions

__all__ = ["flush_reaches_partitions"]
