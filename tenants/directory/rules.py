"""What a tenant's fields may hold."""

import re
from collections.abc import Iterable
from zoneinfo import available_timezones

from routing.contracts.snapshot import ALL_MODELS

DEFAULT_INVITED_DAYS = 7
MOST_INVITED_DAYS = 30
MAX_MODELS = 200  # names in one list: beyond this, `*` and key limits say it better
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
_TIMEZONES = frozenset(available_timezones())


def is_timezone(name: str) -> bool:
    """Whether windows can be cut in this zone."""
    return name in _TIMEZONES


def bad_model_names(names: Iterable[str]) -> list[str]:
    """Names that no list of allowed models may hold.

    Patterns are not names: `alpha/*` would be read as everything below `alpha/`, which is not
    enforced anywhere. Only the whole `*` means all.
    """
    return [name for name in names if name != ALL_MODELS and not _MODEL_NAME.fullmatch(name)]


def has_doubles(names: Iterable[str]) -> bool:
    """Whether a name is said twice."""
    listed = list(names)
    return len(set(listed)) != len(listed)
