"""The engine profile of a pool, and what pages and REST say of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from capacity.models import Driver, Pool, PoolProfile, ProfileVersion
from capacity.profiles.rules import Term, terms_of
from capacity.simulation.catalogue import sourced
from capacity.simulation.profile_document import POOL_PREFIX
from capacity.simulation.profiles import EngineProfile, StepTimes, UnknownProfileError
from console.errors import NotFound
from console.web.keyset import Page, take

MAX_VERSIONS = 20  # newest shown of a pool
MAX_FITTED = 200  # pools offered by name where a profile is chosen
NO_PRIOR = "Its settings name no engine profile: choose the prior below."


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A pool and which profile holds for it. `source` says where that comes from.

    Errors are mean relative ones of the step time over the last `windows`: of the fit on windows it
    had not seen, and of the prior. `step_s` is a step that decodes nothing but one token.
    """

    pool: str
    model: str
    prior: str
    source: str
    is_fitted: bool
    is_pinned: bool
    version: int | None
    step_s: float | None
    windows: int
    error_ratio: float | None
    prior_error_ratio: float | None
    is_accepted: bool
    verdict: str
    ran_at: datetime | None


@dataclass(frozen=True, slots=True)
class VersionView:
    """A fitted version; `is_of_now` false: fitted to another revision of the pool."""

    number: int
    revision: int
    prior: str
    windows: int
    error_ratio: float
    prior_error_ratio: float
    created_at: datetime
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class ProfileDetail:
    """A row with its terms, its versions and what the operator set."""

    row: ProfileRow
    prior_source: str
    prior_error: float | None
    set_prior: str
    reason: str
    skipped: dict[str, int]
    terms: tuple[Term, ...]
    versions: tuple[VersionView, ...]
    kv_tokens: int | None
    revision: int


def pools_with_profile() -> QuerySet[Pool]:
    """Pools as `profile_of` reads them: no query a row."""
    return Pool.objects.select_related("model", "profile__version")


def prior_name(pool: Pool) -> str:
    """Name of the profile that is assumed of a pool; empty for none."""
    own = own_of(pool)
    if own is not None and own.prior:
        return own.prior
    return str(pool.spec.get("profile", "demo" if pool.driver == Driver.SIMULATED else ""))


def prior_of(pool: Pool) -> EngineProfile | None:
    """The profile that is assumed of a pool, with its settings' overrides; None without one."""
    try:
        profile = sourced(prior_name(pool)).profile
    except UnknownProfileError:
        return None
    own = own_of(pool)
    scale = pool.spec.get("time_scale", 1.0) if own is None or not own.prior else 1.0
    if isinstance(scale, int | float) and scale > 0:
        profile = profile.with_times(profile.times.scaled(1 / scale))
    if pool.kv_capacity_tokens > 0:
        profile = replace(profile, kv_blocks=pool.kv_capacity_tokens // profile.block_tokens)
    return profile


def profile_of(pool: Pool) -> EngineProfile | None:
    """The profile that holds for a pool: the fitted one in use, else its prior; None without.

    A fit to another revision of the pool does not count, nor any while the prior is pinned.
    """
    prior, version = prior_of(pool), version_in_use(pool)
    if prior is None or version is None:
        return prior
    fitted = replace(prior, name=f"{prior.name}, fitted v{version.number}")
    return fitted.with_times(times_of(version.times))


def version_in_use(pool: Pool) -> ProfileVersion | None:
    """The fitted version that holds for a pool now."""
    own = own_of(pool)
    if own is None or own.is_pinned or own.version is None:
        return None
    return own.version if own.version.revision == pool.revision else None


def own_of(pool: Pool) -> PoolProfile | None:
    """The pool's own row, None before anything was set or fitted."""
    found: PoolProfile | None = getattr(pool, "profile", None)
    return found


def times_of(kept: Mapping[str, float]) -> StepTimes:
    """Step times as rows keep them."""
    return StepTimes(**{name: float(kept[name]) for name in StepTimes.__dataclass_fields__})


def named_profile(name: str) -> EngineProfile:
    """A built-in profile, or `pool:NAME`'s own. Raises `UnknownProfileError`, saying what there is.

    Used wherever a person names a profile: lab, simulator.
    """
    if not name.startswith(POOL_PREFIX):
        return sourced(name).profile
    pool = pools_with_profile().filter(name=name.removeprefix(POOL_PREFIX)).first()
    profile = None if pool is None else profile_of(pool)
    if profile is None:
        raise UnknownProfileError(f"no profile {name!r}: no such pool, or no prior is set for it")
    return profile


def fitted_names() -> tuple[str, ...]:
    """`pool:NAME` of every pool with a fitted version in use, by name, at most `MAX_FITTED`."""
    rows = pools_with_profile().filter(profile__version__isnull=False, profile__is_pinned=False)
    pools = rows.order_by("name")[:MAX_FITTED]
    return tuple(f"{POOL_PREFIX}{one.name}" for one in pools if version_in_use(one) is not None)


def profile_page(*, after: str | None, limit: int) -> Page[ProfileRow]:
    """Every pool by name with the profile that holds for it."""
    return take(pools_with_profile(), order=("name",), after=after, limit=limit).map(_row)


def profile_detail(name: str) -> ProfileDetail:
    """One pool's profile. Raises `NotFound`."""
    pool = pools_with_profile().filter(name=name).first()
    if pool is None:
        raise NotFound("No such pool.")
    own, prior, version = own_of(pool), prior_of(pool), version_in_use(pool)
    refused = None
    if own is not None and own.found and not own.is_accepted and own.revision == pool.revision:
        refused = times_of(own.found)
    before = None if prior is None else prior.times
    versions = ProfileVersion.objects.filter(pool=pool).order_by("-number")[:MAX_VERSIONS]
    source = None if prior is None else sourced(prior_name(pool))
    return ProfileDetail(
        row=_row(pool),
        prior_source="" if source is None else source.source,
        prior_error=None if source is None else source.error_ratio,
        set_prior="" if own is None else own.prior,
        reason="" if own is None else own.reason,
        skipped={} if own is None else {str(k): int(v) for k, v in own.skipped.items()},
        terms=terms_of(before, times_of(version.times) if version else None, refused),
        versions=tuple(_version(one) for one in versions),
        kv_tokens=None if prior is None else prior.kv_tokens,
        revision=pool.revision,
    )


def _row(pool: Pool) -> ProfileRow:
    own, profile, version = own_of(pool), profile_of(pool), version_in_use(pool)
    return ProfileRow(
        pool=pool.name,
        model=pool.model.name,
        prior=prior_name(pool),
        source=_source(pool, own, version),
        is_fitted=version is not None,
        is_pinned=own is not None and own.is_pinned,
        version=version.number if version else None,
        step_s=None if profile is None else profile.times.seconds(0, 1, 0, 0.0),
        **_last_run(own, pool),
    )


def _last_run(own: PoolProfile | None, pool: Pool) -> dict[str, Any]:
    """Figures of the last calibration, if it was of the pool's present revision."""
    names = ("windows", "error_ratio", "prior_error_ratio", "is_accepted", "verdict", "ran_at")
    if own is None or own.revision != pool.revision:
        return dict(zip(names, (0, None, None, False, "", None), strict=True))
    return {name: getattr(own, name) for name in names}


def _source(pool: Pool, own: PoolProfile | None, version: ProfileVersion | None) -> str:
    try:
        prior = sourced(prior_name(pool))
    except UnknownProfileError:
        return "none"
    if version is not None:
        return f"fitted v{version.number}"
    return f"pinned: {prior.source}" if own is not None and own.is_pinned else prior.source


def _version(row: ProfileVersion) -> VersionView:
    return VersionView(
        number=row.number,
        revision=row.revision,
        prior=row.prior,
        windows=row.windows,
        error_ratio=row.error_ratio,
        prior_error_ratio=row.prior_error_ratio,
        created_at=row.created_at,
        terms=terms_of(times_of(row.prior_times), times_of(row.times), None),
    )
