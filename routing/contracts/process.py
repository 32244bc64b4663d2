"""What a running process says of itself; `status` and the system page read it."""

import msgspec

from routing.contracts.enums import StoreMode
from routing.contracts.hooks import HookReport
from routing.contracts.version import VERSION


class GatewayStatus(msgspec.Struct, frozen=True):
    """One gateway process. `snapshot_number` is its acknowledgement of a published snapshot.

    `open_breakers` maps replica ids that it sends no work to, to why: `hung` or `failing`.
    `store_away_s` is how long it has admitted without the store (None: it has it), of the policy's
    `store_away_max_s`. `trouble` is one line about what it cannot do; empty when all is well.
    `overrides` names the set of overrides that it obeys, `slow_start_s` is its policy's. `hooks`
    says how those of its policy do.
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
    store_away_s: float | None = None
    store_away_max_s: float | None = None
    trouble: str = ""
    overrides: str = ""
    hooks: dict[str, HookReport] = {}
    slow_start_s: float = 60.0


class ProcessStatus(msgspec.Struct, frozen=True):
    """Any other long-running process: collector, ledger writer, worker, beat.

    `trouble` is one line about what it cannot do, `counts` a few named numbers that conditions are
    judged by (`parked`, `rebuilding` of the ledger writer).
    """

    name: str
    pid: int
    started_at_ms: int
    at_ms: int
    version: str = VERSION
    lag_s: float | None = None
    note: str = ""
    trouble: str = ""
    counts: dict[str, int] = {}


encode_status = msgspec.msgpack.Encoder().encode
decode_gateway_status = msgspec.msgpack.Decoder(GatewayStatus).decode
decode_process_status = msgspec.msgpack.Decoder(ProcessStatus).decode
