"""Pooled clients for processes that may wait: one server or a cluster behind one surface.

Both speak redis-py's commands. In a cluster a transaction or a pipelined `WATCH` holds keys of one
hash tag only, and commands without a key (`PUBLISH`) stay outside pipelines. Redirections are
followed by the library, a bounded number of times. Replies are bytes; failures `redis.RedisError`.
"""

from typing import Any, Final, cast

import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.cluster import ClusterNode
from redis.exceptions import RedisClusterException
from redis.retry import Retry

from routing.store.address import ClusterAddress, cluster_of

CONNECT_TIMEOUT_S: Final = 2.0
SYNC_TIMEOUT_S: Final = 5.0
SYNC_CONNECTIONS: Final = 16
CLUSTER_TRIES: Final = 3  # of one command: a redirection, a slot on its way, a node that went
_BACKOFF_S: Final = (0.2, 0.02)


def sync_client(url: str, *, timeout_s: float = SYNC_TIMEOUT_S) -> "redis.Redis":
    """A pooled client for processes that block; connects when first used.

    To one server it sends nothing twice by itself: a retry is the caller's decision.
    """
    cluster = cluster_of(url)
    if cluster is not None:
        return cast("redis.Redis", _LazyCluster(cluster, timeout_s))
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=min(timeout_s, CONNECT_TIMEOUT_S),
        max_connections=SYNC_CONNECTIONS,
        retry=None,
        health_check_interval=0,
    )


def async_client(url: str, *, timeout_s: float) -> "redis.asyncio.Redis":
    """As `sync_client`, for a running loop."""
    cluster = cluster_of(url)
    if cluster is not None:
        return cast(
            "redis.asyncio.Redis",
            _AsyncCluster(
                startup_nodes=[AsyncClusterNode(host, port) for host, port in cluster.seeds],
                retry=AsyncRetry(ExponentialBackoff(*_BACKOFF_S), CLUSTER_TRIES),
                **_options(cluster, timeout_s),
            ),
        )
    return redis.asyncio.Redis.from_url(
        url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s
    )


def subscriber(url: str, *, timeout_s: float, turn: int) -> "redis.asyncio.Redis":
    """A client to subscribe with: in a cluster of any one node, for all of them hear a message.

    `turn` counts the tries, so that the next one asks another node.
    """
    cluster = cluster_of(url)
    if cluster is not None:
        url = cluster.url_of(cluster.seeds[turn % len(cluster.seeds)])
    return async_client(url, timeout_s=timeout_s)


def _options(cluster: ClusterAddress, timeout_s: float) -> dict[str, Any]:
    return {
        "username": cluster.username or None,
        "password": cluster.password or None,
        "ssl": cluster.scheme == "rediss",
        "require_full_coverage": False,  # a master that is gone takes its own slots with it only
        "socket_timeout": timeout_s,
        "socket_connect_timeout": min(timeout_s, CONNECT_TIMEOUT_S),
    }


def node_of(client: "redis.Redis", key: str) -> "redis.Redis":
    """The server that holds a key, to be asked what only it can say. Raises `redis.RedisError`."""
    if isinstance(client, _LazyCluster):
        client.exists(key)  # follows a slot that has moved
        found: redis.Redis = client.get_redis_connection(client.get_node_from_key(key))
        return found
    return client


def _nodes(cluster: ClusterAddress) -> list[ClusterNode]:
    return [ClusterNode(*seed) for seed in cluster.seeds]  # type: ignore[no-untyped-call]


class _SyncCluster(redis.RedisCluster):
    """The library's errors of a cluster that cannot be reached are no `RedisError`: made one."""

    def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().execute_command(*args, **kwargs)  # type: ignore[no-untyped-call]
        except RedisClusterException as error:
            raise redis.ConnectionError(str(error)) from error


class _AsyncCluster(redis.asyncio.RedisCluster):
    """As `_SyncCluster`."""

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().execute_command(*args, **kwargs)
        except RedisClusterException as error:
            raise redis.ConnectionError(str(error)) from error


class _LazyCluster:
    """Connects with its first use, not when it is made: its maker need not expect a failure."""

    def __init__(self, cluster: ClusterAddress, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._client: _SyncCluster | None = None

    def __getattr__(self, name: str) -> Any:
        if self._client is None:
            try:
                self._client = _SyncCluster(
                    startup_nodes=_nodes(self._cluster),
                    retry=Retry(ExponentialBackoff(*_BACKOFF_S), CLUSTER_TRIES),
                    **_options(self._cluster, self._timeout_s),
                )
            except RedisClusterException as error:
                raise redis.ConnectionError(str(error)) from error
        return getattr(self._client, name)

    def __enter__(self) -> "_LazyCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop every connection."""
        if self._client is not None:
            self._client.close()
