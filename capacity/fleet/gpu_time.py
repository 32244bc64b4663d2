"""How long each pool's replicas held their GPUs, from the recorded changes of their lifecycle."""

from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from routing.contracts.enums import ReplicaLifecycle

MAX_POOLS = 2000
# A replica holds its GPUs from the start of loading until it has stopped.
_HOLDS = (
    ReplicaLifecycle.LOADING.value,
    ReplicaLifecycle.WARMING.value,
    ReplicaLifecycle.READY.value,
    ReplicaLifecycle.DRAINING.value,
)


@dataclass(frozen=True, slots=True)
class PoolTime:
    """A pool's GPU time in a period. `gpus` is per replica (tensor-parallel size)."""

    pool: str
    region: str
    hardware: str
    gpus: int
    replica_s: float

    @property
    def gpu_s(self) -> float:
        """GPU-seconds held."""
        return self.gpus * self.replica_s


def gpu_time(since: datetime, until: datetime) -> tuple[PoolTime, ...]:
    """GPU time of every pool in [since, until), by name: one query.

    Reads the changes of replicas that were there in the period, so history before it costs little.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH spans AS (SELECT r.pool_id, c.after, c.at,"
            "  lead(c.at, 1, coalesce(r.removed_at, %(until)s))"
            "   OVER (PARTITION BY c.replica_id ORDER BY c.at, c.id) AS ended_at"
            "  FROM capacity_replicachange c JOIN capacity_replica r ON r.id = c.replica_id"
            "  WHERE r.removed_at IS NULL OR r.removed_at >= %(since)s)"
            " SELECT p.name, g.slug, p.hardware,"
            "  CASE jsonb_typeof(p.spec->'tensor_parallel_size') WHEN 'number'"
            "   THEN (p.spec->>'tensor_parallel_size')::numeric ELSE 1 END,"
            "  coalesce(sum(greatest(0, extract(epoch FROM"
            "   least(s.ended_at, %(until)s) - greatest(s.at, %(since)s))))"
            "   FILTER (WHERE s.after = ANY(%(holds)s)), 0)"
            " FROM capacity_pool p JOIN capacity_failuredomain d ON d.id = p.domain_id"
            " JOIN capacity_region g ON g.id = d.region_id"
            " LEFT JOIN spans s ON s.pool_id = p.id"
            " GROUP BY p.id, g.slug ORDER BY p.name LIMIT %(most)s",
            {"since": since, "until": until, "holds": list(_HOLDS), "most": MAX_POOLS},
        )
        found = cursor.fetchall()
    return tuple(
        PoolTime(row[0], row[1], row[2], max(1, int(row[3])), float(row[4])) for row in found
    )
