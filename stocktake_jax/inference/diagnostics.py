"""How much a filter's law of the readings is worth: `exact` against `paper`, on the same tapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stocktake_jax.errors import InputError
from stocktake_jax.inference.belief import filter_factor
from stocktake_jax.models import Factor, Initial, Likelihood, Tape, World


class LikelihoodComparison(NamedTuple):
    """One factor's mean log posterior probability of its true regime under both likelihoods, in nats a week.

    Attributes:
        paper, exact: the mean over tapes and weeks 1 .. 26.
        difference: exact - paper; positive where the exact law knows more.
        standard_error: of the difference, from the spread of the paired differences over tapes.
        tapes: their number.
    """

    paper: float
    exact: float
    difference: float
    standard_error: float
    tapes: int


def compare_likelihoods(
    world: World, tapes: Tape, *, initial: Initial = "uniform", sourced: bool = False, chunk: int = 500
) -> dict[str, LikelihoodComparison]:
    """Filter the same tapes under both likelihoods and compare the log posterior of the true regime (`Factor.labels`).

    Week 0 is filtered but not scored: its regime and readings are constants, so no law of drawn readings can be right
    about it. (Under the `uniform` start `exact` is the worse guess there for demand, by .0014 nats: 20 units are likelier
    by the density at its peak than by the mean density over the interval.) Runs in float64, since some differences are
    near 1e-6.

    Args:
        world: the filters' model; the tapes are usually of the same world.
        tapes: a batch of at least two tapes along one leading axis.
        initial: how the filters start.
        sourced: whether spot ships something in every week at whose decision it was alive, so that its fill is read.
        chunk: tapes filtered at a time, for memory.

    Returns:
        factor -> comparison.

    Raises:
        InputError: if there are fewer than two tapes, or the start is unknown.
    """
    shape = np.shape(next(iter(tapes.states.values())))
    if len(shape) != 2 or shape[0] < 2:
        raise InputError(f"tapes must be a batch of at least 2 along one leading axis, not of shape {shape}")
    if chunk < 1:
        raise InputError(f"chunk must be at least 1, not {chunk}")
    tapes = tapes.snapped(world)
    readings = tapes.readings(world, spot_alive_before(world, tapes) if sourced else None)
    count, chunk = shape[0], min(chunk, shape[0])
    scores: list[dict[str, dict[Likelihood, np.ndarray]]] = []
    with jax.enable_x64(True):
        for start in range(0, count, chunk):
            # The last chunk is filled up with tapes that were seen already, so that one compiled shape serves all.
            rows = np.arange(start, start + chunk) % count
            seen, states = jax.tree.map(lambda x, r=rows: np.asarray(x)[r], (readings, tapes.states))
            part = _log_scores(world, seen, states, initial)
            scores.append(jax.tree.map(lambda x, n=count - start: np.asarray(x)[:n], part))
    pooled = jax.tree.map(lambda *parts: np.concatenate(parts), *scores)
    return {name: _compare(pooled[name]["paper"], pooled[name]["exact"]) for name in world.factors}


def spot_alive_before(world: World, tapes: Tape) -> np.ndarray:
    """(..., week) whether spot was alive in the week before, so that an order to it could have been placed."""
    dead = np.array([r.name == "defunct" for r in world.supplier.state_regimes])[np.asarray(tapes.states["supplier"])]
    return np.concatenate([np.zeros_like(dead[..., :1]), ~dead[..., :-1]], axis=-1)


def log_score(
    factor: Factor,
    readings: Mapping[str, Float[Array, " week"]],
    states: Int[Array, " week"],
    likelihood: Likelihood = "paper",
    initial: Initial = "uniform",
) -> Float[Array, " week"]:
    """log P(true regime of the week | readings so far) under the filter, of one series with known states.

    See `hmm.forward` for the conventions of the filter.
    """
    pooled = factor.regime_probabilities(filter_factor(factor, readings, likelihood, initial).belief)
    label_of = jnp.asarray([factor.labels.index(r.label) for r in factor.state_regimes])
    return jnp.log(jnp.take_along_axis(pooled, label_of[states][:, None], axis=1)[:, 0])


@eqx.filter_jit
def _log_scores(
    world: World,
    readings: dict[str, dict[str, Array]],
    states: dict[str, Array],
    initial: Initial,
) -> dict[str, dict[Likelihood, Array]]:
    kinds: tuple[Likelihood, ...] = get_args(Likelihood)

    def mean_score(name: str, factor: Factor, kind: Likelihood) -> Array:
        scores = jax.vmap(lambda y, s: log_score(factor, y, s, kind, initial))(readings[name], states[name])
        return jnp.mean(scores[:, 1:], axis=1)

    return {name: {kind: mean_score(name, factor, kind) for kind in kinds} for name, factor in world.factors.items()}


def _compare(paper: np.ndarray, exact: np.ndarray) -> LikelihoodComparison:
    paired = exact - paper
    error = np.std(paired, ddof=1) / np.sqrt(paired.size)
    return LikelihoodComparison(
        float(paper.mean()), float(exact.mean()), float(paired.mean()), float(error), int(paired.size)
    )
