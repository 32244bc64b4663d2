"""Models of the `statsforecast` package, if it is installed; without it the floors serve.

It is looked for at each run, so installing it needs no restart.
"""

import importlib.util
import logging
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from capacity.forecasts.rules.backtest import DAY_AHEAD, HOUR_AHEAD
from capacity.forecasts.rules.bands import DAY_H, Band, Method, sane

logger = logging.getLogger(__name__)

INSTALL = ".venv/bin/python -m pip install --require-hashes -r requirements-forecast.lock"
LEVEL = 90  # per cent between p5 and p95
# Simplest first. An hour ahead is tried from more moments, so the slowest model is left out there.
_NAMES = {HOUR_AHEAD: ("theta", "mstl"), DAY_AHEAD: ("theta", "mstl", "ets")}


def is_installed() -> bool:
    """Whether its models can be used now."""
    return importlib.util.find_spec("statsforecast") is not None


def methods(horizon_h: int) -> dict[str, Method]:
    """Its methods for a horizon, simplest first; none without the package."""
    if not is_installed():
        return {}
    return {name: partial(_bands, name) for name in _NAMES[horizon_h]}


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
