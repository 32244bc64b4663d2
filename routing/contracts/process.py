"""What a running process says of itself; `status` and the system page read it."""

import msgspec

from routing.contracts.enums import StoreMode
from routing.contracts.version import VERSION


class GatewayStatus(msgspec.Struct, frozen=True):
    """One gateway process. `snapshot_number` is its acknowledgement of a published snapshot.

    `open_breakers` maps replica ids that it sends no work to, to why: `hung` or `failing`.
    """

    gateway_id: str
    incarnation: str
    pid: int
    host: str
    port: int
    admin_port: int
    started_at_ms: int
    at_ms: int
    snapshot_number: int
    policy: str
    state: str
    store_mode: StoreMode
    in_flight: int
    journal_pending: int
    is_journal_behind: bool = False
    version: str = ""
    open_breakers: dict[str, str] = {}


class ProcessStatus(msgspec.Struct, frozen=True):
    """Any other long-running process: collector, ledger writer, worker, beat."""

    name: str
    pid: int
    started_at_ms: int
    at_ms: int
    version: str = VERSION
    lag_s: float | None = None
    note: str = ""


encode_status = msgspec.msgpack.Encoder().encode
decode_gateway_status = msgspec.msgpack.Decoder(GatewayStatus).decode
decode_process_status = msgspec.msgpack.Decoder(ProcessStatus).decode
