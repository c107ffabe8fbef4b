"""The fair oracle: filter, sample futures, score a menu on them, take the cheapest.

It is given what an agent is given, week by week, and a model of the world. Batches of episodes are decided in one jitted
call; how they are cut (`Layout`) changes the time and the memory taken and nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from stocktake_jax.inference import Belief
from stocktake_jax.inference.hmm import correct, move
from stocktake_jax.models import HORIZON, Initial, Likelihood, Readings, World
from stocktake_jax.policies.futures import MoveTable, move_table, sample_futures
from stocktake_jax.policies.menu import MENU_WIDTH, Risks, compact, menu, risks
from stocktake_jax.policies.posterior import Matrices, by_state, draws_of, laws, marginal, onward, worlds_of
from stocktake_jax.policies.protocol import Shown
from stocktake_jax.policies.surrogate import (
    Candidate,
    Outlook,
    Situation,
    Tables,
    cost_of,
    outlook_of,
    situation,
    tables,
)


class Layout(NamedTuple):
    """How a batch of episodes is cut.

    Attributes:
        group: episodes whose futures are in memory together; groups go one after the other.
        block: candidates of each that are scored together; blocks go on until every menu of the group is through.
    """

    group: int
    block: int

    @classmethod
    def choose(cls, platform: str) -> Layout:
        """Small working sets that stay in cache on CPUs; wide passes over the whole masked menu on accelerators."""
        return cls(8, 5) if platform == "cpu" else cls(256, MENU_WIDTH)


class Planner(eqx.Module):
    """A model of the world in the form that filtering and planning need; build it with `planner`.

    Attributes:
        world: the model, in float32; or a posterior, whose states are (draw, state) then (`policies.posterior`).
        initial: factor -> law of the state in week 0.
        transition: factor -> transition matrix; of a posterior, one a draw.
        tables, moves: see `surrogate` and `futures`.
    """

    world: World
    initial: dict[str, Float[Array, "... state"]]
    transition: dict[str, Float[Array, "... old new"]]
    tables: Tables
    moves: MoveTable


class Choice(eqx.Module):
    """What the oracle decided for each episode, and why.

    Attributes:
        chosen: the candidate taken.
        slot: its slot on the menu.
        costs: (slot) mean cost of each candidate over the futures, inf where the slot was not on the menu.
    """

    chosen: Candidate
    slot: Int[Array, "*batch"]
    costs: Float[Array, "*batch slot"]


def planner(model: World, initial: Initial = "uniform", matrices: Matrices | None = None) -> Planner:
    """Work out the planning tables of a model, or of a posterior; with other matrices than the declared ones, if given.

    Host values are worked on in float64 before they become float32, so that no probability loses digits on the way.
    """
    start, transition = laws(model, initial, matrices)
    return _assemble_jit(model, start, transition, transition)


def assemble(
    model: World,
    initial: dict[str, Float[Array, " state"]],
    transition: dict[str, Float[Array, "*draw old new"]],
    moves: dict[str, Float[Array, "*draw old new"]],
) -> Planner:
    """A planner from a model and its laws: the start and the moves of the filters, and the moves of the futures."""
    everything = (model, initial, transition, moves)
    world, initial, transition, moves = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), everything)
    return Planner(world, initial, transition, tables(world), move_table(world, moves))


_assemble_jit = jax.jit(assemble)


def believe(
    p: Planner, predicted: dict[str, Float[Array, " state"]], readings: Readings, likelihood: Likelihood
) -> tuple[Belief, dict[str, Float[Array, " state"]]]:
    """One week of the six filters: the belief after a week's readings, and the prediction for the next week.

    `predicted` is the planner's `initial` in week 0. Readings are scalars; those of week 0 that a `baseline` start knows
    beforehand must come as nan (`opening_readings`).
    """
    posteriors, evidence, ahead = {}, {}, {}
    certain = draws_of(p.world) is None
    for name, factor in p.world.factors.items():
        series = {k: v[None] for k, v in readings[name].items()}
        if certain:
            table, scale = factor.log_likelihood(series, likelihood)
            posteriors[name], log_evidence = correct(predicted[name], table[0])
            evidence[name] = log_evidence + scale[0]
            ahead[name] = move(posteriors[name], p.transition[name])
        else:
            # Draws have scales of their own, which weigh them against each other.
            def score(w: World, name: str = name, series: dict[str, Array] = series) -> Array:
                table, scale = w.factors[name].log_likelihood(series, likelihood)
                return table[0] + scale[0]

            posteriors[name], evidence[name] = correct(predicted[name], by_state(p.world, score))
            ahead[name] = onward(posteriors[name], p.transition[name])
    return Belief(posteriors, evidence), ahead


class Watched(eqx.Module):
    """What the filters make of a week's readings, episode by episode.

    Attributes:
        belief: about the states of the planner's world; of a posterior, about (draw, state).
        ahead: factor -> the prediction for the next week.
        risks: what the menu asks of the belief.
        regimes: factor -> probabilities of the report's regimes.
    """

    belief: Belief
    ahead: dict[str, Float[Array, "episode state"]]
    risks: Risks
    regimes: dict[str, Float[Array, "episode regime"]]


TOGETHER = 64
"""Episodes that are filtered side by side. How a product of matrices is summed depends on their shapes, so the number is
the same for every batch, layout and device: an episode's beliefs do not hang, by a last digit, on its company."""


def watch(
    p: Planner, predicted: dict[str, Float[Array, "episode state"]], readings: Readings, likelihood: Likelihood
) -> Watched:
    """One week of the filters of a batch of episodes: `believe` of each, and what is asked of its belief.

    The result for an episode is the same bit for bit in every batch.
    """

    def of_block(block: tuple[dict[str, Array], Readings]) -> Watched:
        belief, ahead = jax.vmap(lambda b, r: believe(p, b, r, likelihood))(*block)
        return Watched(belief, ahead, risks(p.world, belief), marginal(p.world, belief).regimes(p.world))

    episodes = jax.tree.leaves(predicted)[0].shape[0]
    blocks = -(-episodes // TOGETHER)

    def cut(x: Array) -> Array:
        filled = jnp.pad(x, [(0, blocks * TOGETHER - episodes), *[(0, 0)] * (x.ndim - 1)], mode="edge")
        return filled.reshape(blocks, TOGETHER, *x.shape[1:])

    found = jax.lax.map(of_block, jax.tree.map(cut, (predicted, readings)))
    return jax.tree.map(lambda x: x.reshape(blocks * TOGETHER, *x.shape[2:])[:episodes], found)


def opening_readings(model: World, readings: Readings, initial: Initial) -> Readings:
    """Week 0's readings as `believe` wants them: under the `baseline` start, the world's constants say nothing."""
    if initial != "baseline":
        return readings
    one = worlds_of(model)[0]
    constant = {n: {c.name for c in f.shown_channels() if c.start is not None} for n, f in one.factors.items()}
    return {
        n: {k: np.full_like(v, np.nan) if k in constant[n] else v for k, v in channels.items()}
        for n, channels in readings.items()
    }


class _Case(eqx.Module):
    """One episode's decision problem."""

    desk: Situation
    candidates: Candidate
    order: Int[Array, "*batch slot"]
    belief: dict[str, Float[Array, "*batch state"]]
    key: UInt32[Array, "*batch 2"]
    futures: Int[Array, "*batch"]


def choose(
    p: Planner,
    r: Risks,
    belief: Belief,
    shown: Shown,
    week: Int[Array, ""],
    key: UInt32[Array, "episode 2"],
    futures: Int[Array, " episode"],
    *,
    most_futures: int,
    layout: Layout,
) -> Choice:
    """Decide a batch of episodes; every argument but the planner, the week and the layout has a leading episode axis.

    Args:
        p: the model.
        r: what the menu asks of the belief.
        belief: about each episode.
        shown: the desks.
        week: the week whose observation was just read, 0 .. 25.
        key: two words per episode that no other decision uses.
        futures: how many futures each episode samples.
        most_futures: at least the largest of them (static).
        layout: see `Layout`.
    """
    t = p.tables
    weeks = HORIZON - week
    ship_due = shown.eta - week - 1
    ship_due = jnp.where(shown.units > 0, ship_due, -1)
    inventory = shown.inventory.astype(jnp.float32)
    desk = jax.vmap(lambda i, u, d, s: situation(t, i, u, d, s))(inventory, shown.units, ship_due, shown.live)
    position = shown.position.astype(jnp.float32)
    lands_next = jnp.any(ship_due == 0, axis=1)
    candidates, valid = jax.vmap(lambda a, b, c, d: menu(a, b, c, d, t.cap))(r, position, shown.live, lands_next)
    order, count = jax.vmap(compact)(valid)
    cases = _Case(desk, candidates, order, belief.posteriors, key, futures)
    costs = _score(p, cases, count, weeks, most_futures, layout)
    costs = jnp.where(valid, costs, jnp.inf)
    slot = jnp.argmin(costs, axis=1).astype(jnp.int32)
    chosen = jax.tree.map(lambda x: jnp.take_along_axis(x, slot[:, None], axis=1)[:, 0], candidates)
    return Choice(chosen, slot, costs)


def _score(
    p: Planner, cases: _Case, count: Int[Array, " episode"], weeks: Int[Array, ""], most_futures: int, layout: Layout
) -> Float[Array, "episode slot"]:
    """Mean cost of every valid candidate; the rest is left as it falls.

    Episodes are sorted by the size of their menu, so that the episodes of a group finish together.
    """
    episodes = count.shape[0]
    group, block = layout.group, layout.block
    groups = -(-episodes // group)
    ranked = jnp.argsort(count, stable=True)
    # The last group is filled up with copies of the last episode, whose results are dropped.
    padded = jnp.concatenate([ranked, jnp.full((groups * group - episodes,), ranked[-1])])

    def of_group(members: Int[Array, " member"]) -> Float[Array, "member slot"]:
        mine = jax.tree.map(lambda x: x[members], cases)
        blocks = (jnp.max(count[members]) + block - 1) // block

        def future_of(case: _Case) -> Outlook:
            paths = sample_futures(p.moves, case.belief, case.key, weeks, most_futures, HORIZON)
            return outlook_of(p.tables, case.desk, paths, weeks)

        outlooks = jax.vmap(future_of)(mine)
        width = -(-MENU_WIDTH // block) * block
        order = jnp.pad(mine.order, ((0, 0), (0, width - MENU_WIDTH)))

        def of_block(b: Array, costs: Array) -> Array:
            slots = jax.lax.dynamic_slice_in_dim(order, b * block, block, axis=1)
            offered = jax.tree.map(lambda x: jnp.take_along_axis(x, slots, axis=1), mine.candidates)

            def mean_cost(desk: Situation, candidate: Candidate, outlook: Outlook, futures: Array) -> Array:
                over_futures = jax.vmap(lambda f: cost_of(p.tables, desk, candidate, f, weeks), in_axes=-1)
                cost = over_futures(outlook)
                counted = jnp.arange(most_futures) < futures
                return jnp.sum(jnp.where(counted, cost, 0.0)) / futures.astype(cost.dtype)

            over_candidates = jax.vmap(mean_cost, in_axes=(None, 0, None, None))
            scored = jax.vmap(over_candidates)(mine.desk, offered, outlooks, mine.futures)
            return jax.lax.dynamic_update_slice_in_dim(costs, scored, b * block, axis=1)

        compacted = jax.lax.fori_loop(0, blocks, of_block, jnp.zeros((group, width)))
        rank_of_slot = jnp.argsort(mine.order, axis=1)
        return jnp.take_along_axis(compacted, rank_of_slot, axis=1)

    by_rank = jax.lax.map(of_group, padded.reshape(groups, group)).reshape(groups * group, MENU_WIDTH)
    return by_rank[jnp.argsort(ranked)]
