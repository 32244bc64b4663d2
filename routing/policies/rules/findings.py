"""What a check of a policy says: where something is wrong, and what to do."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Whether a finding stops the document."""

    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong where, and what to do. `rule` is stable and machine-readable."""

    level: Level
    path: str
    rule: str
    reason: str
    fix: str
