"""The beliefs about all six factors together, updated week by week from what is read."""

from __future__ import annotations

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stocktake_jax.inference.hmm import Filtered, chain, correct, forward, move
from stocktake_jax.models import Factor, Initial, Likelihood, World


class Belief(eqx.Module):
    """Six independent posteriors. The factors are independent a priori and by reading, so this is the joint posterior.

    Attributes:
        posteriors: factor -> (..., state) P(state | readings so far).
        log_evidence: factor -> (...) log P(this week's reading | the readings before); -inf if it was impossible.
    """

    posteriors: dict[str, Float[Array, "*batch state"]]
    log_evidence: dict[str, Float[Array, "*batch"]]

    @classmethod
    def first(
        cls,
        world: World,
        readings: Mapping[str, Mapping[str, Float[Array, ""]]],
        likelihood: Likelihood = "paper",
        initial: Initial = "uniform",
    ) -> Belief:
        """The belief after week 0's readings (factor -> channel -> value)."""
        predicted = {n: jnp.asarray(f.initial(initial), _dtype(readings)) for n, f in world.factors.items()}
        return _correct_all(world, predicted, readings, likelihood, initial)

    def update(
        self,
        world: World,
        readings: Mapping[str, Mapping[str, Float[Array, ""]]],
        likelihood: Likelihood = "paper",
    ) -> Belief:
        """The belief one week later, after that week's readings: predict, then correct."""
        predicted = {
            n: move(self.posteriors[n], jnp.asarray(f.transition_matrix(), self.posteriors[n].dtype))
            for n, f in world.factors.items()
        }
        return _correct_all(world, predicted, readings, likelihood, "uniform")

    def regimes(self, world: World) -> dict[str, Float[Array, "*batch regime"]]:
        """factor -> probabilities of the report's regimes, in the order of the factor's `labels`."""
        return {n: f.regime_probabilities(self.posteriors[n]) for n, f in world.factors.items()}

    def stress(self, world: World) -> dict[str, Float[Array, "*batch"]]:
        """factor -> probability that it is under stress."""
        return {
            n: jnp.matmul(self.posteriors[n], jnp.asarray(f.stress_mask, self.posteriors[n].dtype), precision="highest")
            for n, f in world.factors.items()
        }


def _dtype(readings: Mapping[str, Mapping[str, Array]]) -> jnp.dtype:
    leaf = jnp.asarray(jax.tree.leaves(readings)[0])
    return leaf.dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.result_type(float)


def _correct_all(
    world: World,
    predicted: dict[str, Array],
    readings: Mapping[str, Mapping[str, Array]],
    likelihood: Likelihood,
    initial: Initial,
) -> Belief:
    posteriors, evidence = {}, {}
    for name, factor in world.factors.items():
        series = {k: jnp.asarray(v)[None] for k, v in readings[name].items()}
        table, scale = factor.log_likelihood(series, likelihood, initial)
        posteriors[name], log_evidence = correct(predicted[name], table[0])
        evidence[name] = log_evidence + scale[0]
    return Belief(posteriors, evidence)


def filter_factor(
    factor: Factor,
    readings: Mapping[str, Float[Array, " week"]],
    likelihood: Likelihood = "paper",
    initial: Initial = "uniform",
) -> Filtered:
    """The exact filter of one factor on one series; see `hmm.forward` for the conventions."""
    return forward(chain(factor, readings, likelihood, initial))


def filter_world(
    world: World,
    readings: Mapping[str, Mapping[str, Float[Array, " week"]]],
    likelihood: Likelihood = "paper",
    initial: Initial = "uniform",
) -> dict[str, Filtered]:
    """The filters of all six factors on one series of readings each."""
    return {n: filter_factor(f, readings[n], likelihood, initial) for n, f in world.factors.items()}
