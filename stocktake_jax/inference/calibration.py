"""Are the filters' probabilities what they say? Reliability, calibration error, log and Brier score on fresh tapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stocktake_jax.errors import InputError
from stocktake_jax.inference.batch import filter_series
from stocktake_jax.models import FACTORS, HORIZON, Discrete, Factor, Initial, Likelihood, Tape, World


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
    models: Mapping[str, World | Sequence[World]],
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
        models: name -> the world that the filters believe in; or worlds drawn from a posterior, which are averaged, each
            weighed by how well it has explained the tape so far.
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
    believed = {name: [model] if isinstance(model, World) else list(model) for name, model in models.items()}
    if not all(believed.values()):
        raise InputError("a posterior needs at least one draw")
    stacked = {name: _stacked(worlds) for name, worlds in believed.items()}
    totals: dict[tuple[str, Likelihood], dict[str, _Sums]] = {}
    for start in range(0, count, chunk):
        wanted = min(chunk, count - start)
        # Chunks all have one size, so that everything compiles once; what the last one has too much is not counted.
        tapes = Tape.sample_batch(truth, min(chunk, count), key=jax.random.fold_in(key, start)).snapped(truth)
        mask = _alive_before(truth, tapes) if sourced else None
        readings = jax.tree.map(lambda x: np.asarray(x, np.float32).T, tapes.readings(truth, mask))
        for name, worlds in believed.items():
            labels = truth_labels(truth, worlds[0], tapes)
            for kind in likelihoods:
                into = totals.setdefault((name, kind), {n: _Sums(bins) for n in FACTORS})
                for n in FACTORS:
                    if kind != likelihoods[0] and _read_alike(worlds[0].factors[n]):
                        into[n] = totals[name, likelihoods[0]][n]
                        continue
                    p = np.asarray(_stated(stacked[name][n], readings[n], kind, initial))
                    into[n].add(p[1:, :, :wanted], labels[n].T[1:, :wanted])
        if on_chunk is not None:
            on_chunk(start + wanted)
    return {
        which: {n: s.result(n, believed[which[0]][0].factors[n].labels) for n, s in by_factor.items()}
        for which, by_factor in totals.items()
    }


def _read_alike(factor: Factor) -> bool:
    """Whether both likelihoods are the same law of what a factor shows, so that one filter serves for both."""
    return all(type(c) is Discrete and c.speaks("paper") and c.speaks("exact") for c in factor.shown_channels())


def _stacked(worlds: Sequence[World]) -> dict[str, Factor]:
    """The factors of several worlds in float32, with a leading axis of worlds."""
    return {
        n: jax.tree.map(lambda *x: np.stack(x).astype(np.float32), *[w.factors[n] for w in worlds]) for n in FACTORS
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
def _stated(
    draws: Factor, readings: dict[str, Float[Array, "week tape"]], likelihood: Likelihood, initial: Initial
) -> Float[Array, "week regime tape"]:
    """P(regime | readings so far) of every week, averaged over the draws of a factor."""

    def one(factor: Factor) -> tuple[Array, Array]:
        filtered = filter_series(factor, readings, likelihood, initial)
        pooled = jnp.moveaxis(factor.regime_probabilities(jnp.moveaxis(filtered.belief, 1, -1)), -1, 1)
        return pooled, jnp.cumsum(filtered.log_evidence, axis=0)

    if len(jax.tree.leaves(draws)[0]) == 1:
        return one(jax.tree.map(lambda x: x[0], draws))[0]
    # One after the other: side by side their states would not stay in the cache.
    pooled, evidence = jax.lax.map(one, draws)
    # Where every draw finds a reading impossible, all count alike.
    best = jnp.max(evidence, axis=0, keepdims=True)
    nowhere = jnp.isneginf(best)
    weight = jnp.where(nowhere, 1.0, jnp.exp(evidence - jnp.where(nowhere, 0.0, best)))
    return jnp.sum(pooled * (weight / jnp.sum(weight, axis=0, keepdims=True))[:, :, None], axis=0)


class _Sums:
    """Running sums over tapes, in float64."""

    def __init__(self, bins: int) -> None:
        self.bins, self.tapes = bins, 0
        self.total: dict[str, Any] = {}

    def add(self, p: Float[np.ndarray, "week regime tape"], true: Int[np.ndarray, "week tape"]) -> None:
        """Score the tapes of a chunk; a bin holds its lower edge, as float32 has it."""
        _, regimes, tapes = p.shape
        at = np.minimum(np.floor(p * np.float32(self.bins)), self.bins - 1).astype(np.int64)
        place = (np.arange(tapes) * regimes + np.arange(regimes)[:, None]) * self.bins + at
        there = true[:, None] == np.arange(regimes)[:, None]
        p = p.astype(np.float64)
        own = np.take_along_axis(p, true[:, None], axis=1)[:, 0]

        def by_bin(weights: np.ndarray) -> np.ndarray:
            counted = np.bincount(place.ravel(), weights.ravel(), tapes * regimes * self.bins)
            return counted.reshape(tapes, regimes, self.bins)

        part = {
            "log_score": np.log(np.where(own > 0, own, 1.0)).sum(axis=0),
            "brier": ((p - there) ** 2).sum(axis=(0, 1)),
            "impossible": (own == 0).sum(axis=0),
            "count": by_bin(np.ones(place.shape)),
            "stated": by_bin(p),
            "hits": by_bin(there.astype(np.float64)),
        }
        squares = {"log_score²": part["log_score"] ** 2, "brier²": part["brier"] ** 2}
        squares["gap²"] = (part["hits"] - part["stated"]) ** 2
        self.tapes += tapes
        for name, x in (part | squares).items():
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
