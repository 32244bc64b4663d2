"""What this gateway knows of a request's past: its session, its prefix, and where that was sent."""

from collections.abc import Sequence

from routing.decision.affinity import Affinity, place_of
from routing.decision.select import Group
from routing.gateway.exchange import Exchange
from routing.gateway.fleet import Fleet
from routing.gateway.names import names_of
from routing.gateway.record import prefix_of


def affinity_of(exchange: Exchange, groups: Sequence[Group], fleet: Fleet) -> Affinity | None:
    """Where the request's conversation may be at home; None for a short prompt of no session."""
    hashes = prefix_of(exchange)
    names = names_of(exchange.request.headers)
    if session := names.session or names.task_id:
        place = place_of(exchange.tenant.cache_salt, session)
    elif hashes:
        place = hashes[0] & ((1 << 64) - 1)
    else:
        return None
    blocks = {}
    if hashes:
        for group in groups:
            for candidate in group.candidates:
                endpoint = fleet.endpoints.get(candidate.id)
                if endpoint is not None and (held := endpoint.residency.held(hashes)):
                    blocks[candidate.id] = held
    return Affinity(place, blocks)
