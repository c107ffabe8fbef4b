"""Exact inference in a hidden Markov chain: filter, smoother, most probable path, posterior paths, forecast.

Every function takes one series and is made to be jitted and vmapped by its caller. The conventions throughout:
`transition[i, j]` is P(next state is j | this state is i); week 0 scores its reading against `initial`, later weeks move
first and score then; a reading that no reachable state can give has log evidence -inf and is flagged in `status`, never
smoothed over.
"""

from __future__ import annotations

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stocktake_jax.errors import InputError
from stocktake_jax.models import Factor, Initial, Likelihood

FINE = -1
"""Status of a series all of whose readings were possible."""


class Chain(eqx.Module):
    """A hidden Markov chain with the log likelihoods of one series: what every function here takes.

    Attributes:
        initial: law of the state in week 0.
        transition: `transition[i, j]` = P(next state is j | this state is i).
        log_likelihood: log P(reading of the week | state), less `log_scale`.
        log_scale: a part of it that all states share; it enters the evidence alone.
    """

    initial: Float[Array, " state"]
    transition: Float[Array, "state state"]
    log_likelihood: Float[Array, "week state"]
    log_scale: Float[Array, " week"]


def chain(
    factor: Factor,
    readings: Mapping[str, Float[Array, " week"]],
    likelihood: Likelihood = "paper",
    initial: Initial = "uniform",
) -> Chain:
    """The chain of a factor and one series of its readings (channel -> (week,) values, nan where missing).

    Raises:
        InputError: for unknown channels, series of unequal length, unknown likelihoods or starts.
    """
    lengths = {name: np.shape(series) for name, series in readings.items()}
    if len(set(lengths.values())) > 1 or any(len(shape) != 1 or shape[0] == 0 for shape in lengths.values()):
        raise InputError(f"{factor.name}: readings must be series of one common length >= 1, not of shapes {lengths}")
    table, scale = factor.log_likelihood(readings, likelihood, initial)
    dtype = table.dtype
    return Chain(
        jnp.asarray(factor.initial(initial), dtype), jnp.asarray(factor.transition_matrix(), dtype), table, scale
    )


class Filtered(eqx.Module):
    """The result of `forward`.

    Attributes:
        belief: P(state of week t | readings 0 .. t).
        predicted: P(state of week t | readings 0 .. t - 1); `initial` in week 0.
        log_evidence: log P(reading t | readings 0 .. t - 1); -inf where no reachable state can give the reading (the
            belief of that week is then the prediction).
        status: `FINE`, or the first week whose reading was impossible.
    """

    belief: Float[Array, "week state"]
    predicted: Float[Array, "week state"]
    log_evidence: Float[Array, " week"]
    status: Int[Array, ""]


class Smoothed(eqx.Module):
    """The result of `smooth`: P(state of week t | all readings), and the filter's log evidence and status."""

    belief: Float[Array, "week state"]
    log_evidence: Float[Array, " week"]
    status: Int[Array, ""]


class Path(eqx.Module):
    """The result of `most_probable_path`: the states, their joint log probability with the readings, a status."""

    states: Int[Array, " week"]
    log_probability: Float[Array, ""]
    status: Int[Array, ""]


def correct(
    predicted: Float[Array, " state"], log_likelihood: Float[Array, " state"]
) -> tuple[Float[Array, " state"], Float[Array, ""]]:
    """One application of Bayes' rule: the belief after a reading, and the reading's log evidence.

    The likelihood is scaled by its largest value among reachable states, so nothing underflows that matters. An
    impossible reading gives the prediction back, and log evidence -inf.
    """
    reachable = predicted > 0
    best = jnp.max(jnp.where(reachable, log_likelihood, -jnp.inf))
    possible = jnp.isfinite(best)
    scale = jnp.where(possible, best, jnp.zeros_like(best))
    # Double where: exp of -inf has a nan gradient unless its argument is made finite first.
    finite = reachable & jnp.isfinite(log_likelihood)
    shifted = jnp.where(finite, log_likelihood, scale) - scale
    joint = jnp.where(finite, predicted * jnp.exp(shifted), jnp.zeros_like(predicted))
    total = jnp.sum(joint)
    safe = jnp.where(possible, total, jnp.ones_like(total))
    belief = jnp.where(possible, joint / safe, predicted)
    return belief, jnp.where(possible, scale + jnp.log(safe), -jnp.inf)


def move(belief: Float[Array, " state"], transition: Float[Array, "state state"]) -> Float[Array, " state"]:
    """The belief one week on."""
    return jnp.matmul(belief, transition, precision="highest")


def forward(c: Chain) -> Filtered:
    """The exact filter. Week 0 scores its reading against `initial`; later weeks move, then score.

    A state whose probability falls below the smallest number of the type (1e-38 in float32) counts as ruled out.
    """

    def step(predicted: Array, log_likelihood: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        belief, log_evidence = correct(predicted, log_likelihood)
        return move(belief, c.transition), (belief, predicted, log_evidence)

    _, (belief, predicted, log_evidence) = jax.lax.scan(step, c.initial, c.log_likelihood)
    return Filtered(belief, predicted, log_evidence + c.log_scale, _status(log_evidence))


def _status(log_evidence: Float[Array, " week"]) -> Int[Array, ""]:
    bad = jnp.isneginf(log_evidence)
    return jnp.where(jnp.any(bad), jnp.argmax(bad), FINE).astype(jnp.int32)


def log_evidence(c: Chain) -> Float[Array, ""]:
    """log P(all readings); -inf if they are impossible."""
    return jnp.sum(forward(c).log_evidence)


def smooth(c: Chain) -> Smoothed:
    """The forward-backward smoother: the belief about every week given the whole series."""
    filtered = forward(c)

    def step(later: tuple[Array, Array], week: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        smoothed_next, predicted_next = later
        belief, predicted = week
        reachable = predicted_next > 0
        ratio = jnp.where(reachable, smoothed_next / jnp.where(reachable, predicted_next, 1.0), 0.0)
        smoothed = belief * jnp.matmul(c.transition, ratio, precision="highest")
        return (smoothed, predicted), smoothed

    last = filtered.belief[-1]
    _, earlier = jax.lax.scan(
        step, (last, filtered.predicted[-1]), (filtered.belief[:-1], filtered.predicted[:-1]), reverse=True
    )
    return Smoothed(jnp.concatenate([earlier, last[None]]), filtered.log_evidence, filtered.status)


def _log(p: Array) -> Array:
    seen = p > 0
    return jnp.where(seen, jnp.log(jnp.where(seen, p, jnp.ones_like(p))), -jnp.inf)


def most_probable_path(c: Chain) -> Path:
    """The Viterbi path: the states that are jointly most probable given all readings; ties go to the lower index."""
    log_transition = _log(c.transition)

    def step(score: Array, log_likelihood: Array) -> tuple[Array, Array]:
        candidates = score[:, None] + log_transition
        return jnp.max(candidates, axis=0) + log_likelihood, jnp.argmax(candidates, axis=0)

    score, origins = jax.lax.scan(step, _log(c.initial) + c.log_likelihood[0], c.log_likelihood[1:])
    last = jnp.argmax(score)

    def back(state: Array, origin: Array) -> tuple[Array, Array]:
        return origin[state], origin[state]

    _, earlier = jax.lax.scan(back, last, origins, reverse=True)
    return Path(
        jnp.concatenate([earlier, last[None]]).astype(jnp.int32),
        score[last] + jnp.sum(c.log_scale),
        _status(forward(c).log_evidence),
    )


def sample_path(c: Chain, *, key: Array) -> Int[Array, " week"]:
    """A path of states drawn from their joint law given all readings (forward filtering, backward sampling)."""
    filtered = forward(c)
    keys = jax.random.split(key, c.log_likelihood.shape[0])
    last = jax.random.categorical(keys[-1], _log(filtered.belief[-1]))

    def step(later: Array, week: tuple[Array, Array]) -> tuple[Array, Array]:
        belief, k = week
        state = jax.random.categorical(k, _log(belief) + _log(c.transition[:, later]))
        return state, state

    _, earlier = jax.lax.scan(step, last, (filtered.belief[:-1], keys[:-1]), reverse=True)
    return jnp.concatenate([earlier, last[None]]).astype(jnp.int32)


def forecast(
    belief: Float[Array, " state"], transition: Float[Array, "state state"], weeks: int
) -> Float[Array, "week state"]:
    """The belief 1, 2, .., `weeks` weeks on, if nothing more is read."""

    def step(b: Array, _: None) -> tuple[Array, Array]:
        ahead = move(b, transition)
        return ahead, ahead

    return jax.lax.scan(step, belief, None, length=weeks)[1]


def require_possible(result: Filtered | Smoothed | Path, name: str = "the series") -> None:
    """Turn a bad status into an error, outside of jax transformations.

    Raises:
        InputError: naming the first week whose reading no reachable state can give.
    """
    status = np.asarray(result.status)
    if np.any(status != FINE):
        week = int(status[status != FINE].ravel()[0]) if status.ndim else int(status)
        raise InputError(f"{name}: the reading of week {week} has probability zero under this model and start")
