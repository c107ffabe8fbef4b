"""What can be known of the hidden world: exact inference for any declared factor, and the six beliefs together."""

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

__all__ = [
    "FINE",
    "Belief",
    "Chain",
    "Filtered",
    "LikelihoodComparison",
    "Path",
    "Smoothed",
    "chain",
    "compare_likelihoods",
    "filter_factor",
    "filter_world",
    "forecast",
    "forward",
    "log_evidence",
    "log_score",
    "most_probable_path",
    "require_possible",
    "sample_path",
    "smooth",
    "spot_alive_before",
]
