"""Are the filters' probabilities what they say? Reliability, calibration error, log and Brier score on fresh tapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from stocktake_jax.errors import InputError
from stocktake_jax.inference.belief import filter_factor
from stocktake_jax.models import FACTORS, HORIZON, Initial, Likelihood, Tape, World


@dataclass(frozen=True)
class Reliability:
    """How often a regime was there when a filter gave it a probability, by bins of that probability.

    Attributes:
        factor, regime: which (regimes as reports pool them).
        count: (bin,) number of weeks.
        stated: (bin,) mean probability stated; nan in an empty bin.
        observed: (bin,) share of the weeks in which the regime was there.
        standard_error: (bin,) of observed - stated; weeks of one tape are not taken as independent.
    """

    factor: str
    regime: str
    count: np.ndarray
    stated: np.ndarray
    observed: np.ndarray
    standard_error: np.ndarray

    @property
    def expected_calibration_error(self) -> float:
        """Mean absolute difference of stated and observed, weighted by the number of weeks."""
        seen = self.count > 0
        gap = np.abs(self.observed - self.stated)[seen]
        return float(np.sum(gap * self.count[seen]) / self.count.sum())


@dataclass(frozen=True)
class FactorCalibration:
    """How good one filter is.

    Attributes:
        factor: its name.
        log_score: mean log posterior probability of the true regime, in nats a week (higher is better).
        log_score_se: its standard error over tapes.
        brier: mean squared distance of the posterior from the true regime, summed over regimes (lower is better).
        brier_se: its standard error.
        impossible: weeks to whose true regime the filter gave probability zero; they are left out of the log score.
        regimes: one `Reliability` a regime.
    """

    factor: str
    log_score: float
    log_score_se: float
    brier: float
    brier_se: float
    impossible: int
    regimes: tuple[Reliability, ...]

    @property
    def expected_calibration_error(self) -> float:
        """Of the regimes' errors, the mean."""
        return float(np.mean([r.expected_calibration_error for r in self.regimes]))


Calibrations = dict[tuple[str, Likelihood], dict[str, FactorCalibration]]
"""(name of the model, likelihood) -> factor -> calibration."""


def calibrate(
    models: Mapping[str, World],
    count: int,
    *,
    key: Array,
    true_world: World | None = None,
    likelihoods: tuple[Likelihood, ...] = ("paper", "exact"),
    initial: Initial = "uniform",
    sourced: bool = False,
    bins: int = 10,
    chunk: int = 1000,
    on_chunk: Callable[[int], None] | None = None,
) -> Calibrations:
    """Run filters of several models on the same fresh tapes and compare what they say with what is.

    Weeks 1 .. 26 are scored. Memory does not grow with the number of tapes.

    Args:
        models: name -> the world that the filters believe in.
        count: number of tapes.
        key: of the tapes.
        true_world: of the tapes; the published one by default.
        likelihoods: of the filters.
        initial: where the filters start.
        sourced: whether fill is read in every week at whose decision spot was alive.
        bins: of stated probability, equally wide.
        chunk: tapes at a time.
        on_chunk: called with the number of tapes done.

    Raises:
        InputError: for sizes below 1, fewer than two tapes, or no model.
    """
    if count < 2 or bins < 1 or chunk < 1 or not models or not likelihoods:
        raise InputError(
            f"calibration needs a model, a likelihood, at least 2 tapes and positive sizes, not {len(models)} models, "
            f"{count} tapes, {bins} bins, chunks of {chunk}"
        )
    truth = true_world or World.paper()
    totals: dict[tuple[str, Likelihood], dict[str, _Sums]] = {}
    for start in range(0, count, chunk):
        wanted = min(chunk, count - start)
        # Chunks all have one size, so that everything compiles once; what the last one has too much is not counted.
        tapes = Tape.sample_batch(truth, min(chunk, count), key=jax.random.fold_in(key, start)).snapped(truth)
        mask = _alive_before(truth, tapes) if sourced else None
        readings = jax.tree.map(lambda x: np.asarray(x, np.float32), tapes.readings(truth, mask))
        for name, model in models.items():
            for kind in likelihoods:
                sums = _sums(model.cast(jnp.float32), truth_labels(truth, model, tapes), readings, kind, initial, bins)
                kept = jax.tree.map(lambda x, n=wanted: np.asarray(x, np.float64)[:n], sums)
                into = totals.setdefault((name, kind), {n: _Sums() for n in FACTORS})
                for n, s in kept.items():
                    into[n].add(s)
        if on_chunk is not None:
            on_chunk(start + wanted)
    return {
        which: {n: s.result(n, models[which[0]].factors[n].labels) for n, s in by_factor.items()}
        for which, by_factor in totals.items()
    }


def _alive_before(world: World, tapes: Tape) -> np.ndarray:
    from stocktake_jax.inference.diagnostics import spot_alive_before

    return spot_alive_before(world, tapes)


def truth_labels(truth: World, model: World, tapes: Tape) -> dict[str, np.ndarray]:
    """factor -> (tape, week) index of the true regime among the labels of the model's factor."""
    out = {}
    for n, f in truth.factors.items():
        labels = model.factors[n].labels
        of_state = np.array([labels.index(r.label) for r in f.state_regimes], np.int32)
        out[n] = of_state[np.asarray(tapes.states[n])]
    return out


@eqx.filter_jit
def _sums(
    model: World,
    labels: dict[str, Array],
    readings: dict[str, dict[str, Array]],
    likelihood: Likelihood,
    initial: Initial,
    bins: int,
) -> dict[str, dict[str, Array]]:
    """Per tape: scores summed over weeks, and per regime and bin the weeks, stated probability and hits."""

    def one(name: str, series: dict[str, Array], label: Array) -> dict[str, Array]:
        factor = model.factors[name]
        p = factor.regime_probabilities(filter_factor(factor, series, likelihood, initial).belief)[1:]
        true = jax.nn.one_hot(label[1:], p.shape[1], dtype=p.dtype)
        own = jnp.sum(p * true, axis=1)
        possible = own > 0
        place = jnp.clip(jnp.floor(p * bins), 0, bins - 1).astype(jnp.int32)
        in_bin = jax.nn.one_hot(place, bins, dtype=p.dtype)  # week, regime, bin
        return {
            "log_score": jnp.sum(jnp.where(possible, jnp.log(jnp.where(possible, own, 1.0)), 0.0)),
            "brier": jnp.sum((p - true) ** 2),
            "impossible": jnp.sum(~possible).astype(p.dtype),
            "count": jnp.sum(in_bin, axis=0),
            "stated": jnp.einsum("trb,tr->rb", in_bin, p, precision="highest"),
            "hits": jnp.einsum("trb,tr->rb", in_bin, true, precision="highest"),
        }

    return {n: jax.vmap(lambda y, s, n=n: one(n, y, s))(readings[n], labels[n]) for n in FACTORS}


class _Sums:
    """Running sums over tapes, in float64."""

    def __init__(self) -> None:
        self.tapes = 0
        self.total: dict[str, Any] = {}

    def add(self, part: Mapping[str, np.ndarray]) -> None:
        self.tapes += len(part["brier"])
        squares = {"log_score²": part["log_score"] ** 2, "brier²": part["brier"] ** 2}
        squares["gap²"] = (part["hits"] - part["stated"]) ** 2
        for name, x in (dict(part) | squares).items():
            self.total[name] = self.total.get(name, 0.0) + x.sum(axis=0)

    def result(self, factor: str, labels: tuple[str, ...]) -> FactorCalibration:
        t, weeks = self.total, self.tapes * HORIZON

        def mean_and_error(name: str, count: float) -> tuple[float, float]:
            mean = t[name] / self.tapes
            variance = max(float(t[f"{name}²"]) / self.tapes - mean**2, 0.0) * self.tapes / (self.tapes - 1)
            return float(t[name] / count), float(np.sqrt(variance / self.tapes) * self.tapes / count)

        log_score, log_se = mean_and_error("log_score", max(weeks - float(t["impossible"]), 1.0))
        brier, brier_se = mean_and_error("brier", weeks)
        regimes = []
        for k, label in enumerate(labels):
            count = t["count"][k]
            some = np.where(count > 0, count, np.nan)
            regimes.append(
                Reliability(
                    factor, label, count, t["stated"][k] / some, t["hits"][k] / some, np.sqrt(t["gap²"][k]) / some
                )
            )
        return FactorCalibration(factor, log_score, log_se, brier, brier_se, int(t["impossible"]), tuple(regimes))


def rows(calibrations: Calibrations) -> Iterator[dict[str, Any]]:
    """One row a model, likelihood and factor, without the bins; for tables."""
    for (model, likelihood), by_factor in calibrations.items():
        for c in by_factor.values():
            yield {
                "model": model,
                "likelihood": likelihood,
                "factor": c.factor,
                "log_score": c.log_score,
                "log_score_se": c.log_score_se,
                "brier": c.brier,
                "brier_se": c.brier_se,
                "ece": c.expected_calibration_error,
                "impossible": c.impossible,
            }


def reliability_rows(calibrations: Calibrations) -> Iterator[dict[str, Any]]:
    """One row a model, likelihood, factor, regime and bin that has weeks in it."""
    for (model, likelihood), by_factor in calibrations.items():
        for c in by_factor.values():
            for r in c.regimes:
                for b in np.flatnonzero(r.count):
                    yield {
                        "model": model,
                        "likelihood": likelihood,
                        "factor": c.factor,
                        "regime": r.regime,
                        "bin": int(b),
                        "weeks": int(r.count[b]),
                        "stated": float(r.stated[b]),
                        "observed": float(r.observed[b]),
                        "standard_error": float(r.standard_error[b]),
                    }


def document_of(calibrations: Calibrations, tapes: int) -> dict[str, Any]:
    """Scores and reliability tables, ready for JSON.

    `{"study": "calibration", "tapes": n, "scores": [...], "reliability": [...]}`: a row of `scores` is one of `rows`, a
    row of `reliability` one of `reliability_rows`. `plots.reliability` draws the second, a panel a factor.
    """
    return {
        "study": "calibration",
        "tapes": tapes,
        "scores": list(rows(calibrations)),
        "reliability": list(reliability_rows(calibrations)),
    }
