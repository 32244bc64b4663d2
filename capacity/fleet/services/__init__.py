"""Writes of the fleet: inventory, and moving actual replicas to the desired ones."""

from capacity.fleet.services.inventory import (
    PUSH_SNAPSHOT,
    RECONCILE_POOLS,
    add_replica,
    change_replica,
    create_domain,
    create_model,
    create_pool,
    create_region,
    drivers,
    kv_tokens_of,
    revised,
    set_desired_replicas,
)
from capacity.fleet.services.limits import set_capacity_limit
from capacity.fleet.services.providers import (
    remove_provider_key,
    set_capabilities,
    set_provider_key,
)
from capacity.fleet.services.reconcile import reconcile_pools

__all__ = [
    "PUSH_SNAPSHOT",
    "RECONCILE_POOLS",
    "add_replica",
    "change_replica",
    "create_domain",
    "create_model",
    "create_pool",
    "create_region",
    "drivers",
    "kv_tokens_of",
    "reconcile_pools",
    "remove_provider_key",
    "revised",
    "set_capabilities",
    "set_capacity_limit",
    "set_desired_replicas",
    "set_provider_key",
]
