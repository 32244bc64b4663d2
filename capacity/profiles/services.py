"""Calibrate pools on what their engines did, and let an operator overrule it."""

import logging
from collections.abc import Callable

import msgspec
from django.db import transaction
from django.utils import timezone
from redis.exceptions import RedisError

from capacity.models import Pool, PoolProfile, PoolRevision, ProfileVersion
from capacity.profiles.rules import as_json, is_new_version, verdict_of
from capacity.profiles.selectors import (
    NO_PRIOR,
    pools_with_profile,
    prior_name,
    prior_of,
    times_of,
    version_in_use,
)
from capacity.simulation.calibration import Calibration, Window, calibrate
from capacity.simulation.catalogue import sourced
from capacity.simulation.profiles import UnknownProfileError
from console.audit.rules import SYSTEM, Actor
from console.audit.services import record
from console.errors import InvalidInput, NotFound
from console.web.store import pooled_client
from routing.contracts.engine_windows import WINDOWS_MAX, EngineWindow, decode_window
from routing.store import keys

logger = logging.getLogger(__name__)

POOLS_MAX = 500  # calibrated in one run
MAX_REASON_CHARS = 500


def calibrate_pools(*, is_cancelled: Callable[[], bool]) -> int:
    """Fit every pool that did something since its last run; how many were looked at.

    A store that is away ends the run: the next one comes in minutes.
    """
    looked = 0
    for pool in pools_with_profile().order_by("name")[:POOLS_MAX]:
        if is_cancelled():
            break
        try:
            looked += calibrate_pool(pool)
        except RedisError as error:
            logger.warning("calibration ended early: %s", error)
            break
    return looked


def calibrate_pool(pool: Pool) -> bool:
    """Fit one pool to its windows; False when there is nothing new. Raises `RedisError`."""
    seen, skipped = _windows(pool)
    own: PoolProfile | None = getattr(pool, "profile", None)
    known = (own.seen_ms, own.skipped) if own is not None else (0, {})
    newest_ms = seen[-1].at_ms if seen else 0
    if (newest_ms, skipped) == known or not (seen or skipped):
        return False
    prior = prior_of(pool)
    if prior is None:
        _keep(pool, None, [], skipped, newest_ms)
        return True
    windows = [Window.of_engine(one) for one in seen]
    _keep(pool, calibrate(windows, prior.times), windows, skipped, newest_ms)
    return True


def _windows(pool: Pool) -> tuple[list[EngineWindow], dict[str, int]]:
    """What the store keeps of the pool's present revision, oldest first, and what was skipped."""
    pipe = pooled_client().pipeline(transaction=False)
    pipe.lrange(keys.engine_windows(pool.name), -WINDOWS_MAX, -1)
    pipe.hgetall(keys.engine_windows_skipped(pool.name))
    raws, counts = pipe.execute()
    began = PoolRevision.objects.filter(pool=pool, number=pool.revision).values_list("created_at")
    row = began.first()
    since_ms = int(row[0].timestamp() * 1000) if row else 0
    found = []
    for raw in raws:
        try:
            window = decode_window(raw)
        except msgspec.MsgspecError as error:
            logger.warning("skipped a window that cannot be read: %s", error)
            continue
        if window.at_ms >= since_ms:
            found.append(window)
    found.sort(key=lambda one: one.at_ms)  # replicas interleave
    return found, {name.decode(): int(count) for name, count in counts.items()}


@transaction.atomic
def _keep(
    pool: Pool,
    found: Calibration | None,
    windows: list[Window],
    skipped: dict[str, int],
    newest_ms: int,
) -> None:
    """The run's verdict, and a version where the fit says something new."""
    locked = pools_with_profile().select_for_update(of=("self",)).get(pk=pool.pk)
    own = _own(locked)
    version = own.version if own.version and own.version.revision == locked.revision else None
    own.ran_at, own.revision = timezone.now(), locked.revision
    own.seen_ms, own.skipped = newest_ms, skipped
    if found is None:
        own.windows, own.is_accepted, own.verdict = 0, False, NO_PRIOR
        own.error_ratio = own.prior_error_ratio = own.found = None
        own.save()
        return
    in_use = None if version is None else times_of(version.times)
    is_new = is_new_version(found, windows, in_use)
    own.windows, own.is_accepted = found.windows, found.is_accepted
    own.error_ratio, own.prior_error_ratio = found.error_ratio, found.prior_error_ratio
    own.found = None if found.found is None else as_json(found.found)
    own.verdict = verdict_of(found, has_version=version is not None, is_new=is_new)
    if is_new:
        own.version = _new_version(locked, found)
    own.save()


def _new_version(pool: Pool, found: Calibration) -> ProfileVersion:
    prior = prior_of(pool)
    if prior is None or found.error_ratio is None or found.prior_error_ratio is None:
        raise ValueError("an accepted fit has a prior and its errors")
    last = ProfileVersion.objects.filter(pool=pool).order_by("-number").first()
    row = ProfileVersion.objects.create(
        pool=pool,
        number=last.number + 1 if last else 1,
        revision=pool.revision,
        prior=prior_name(pool),
        prior_times=as_json(prior.times),
        times=as_json(found.times),
        windows=found.windows,
        error_ratio=found.error_ratio,
        prior_error_ratio=found.prior_error_ratio,
        created_at=timezone.now(),
    )
    in_use = version_in_use(pool)
    record(
        actor=SYSTEM,
        act="pool_profile.fit",
        object_type="pool",
        object_id=pool.name,
        before=None if in_use is None else {"version": in_use.number, "times": in_use.times},
        after={
            "version": row.number,
            "times": row.times,
            "windows": row.windows,
            "error_ratio": round(row.error_ratio, 4),
            "prior_error_ratio": round(row.prior_error_ratio, 4),
        },
    )
    return row


@transaction.atomic
def set_profile(*, pool: str, prior: str, is_pinned: bool, reason: str, actor: Actor) -> None:
    """Name a pool's prior (empty: that of its settings), and pin it or let fits replace it.

    Pinning is undone by the same act. Raises `NotFound`, or `InvalidInput` for a prior that nobody
    knows, a pin without one, or a pin without a reason.
    """
    row = pools_with_profile().select_for_update(of=("self",)).filter(name=pool).first()
    if row is None:
        raise NotFound("No such pool.")
    own = _own(row)
    prior, reason = prior.strip(), reason.strip()
    if prior:
        try:
            sourced(prior)
        except UnknownProfileError as error:
            raise InvalidInput(f"{error}.", field="prior") from error
    if len(reason) > MAX_REASON_CHARS:
        raise InvalidInput(f"A reason has at most {MAX_REASON_CHARS} characters.", field="reason")
    before = {"prior": own.prior, "is_pinned": own.is_pinned}
    after = {"prior": prior, "is_pinned": is_pinned}
    if before == after:
        return
    own.prior, own.is_pinned, own.reason = prior, is_pinned, reason
    if is_pinned and prior_of(row) is None:
        raise InvalidInput(
            "There is no prior to pin.", field="prior", hint="Name one: its settings have none."
        )
    if is_pinned and not reason:
        raise InvalidInput("Say why the fit must not be used.", field="reason")
    own.seen_ms = 0  # judged anew against the other prior
    own.save()
    record(
        actor=actor,
        act="pool_profile.set",
        object_type="pool",
        object_id=pool,
        reason=reason,
        before=before,
        after=after,
    )


def _own(pool: Pool) -> PoolProfile:
    """The pool's own row, made when it is missing; call with the pool's row locked."""
    own: PoolProfile | None = getattr(pool, "profile", None)
    if own is None:
        own = PoolProfile(pool=pool)
        pool.profile = own
    return own
