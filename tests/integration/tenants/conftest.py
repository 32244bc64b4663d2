"""The ledger's tests: a party that is charged and a gateway that says what the store is told."""

import pytest
import redis

from tests.ledgering import Party, ScriptedGateway, cycle, make_party


@pytest.fixture
def gateway(store: redis.Redis) -> ScriptedGateway:
    """On a store that the ledger has opened."""
    cycle()
    return ScriptedGateway(store)


@pytest.fixture
def party() -> Party:
    """A tenant with a project and a key."""
    return make_party()
