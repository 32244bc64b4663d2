"""Profiles as JSON: the file that `manage.py profile` writes, and what a scenario adds to one."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from capacity.simulation.catalogue import named
from capacity.simulation.options import transfer_s, with_speculation
from capacity.simulation.profiles import (
    EngineProfile,
    StepTimes,
    Tier,
    UnknownProfileError,
)
from capacity.simulation.scenario import PrefillPart

FILE_SUFFIX: Final = ".json"
POOL_PREFIX: Final = "pool:"  # of a pool's own profile, where a database is there
MOST_TIERS: Final = 8
MOST_DRAFT_TOKENS: Final = 64
MOST_TOKENS: Final = 1 << 40
LONGEST_STEP_S: Final = 3600.0


class ProfileError(ValueError):
    """The profile cannot be used; the text names the field."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    times: StepTimes
    kv_blocks: int
    block_tokens: int = 16
    token_budget: int = 8192
    seats: int = 1024
    context_tokens: int = 131_072
    long_prefill_tokens: int = 0
    watermark_blocks: int = 0
    measured: dict[str, Any] = {}  # how it was found: for people


class SpeculationPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Speculative decoding: `acceptance` of each drafted token, `draft_step_s` to draft one."""

    draft_tokens: int
    acceptance: float
    draft_step_s: float = 0.0


class TierPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tier of KV: what it holds, and the bytes a second that it is really read with."""

    name: str
    kv_tokens: int
    gbytes_per_s: float
    kv_bytes_per_token: float


class PrefillDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The engine that computes a replica's prompts, and the link that their KV takes."""

    profile: str
    link_gbytes_per_s: float
    kv_bytes_per_token: float
    efficiency: float = 0.8


def read_profile(raw: bytes) -> EngineProfile:
    """A profile from its file. Raises `ProfileError`."""
    try:
        found = msgspec.json.decode(raw, type=_File)
    except msgspec.MsgspecError as error:
        raise ProfileError(str(error)) from error
    times = {name: getattr(found.times, name) for name in StepTimes.__dataclass_fields__}
    sizes = {
        name: getattr(found, name)
        for name in ("kv_blocks", "block_tokens", "token_budget", "seats", "context_tokens")
    }
    for name, value in times.items():
        if not 0 <= value <= LONGEST_STEP_S:
            raise ProfileError(f"times.{name}: from 0 to {LONGEST_STEP_S:.0f}")
    for name, value in sizes.items():
        if not 1 <= value <= MOST_TOKENS:
            raise ProfileError(f"{name}: from 1 to {MOST_TOKENS}")
    if not found.times.t0_s + found.times.c_s:
        raise ProfileError("times: t0_s or c_s above 0, or nothing would take time")
    rest = {name: getattr(found, name) for name in ("long_prefill_tokens", "watermark_blocks")}
    return EngineProfile(found.name, found.times, **sizes, **rest)


def profile_json(profile: EngineProfile, measured: dict[str, Any]) -> dict[str, Any]:
    """The file's content for a profile without tiers."""
    plain: dict[str, Any] = msgspec.to_builtins(profile)
    del plain["tiers"]
    return {**plain, "measured": measured}


def profile_named(name: str, files: Mapping[str, EngineProfile]) -> EngineProfile:
    """A profile by name, or one that was read: a file's, a pool's. Raises `ProfileError`."""
    if is_read_apart(name):
        if name not in files:
            raise ProfileError(f"profile {name!r}: it was not read")
        return files[name]
    try:
        return named(name)
    except UnknownProfileError as error:
        raise ProfileError(str(error)) from error


def is_read_apart(name: str) -> bool:
    """Whether a profile of that name lies in a file or with a pool, not in the catalogue."""
    return name.endswith(FILE_SUFFIX) or name.startswith(POOL_PREFIX)


def speculating(profile: EngineProfile, part: SpeculationPart) -> EngineProfile:
    """The profile with speculative decoding. Raises `ProfileError`."""
    if not 1 <= part.draft_tokens <= MOST_DRAFT_TOKENS:
        raise ProfileError(f"speculation.draft_tokens: 1 to {MOST_DRAFT_TOKENS}")
    if not 0 <= part.acceptance <= 1 or part.draft_step_s < 0:
        raise ProfileError("speculation: acceptance from 0 to 1, draft_step_s not below 0")
    return with_speculation(
        profile,
        draft_tokens=part.draft_tokens,
        acceptance=part.acceptance,
        draft_step_s=part.draft_step_s,
    )


def tiers_of(parts: tuple[TierPart, ...]) -> tuple[Tier, ...]:
    """Tiers in the order in which they are asked. Raises `ProfileError`."""
    if len(parts) > MOST_TIERS:
        raise ProfileError(f"tiers: at most {MOST_TIERS}")
    for part in parts:
        if part.kv_tokens < 1 or part.gbytes_per_s <= 0 or part.kv_bytes_per_token <= 0:
            raise ProfileError(f"tiers: {part.name}: sizes and speed above 0")
    return tuple(
        Tier(part.name, part.kv_tokens, part.kv_bytes_per_token / (part.gbytes_per_s * 1e9))
        for part in parts
    )


def prefill_of(part: PrefillDocument, files: Mapping[str, EngineProfile]) -> PrefillPart:
    """The prefill engine and its link. Raises `ProfileError`."""
    if part.link_gbytes_per_s <= 0 or part.kv_bytes_per_token <= 0 or not 0 < part.efficiency <= 1:
        raise ProfileError("prefill: link and KV above 0, efficiency above 0 and at most 1")
    moved_s = transfer_s(
        1,
        kv_bytes_per_token=part.kv_bytes_per_token,
        link_bytes_per_s=part.link_gbytes_per_s * 1e9,
        efficiency=part.efficiency,
    )
    return PrefillPart(profile_named(part.profile, files), moved_s)
