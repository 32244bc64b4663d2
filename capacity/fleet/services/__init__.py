"""Writes of the fleet: inventory, and moving actual replicas to the desired ones."""

from capacity.fleet.services.inventory import (
    change_replica,
    create_domain,
    create_model,
    create_pool,
    create_region,
    set_desired_replicas,
)
from capacity.fleet.services.limits import set_capacity_limit
from capacity.fleet.services.reconcile import reconcile_pools

__all__ = [
    "change_replica",
    "create_domain",
    "create_model",
    "create_pool",
    "create_region",
    "reconcile_pools",
    "set_capacity_limit",
    "set_desired_replicas",
]
