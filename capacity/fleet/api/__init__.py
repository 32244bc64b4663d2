"""REST of the fleet: pools, limits over all tenants, the inventory."""

from capacity.fleet.api.inventory import Drift, Inventory, InventoryImport
from capacity.fleet.api.limits import FleetLimits, PoolLimits
from capacity.fleet.api.pools import Pool, PoolProvider, Pools

__all__ = [
    "Drift",
    "FleetLimits",
    "Inventory",
    "InventoryImport",
    "Pool",
    "PoolLimits",
    "PoolProvider",
    "Pools",
]
