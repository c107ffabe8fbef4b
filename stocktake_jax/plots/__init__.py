"""Figures, one function each: they take data, and return the axes they drew in (extra `plots`).

A figure of one panel takes `ax` and returns it; one of several takes `figure` (a matplotlib Figure or SubFigure) and
returns a dictionary of axes. Without them a new figure is made that pyplot knows nothing of: `figure_of(axes)` is it,
`save(axes, "name.png", "name.svg")` writes it, `svg_text(axes)` puts it into a page. Nothing global is changed.

`stocktake plot KIND` draws each of them from saved results, or from seeds.
"""

from stocktake_jax.plots.episodes import books, decision, saved_ledgers
from stocktake_jax.plots.hidden import beliefs, posterior, posteriors, tape
from stocktake_jax.plots.scores import detection, knowing_doing, skill
from stocktake_jax.plots.studies import (
    coverage,
    parameters,
    prior_draws,
    rank_histograms,
    reliability,
    sample_complexity,
)
from stocktake_jax.plots.style import figure_of, save, svg_text
from stocktake_jax.plots.wrong_models import curves, grid, misspecified, models, tornado

__all__ = [
    "beliefs",
    "books",
    "coverage",
    "curves",
    "decision",
    "detection",
    "figure_of",
    "grid",
    "knowing_doing",
    "misspecified",
    "models",
    "parameters",
    "posterior",
    "posteriors",
    "prior_draws",
    "rank_histograms",
    "reliability",
    "sample_complexity",
    "save",
    "saved_ledgers",
    "skill",
    "svg_text",
    "tape",
    "tornado",
]
