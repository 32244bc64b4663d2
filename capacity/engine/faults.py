"""Scripted faults, for tests: a JSON file that says how the engine misbehaves from now on."""

import logging
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec

log = logging.getLogger(__name__)
POLL_S = 1.0
MAX_FILE_BYTES = 64 * 1024  # a script is a few lines


class MetricsFault(StrEnum):
    """How /metrics answers: as usual, with what it said at the fault's start, or never."""

    OK = "ok"
    FROZEN = "frozen"
    TIMEOUT = "timeout"


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is broken. An empty object is a healthy engine.

    `hang_completions`: requests are accepted and never answered while /health says 200.
    `slow_factor` stretches every step. `reset_at_token`: the connection is reset after so many
    tokens. `refuse_status`: completions are refused with it. `health_status` is what /health says.
    """

    hang_completions: bool = False
    metrics: MetricsFault = MetricsFault.OK
    slow_factor: Annotated[float, msgspec.Meta(gt=0, le=10_000)] = 1.0
    reset_at_token: Annotated[int, msgspec.Meta(ge=1)] | None = None
    refuse_status: Annotated[int, msgspec.Meta(ge=400, le=599)] | None = None
    health_status: Annotated[int, msgspec.Meta(ge=200, le=599)] = 200


HEALTHY = Faults()
_decode = msgspec.json.Decoder(Faults).decode


def read(path: str, last: Faults) -> Faults:
    """The script's present content: `HEALTHY` without a file, `last` if it cannot be read."""
    try:
        with Path(path).open("rb") as script:
            raw = script.read(MAX_FILE_BYTES)
        return _decode(raw)
    except FileNotFoundError:
        return HEALTHY
    except (OSError, msgspec.MsgspecError) as error:
        log.warning("faults file %s is ignored: %s", path, error)
        return last
