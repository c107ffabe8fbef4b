"""What can be known of the hidden world: exact inference for any declared factor, the six beliefs, and fits of worlds.

The names of fitting are imported when they are first used: numpyro and optax take a second that filters need not wait for.
"""

import importlib
from typing import TYPE_CHECKING, Any

from stocktake_jax.inference.belief import Belief, filter_factor, filter_world
from stocktake_jax.inference.diagnostics import (
    LikelihoodComparison,
    compare_likelihoods,
    log_score,
    spot_alive_before,
)
from stocktake_jax.inference.hmm import (
    FINE,
    Chain,
    Filtered,
    Path,
    Smoothed,
    chain,
    forecast,
    forward,
    log_evidence,
    most_probable_path,
    require_possible,
    sample_path,
    smooth,
)

if TYPE_CHECKING:
    from stocktake_jax.inference.coverage import Coverage
    from stocktake_jax.inference.em import baum_welch, fit_em
    from stocktake_jax.inference.evidence import SeriesEvidence
    from stocktake_jax.inference.fit import FactorFit, Problem, fit_map, fit_nuts, fit_svi
    from stocktake_jax.inference.learning import Settings, WorldFit, fit_world, load_draws, posterior_worlds
    from stocktake_jax.inference.priors import Prior
    from stocktake_jax.inference.series import Series, read_series, training_series

__all__ = [
    "FINE",
    "Belief",
    "Chain",
    "Coverage",
    "FactorFit",
    "Filtered",
    "LikelihoodComparison",
    "Path",
    "Prior",
    "Problem",
    "Series",
    "SeriesEvidence",
    "Settings",
    "Smoothed",
    "WorldFit",
    "baum_welch",
    "chain",
    "compare_likelihoods",
    "filter_factor",
    "filter_world",
    "fit_em",
    "fit_map",
    "fit_nuts",
    "fit_svi",
    "fit_world",
    "forecast",
    "forward",
    "load_draws",
    "log_evidence",
    "log_score",
    "most_probable_path",
    "posterior_worlds",
    "read_series",
    "require_possible",
    "sample_path",
    "smooth",
    "spot_alive_before",
    "training_series",
]

_LATER = {
    "Coverage": "coverage",
    "baum_welch": "em",
    "fit_em": "em",
    "SeriesEvidence": "evidence",
    "FactorFit": "fit",
    "Problem": "fit",
    "fit_map": "fit",
    "fit_nuts": "fit",
    "fit_svi": "fit",
    "Settings": "learning",
    "WorldFit": "learning",
    "fit_world": "learning",
    "load_draws": "learning",
    "posterior_worlds": "learning",
    "Prior": "priors",
    "Series": "series",
    "read_series": "series",
    "training_series": "series",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
