"""The whole table behind one decision of the oracle: every candidate on every future, not only the means.

For looking at a decision. `rollout.choose` is what decides: it takes the same futures and gives the means of these rows.
"""

from __future__ import annotations

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from stocktake_jax.inference import Belief
from stocktake_jax.models import HORIZON, Likelihood, Readings
from stocktake_jax.policies.futures import sample_futures
from stocktake_jax.policies.menu import menu
from stocktake_jax.policies.oracle import Oracle
from stocktake_jax.policies.posterior import marginal
from stocktake_jax.policies.protocol import Shown
from stocktake_jax.policies.rollout import Planner, opening_readings, watch
from stocktake_jax.policies.surrogate import Candidate, cost_of, outlook_of, situation


class CostTable(eqx.Module):
    """What the candidates of one week cost on the sampled futures, from the next week to the end.

    Attributes:
        candidates: the menu, slot by slot.
        valid: (slot,) whether the slot was on the menu.
        costs: (slot, future) dollars; the rows of slots that were not on the menu mean nothing.
        belief: about the states, which the futures start from; what an oracle that averages over draws believes of them is
            summed over the draws.
    """

    candidates: Candidate
    valid: Bool[Array, " slot"]
    costs: Float[Array, "slot future"]
    belief: Belief

    @property
    def chosen(self) -> int:
        """The slot of the cheapest candidate on average; ties go to the first."""
        mean = np.where(np.asarray(self.valid), np.asarray(self.costs, np.float64).mean(axis=1), np.inf)
        return int(np.argmin(mean))


def cost_table(oracle: Oracle, memory: Any, week: int, readings: Readings, shown: Shown, episode: int = 0) -> CostTable:
    """The table of one episode's decision, from what `Oracle.decide` is given.

    Args:
        oracle: who decides.
        memory: as `decide` gets it.
        week: the week whose observation is read, 0 .. 25.
        readings: as `decide` gets them.
        shown: as `decide` gets it.
        episode: which of the batch.
    """
    predicted, keys, futures = memory
    readings = jax.tree.map(lambda x: np.asarray(x, np.float32), readings)
    if week == 0:
        readings = opening_readings(oracle.model, readings, oracle.initial)
    one = jax.tree.map(lambda x: np.asarray(x)[episode], (predicted, readings, shown, keys))
    run = _table_jit(int(futures[episode]), oracle.likelihood)
    return jax.tree.map(np.asarray, run(oracle.planner, *one, np.int32(week)))


@functools.cache
def _table_jit(futures: int, likelihood: Likelihood) -> Any:
    def table(
        p: Planner,
        predicted: dict[str, Float[Array, " state"]],
        readings: Readings,
        shown: Shown,
        key: UInt32[Array, "2"],
        week: Int[Array, ""],
    ) -> CostTable:
        t, weeks = p.tables, HORIZON - week
        before, now = jax.tree.map(lambda x: x[None], (predicted, readings))
        seen = jax.tree.map(lambda x: x[0], watch(p, before, now, likelihood))
        # As `oracle.decide_batch` makes a week's key, and `rollout.choose` its desk.
        words = jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), week))
        due = jnp.where(shown.units > 0, shown.eta - week - 1, -1)
        desk = situation(t, shown.inventory.astype(jnp.float32), shown.units, due, shown.live)
        position = shown.position.astype(jnp.float32)
        candidates, valid = menu(seen.risks, position, shown.live, jnp.any(due == 0), t.cap)
        paths = sample_futures(p.moves, seen.belief.posteriors, words, weeks, futures, HORIZON)
        outlook = outlook_of(t, desk, paths, weeks)

        def over_futures(candidate: Candidate) -> Float[Array, " future"]:
            return jax.vmap(lambda f: cost_of(t, desk, candidate, f, weeks), in_axes=-1)(outlook)

        return CostTable(candidates, valid, jax.lax.map(over_futures, candidates), marginal(p.world, seen.belief))

    return jax.jit(table)
