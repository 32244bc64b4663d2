"""Models of the `statsforecast` package, if it is installed; without it the floors serve.

It is looked for at each run, so installing it needs no restart. Fits compute for minutes: they run
in a process of their own at a low priority, so that the worker's short jobs (reconciling pools,
playbooks) keep their time.
"""

import contextlib
import importlib.util
import logging
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

from capacity.forecasts.rules.backtest import DAY_AHEAD, HOUR_AHEAD
from capacity.forecasts.rules.bands import DAY_H, Band, Method, sane

logger = logging.getLogger(__name__)

INSTALL = ".venv/bin/python -m pip install --require-hashes -r requirements-forecast.lock"
NICENESS = 10
LEVEL = 90  # per cent between p5 and p95
# Simplest first. An hour ahead is tried from more moments, so the slowest model is left out there.
_NAMES = {HOUR_AHEAD: ("theta", "mstl"), DAY_AHEAD: ("theta", "mstl", "ets")}


def is_installed() -> bool:
    """Whether its models can be used now."""
    return importlib.util.find_spec("statsforecast") is not None


Models = Mapping[int, Mapping[str, Method]]  # by horizon in hours, simplest first


def here() -> Models:
    """Its methods, computed by whoever calls them; none without the package."""
    if not is_installed():
        return {}
    return _models(_bands)


@contextlib.contextmanager
def elsewhere() -> Iterator[Models]:
    """Its methods, computed by a process that lives as long as the block.

    None without the package. A fit whose process has ended gives no bands.
    """
    if not is_installed():
        yield {}
        return
    context = multiprocessing.get_context("spawn")  # threads of the worker are not copied
    with ProcessPoolExecutor(1, mp_context=context, initializer=_yield_to_others) as pool:
        yield _models(partial(_bands_by, pool))


def _models(compute: Callable[..., list[Band] | None]) -> Models:
    """`compute` takes a method's name, the values and the horizon."""
    return {
        hours: {name: partial(compute, name) for name in names} for hours, names in _NAMES.items()
    }


def _yield_to_others() -> None:
    os.nice(NICENESS)


def _bands_by(
    pool: ProcessPoolExecutor, name: str, values: Sequence[float], horizon: int
) -> list[Band] | None:
    try:
        return pool.submit(_bands, name, tuple(values), horizon).result()
    except BrokenProcessPool:
        logger.warning("the process that fits forecasts has ended")
        return None


def _bands(name: str, values: Sequence[float], horizon: int) -> list[Band] | None:
    """One fit; None below two days, and where the model fails on this series."""
    if len(values) < 2 * DAY_H:
        return None
    import numpy as np  # noqa: PLC0415 - comes with the optional package

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = _model(name).forecast(
                y=np.asarray(values, dtype=float), h=horizon, level=[LEVEL]
            )
    except (ValueError, ArithmeticError, IndexError, RuntimeError, np.linalg.LinAlgError) as error:
        logger.info("%s does not fit this series: %s", name, error)
        return None
    triples = zip(found[f"lo-{LEVEL}"], found["mean"], found[f"hi-{LEVEL}"], strict=True)
    return sane([Band(float(low), float(mid), float(high)) for low, mid, high in triples])


def _model(name: str) -> Any:
    from statsforecast.models import MSTL, AutoETS, DynamicOptimizedTheta  # noqa: PLC0415

    if name == "theta":
        return DynamicOptimizedTheta(season_length=DAY_H)
    return MSTL(season_length=DAY_H) if name == "mstl" else AutoETS(season_length=DAY_H)
