"""Expectation maximisation on free transition rows, emissions known: the baseline that the declared parameters replace.

Each row of the transition matrix is free over the moves that the declaration has, so that a hazard which grows with age
has a row of its own at every age, learned from the few series that came that far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize

from stocktake_jax.errors import InputError
from stocktake_jax.inference.evidence import SeriesEvidence, batch_evidence, membership
from stocktake_jax.inference.fit import FactorFit
from stocktake_jax.inference.priors import Prior, entries, roles, select
from stocktake_jax.models import Factor, Initial, Likelihood


class Learned(NamedTuple):
    """The result of `baum_welch`.

    Attributes:
        transition: the matrix after the last step.
        counts: expected number of moves from each state to each, given the matrix before the last step.
        log_evidence: of all series, before each step.
        settled: whether the last step gained less than the tolerance.
    """

    transition: np.ndarray
    counts: np.ndarray
    log_evidence: tuple[float, ...]
    settled: bool


def baum_welch(
    initial: Float[Array, " state"],
    transition: Float[Array, "state state"],
    table: Float[Array, "week group series"],
    membership: Float[Array, "group state"],
    *,
    iterations: int = 2000,
    tolerance: float = 1e-4,
    pseudo_count: float = 0.0,
) -> Learned:
    """Learn a transition matrix by EM from series whose emission laws are known; moves that start at zero stay there.

    Args:
        initial: law of the state in week 0, known.
        transition: where to start.
        table: log P(the week's readings | a state of the group), see `batch_evidence`.
        membership: which states belong to which group.
        iterations: steps at most.
        tolerance: stop when a step gains less log evidence than this.
        pseudo_count: added to the expected number of every move that is not impossible.

    Raises:
        InputError: if a series is impossible at the start.
    """

    @jax.jit
    def expect(transition: Array, table: Array) -> tuple[Array, Array]:
        total, slope = jax.value_and_grad(lambda a: jnp.sum(batch_evidence(initial, a, table, membership)))(transition)
        return total, transition * slope

    now = np.asarray(transition)
    trace: list[float] = []
    counts, settled = np.zeros_like(now), False
    for _ in range(iterations):
        total, expected = expect(jnp.asarray(now), table)
        if not np.isfinite(float(total)):
            raise InputError("a series has readings that are impossible under the transition matrix to start from")
        counts = np.asarray(expected) + pseudo_count * (now > 0)
        trace.append(float(total))
        rows = counts.sum(axis=1, keepdims=True)
        now = np.where(rows > 0, counts / np.where(rows > 0, rows, 1.0), now)  # a state never visited keeps its row
        if len(trace) > 1 and trace[-1] - trace[-2] < tolerance:
            settled = True
            break
    return Learned(now, counts, tuple(trace), settled)


def fit_em(
    factor: Factor,
    readings: Mapping[str, Float[Array, "series week"]],
    *,
    likelihood: Likelihood = "exact",
    initial: Initial = "baseline",
    iterations: int = 2000,
    tolerance: float = 1e-4,
    pseudo_count: float = 0.0,
) -> FactorFit:
    """EM on the factor's free transition rows, from uniform rows, and the declared parameters nearest to the result.

    A world can hold declared parameters alone. Those are chosen to make the moves that EM counted as probable as they can
    (in a mode with the default priors, so none sits on a bound); the free matrix is in the result's `transition`.

    Args:
        factor: gives emissions and the moves that exist.
        readings: channel -> (series, week).
        likelihood: law of the readings.
        initial: law of the state in week 0, taken as known.
        iterations: steps at most.
        tolerance: stop when a step gains less log evidence than this.
        pseudo_count: added to the expected number of every move.
    """
    evidence = SeriesEvidence.of(factor, readings, likelihood, initial)
    found = roles(factor, evidence.channels)
    prior = Prior(factor, select(factor, "transitions", found))
    support = factor.support()
    with jax.enable_x64(True):
        table, member = jnp.asarray(evidence.tabulated(factor).table), membership(evidence.groups, jnp.float64)
        first = jnp.asarray(factor.initial(initial))
        even = jnp.asarray(support / support.sum(axis=1, keepdims=True))
        learned = baum_welch(
            first, even, table, member, iterations=iterations, tolerance=tolerance, pseudo_count=pseudo_count
        )
        estimate = _nearest(prior, learned.counts)
        chain = jnp.asarray(prior.build_host(estimate).transition_matrix())
        total = float(jnp.sum(batch_evidence(first, chain, table, member)))
    nothing = np.full(estimate.size, np.nan)
    problems = () if learned.settled else (f"EM still gained after {iterations} steps",)
    fixed = {n: "is no transition: EM takes emissions as known" for n in entries(factor) if n not in prior.names}
    return FactorFit(
        factor.name, "em", prior.names, estimate, nothing, nothing, nothing, np.empty((0, 0, estimate.size)),
        total, fixed | found.fixed,
        {"steps": len(learned.log_evidence), "log_evidence_free": learned.log_evidence[-1]}, problems, learned.transition,
    )  # fmt: skip


def _nearest(prior: Prior, counts: np.ndarray) -> np.ndarray:
    """The declared parameters under which counted moves are most probable."""

    @jax.jit
    @jax.value_and_grad
    def negative(u: Array, counts: Array) -> Array:
        values, log_det = prior.constrain(u)
        chain = jnp.asarray(prior.build(values).transition_matrix())
        seen = counts > 0
        weighed = jnp.where(seen, counts * jnp.log(jnp.where(seen, jnp.maximum(chain, 1e-300), 1.0)), 0.0)
        return -(jnp.sum(weighed) + log_det + prior.log_density(values))

    def objective(u: np.ndarray, counts: Any) -> tuple[float, np.ndarray]:
        value, slope = negative(jnp.asarray(u), counts)
        return float(value), np.asarray(slope)

    start = prior.unconstrain(prior.inside())
    found = minimize(objective, start, args=(jnp.asarray(counts),), jac=True, method="L-BFGS-B")
    return np.asarray(jax.jit(lambda u: prior.constrain(u)[0])(jnp.asarray(found.x)))
