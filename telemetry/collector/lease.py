"""One collector is active at a time: a key that expires, renewed only by its holder.

A holder that stood still longer than `LEASE_MS` may believe for one more round that it holds the
lease. It then publishes an old state once; frames it cannot fold twice (see `fold`).
"""

import secrets

from redis.asyncio import Redis
from redis.exceptions import WatchError

from routing.store import keys

LEASE_MS = 4000  # four periods: one lost round changes nothing, a dead holder is replaced in 4 s


class Lease:
    """Ownership of collecting, for one process."""

    def __init__(self, store: Redis) -> None:
        self.store = store
        self.token = secrets.token_hex(8).encode()

    async def hold(self) -> bool:
        """Take or renew; False while another process holds it. Raises `RedisError`."""
        if await self.store.set(keys.COLLECTOR_LEASE, self.token, nx=True, px=LEASE_MS):
            return True
        return await self._if_ours(renew=True)

    async def release(self) -> None:
        """Give it up, so that a standby takes over at once. Raises `RedisError`."""
        await self._if_ours(renew=False)

    async def _if_ours(self, *, renew: bool) -> bool:
        async with self.store.pipeline(transaction=True) as pipe:
            await pipe.watch(keys.COLLECTOR_LEASE)
            if await pipe.get(keys.COLLECTOR_LEASE) != self.token:
                return False
            pipe.multi()  # type: ignore[no-untyped-call]
            if renew:
                pipe.pexpire(keys.COLLECTOR_LEASE, LEASE_MS)
            else:
                pipe.delete(keys.COLLECTOR_LEASE)
            try:
                await pipe.execute()
            except WatchError:
                return False
        return True
