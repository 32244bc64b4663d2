"""Uses of named resources: what a caller says of one, what it costs, what it is answered."""

import re
from typing import Final, TypeVar

import msgspec

from routing.contracts.enums import RequestStatus, UsageSource
from routing.contracts.pricing import price_at
from routing.contracts.resources import RESOURCE_PREFIX
from routing.contracts.snapshot import KeyEntry, Price, Snapshot, TenantEntry
from routing.contracts.spelling import exact_usd, instant
from routing.contracts.usage import HoldInfo, UsageEvent
from routing.decision.types import Reason, Refusal
from routing.gateway.resolve import may_use

MAX_UNITS: Final = 10_000
MAX_TTL_S: Final = 600.0
MAX_LIFE_S: Final = 3600.0  # from the reservation, renewals included
MAX_NANOUSD: Final = 9_000_000_000_000_000  # exact in the store's counters
_NANO: Final = 1_000_000_000
_USD: Final = re.compile(r"[0-9]{1,7}(\.[0-9]{1,9})?")
_FIELD: Final = re.compile(r"`\$\.(\w+)`|field `(\w+)`")
_STATUSES: Final = {
    "ok": RequestStatus.OK,
    "failed": RequestStatus.FAILED,
    "cancelled": RequestStatus.CANCELLED,
}


class ReserveBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be held: `units` (else 1) at the resource's price, or up to `max_spend_usd`."""

    units: int | None = None
    ttl_s: float = 60.0
    max_spend_usd: str | None = None


class SettleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a use ended; without figures what was reserved, or nothing if it did not succeed."""

    status: str = "ok"
    units: int | None = None
    spend_usd: str | None = None
    above_hold: bool = False


class RenewBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much longer a use may take, from now."""

    ttl_s: float = 60.0


class Settled(msgspec.Struct, frozen=True):
    """How a use was settled, as the store keeps it for repeats."""

    tenant_id: str
    id: str
    resource: str
    status: str
    units: int
    spend_nanousd: int
    task_id: str


Body = TypeVar("Body", ReserveBody, SettleBody, RenewBody)


def read_body(raw: bytes, kind: type[Body]) -> Body | Refusal:
    """A JSON body (empty: all defaults), or a refusal that names the field."""
    try:
        body = msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.ValidationError as error:
        found = _FIELD.search(str(error))
        return bad((found[1] or found[2]) if found else "", f"The body is refused: {error}.")
    except msgspec.DecodeError:
        return bad("", "The body is not JSON.")
    if not isinstance(body, SettleBody) and not 1 <= body.ttl_s <= MAX_TTL_S:
        return bad("ttl_s", f"ttl_s lies between 1 and {MAX_TTL_S:.0f} seconds.")
    if isinstance(body, ReserveBody) and body.units is not None:
        if not 1 <= body.units <= MAX_UNITS:
            return bad("units", f"units lies between 1 and {MAX_UNITS}.")
        if body.max_spend_usd is not None:
            return bad("max_spend_usd", "Send units or max_spend_usd, not both.")
    return body


def bad(param: str, text: str) -> Refusal:
    """A refusal of what the caller sent."""
    return Refusal(Reason.INVALID_REQUEST, text, param=param)


def nanousd_of(text: str, param: str) -> int | Refusal:
    """Nano-dollars of decimal dollars, at most `MAX_NANOUSD`."""
    if _USD.fullmatch(text) is None:
        return bad(param, f"{param} is decimal text in US dollars, such as 0.002.")
    whole, _, rest = text.partition(".")
    amount = int(whole) * _NANO + int(rest.ljust(9, "0"))
    if amount > MAX_NANOUSD:
        return bad(param, f"{param} is at most {MAX_NANOUSD // _NANO} US dollars.")
    return amount


def find_resource(
    snapshot: Snapshot, tenant: TenantEntry, key: KeyEntry, name: str, now_ms: int
) -> Price | Refusal:
    """The price of one use now; a resource without a price is none: unpriced is never free."""
    prices = snapshot.resources.get(name)
    if not prices or prices[0].valid_from_ms > now_ms:
        text = f"The resource {name!r} does not exist, has no price, or is not yours to use."
        return Refusal(Reason.NOT_FOUND, text, param="resource")
    if not may_use(tenant, key, RESOURCE_PREFIX + name):
        text = f"This key may not use {RESOURCE_PREFIX + name!r}."
        return Refusal(Reason.MODEL_NOT_ALLOWED, text, param="resource")
    return price_at(prices, now_ms)


def units_of(body: ReserveBody) -> int:
    """How many units a use is of; one that holds money counts as one."""
    return 1 if body.units is None else body.units


def held_nanousd(body: ReserveBody, price: Price) -> int | Refusal:
    """What a use holds: its bound on spend, else its units at their price."""
    if body.max_spend_usd is not None:
        return nanousd_of(body.max_spend_usd, "max_spend_usd")
    amount = units_of(body) * price.unit_nanousd
    if amount > MAX_NANOUSD:
        return bad("units", "So many units cost more than any limit can count.")
    return amount


def settled_event(info: HoldInfo, body: SettleBody, ended_at_ms: int) -> UsageEvent | Refusal:
    """The ledger's row of a use that its holder ends; above its hold only if the body says so."""
    event = info.event
    if (figures := _figures(info, body)) is None:
        return bad("status", "status is ok, failed or cancelled.")
    if isinstance(figures, Refusal):
        return figures
    units, spend = figures
    if spend > MAX_NANOUSD:
        return bad("units", "So many units cost more than any limit can count.")
    if spend > event.held_nanousd and not body.above_hold:
        text = (
            f"This is more than the {exact_usd(event.held_nanousd)} USD held. Send above_hold: "
            "true to be charged for it all the same."
        )
        return bad("units" if body.units is not None else "spend_usd", text)
    return msgspec.structs.replace(
        event,
        status=_STATUSES[body.status],
        usage_source=UsageSource.REPORTED,
        ended_at_ms=max(ended_at_ms, event.started_at_ms),
        units=units,
        spend_nanousd=spend,
        http_status=200,
    )


def _figures(info: HoldInfo, body: SettleBody) -> tuple[int, int] | Refusal | None:
    """(units, nano-dollars) that are charged; None for an unknown status."""
    if body.status not in _STATUSES:
        return None
    if body.spend_usd is not None:
        if body.units is not None:
            return bad("spend_usd", "Send units or spend_usd, not both.")
        spend = nanousd_of(body.spend_usd, "spend_usd")
        return spend if isinstance(spend, Refusal) else (0, spend)
    units = body.units
    if units is None:
        if body.status != "ok":
            return 0, 0
        units = info.event.units
    if not 0 <= units <= MAX_UNITS:
        return bad("units", f"units lies between 0 and {MAX_UNITS}.")
    return units, units * info.price.unit_nanousd


def settled_answer(event: UsageEvent) -> bytes:
    """What the store keeps of a settle; the ledger's row and the caller's answer say the same."""
    return msgspec.json.encode(
        Settled(
            event.tenant_id,
            event.request_id,
            event.model.removeprefix(RESOURCE_PREFIX),
            event.status.value,
            event.units,
            event.spend_nanousd,
            event.task_id,
        )
    )


def read_settled(raw: bytes) -> Settled | None:
    """Inverse of `settled_answer`; None when it cannot be read."""
    try:
        return msgspec.json.decode(raw, type=Settled)
    except msgspec.MsgspecError:
        return None


def says_the_same(settled: Settled, body: SettleBody) -> bool:
    """Whether a repeated settle has the figures of the first; what it leaves out it accepts."""
    if body.status != settled.status or (body.units is not None and body.spend_usd is not None):
        return False
    if body.spend_usd is not None:
        return nanousd_of(body.spend_usd, "spend_usd") == settled.spend_nanousd
    if body.units is not None:
        return body.units == settled.units and (body.units > 0 or not settled.spend_nanousd)
    return True


def settle_body(settled: Settled) -> bytes:
    """The answer to a settle, the first and each repeat."""
    return msgspec.json.encode(
        {
            "id": settled.id,
            "object": "resource.settlement",
            "resource": settled.resource,
            "status": settled.status,
            "units": settled.units,
            "spend_usd": exact_usd(settled.spend_nanousd),
            "task_id": settled.task_id or None,
        }
    )


def held_body(info: HoldInfo, expires_at_ms: int) -> bytes:
    """The answer to a reserve or renew."""
    event = info.event
    return msgspec.json.encode(
        {
            "id": event.request_id,
            "object": "resource.reservation",
            "resource": event.model.removeprefix(RESOURCE_PREFIX),
            "expires_at": instant(expires_at_ms),
            "held": {
                "requests": 1,
                "concurrency": 1,
                "units": event.units,
                "spend_usd": exact_usd(event.held_nanousd),
            },
            "unit_usd": exact_usd(info.price.unit_nanousd),
            "price_version": event.price_version,
            "task_id": event.task_id or None,
        }
    )
