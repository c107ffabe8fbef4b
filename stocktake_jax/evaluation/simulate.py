"""Running policies: batches of episodes in lockstep, and any single policy through the agent's tools."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stocktake_jax.desk import Bill, Books, Decision, Episode, Rules, Shocks, shocks, step
from stocktake_jax.models import HORIZON, Tape, World
from stocktake_jax.policies import BatchPolicy, Policy, Runs, Shown


@dataclasses.dataclass(frozen=True)
class Trajectories:
    """What happened in a batch of episodes; the axes are (episode, week), weeks 1 .. 26.

    Attributes:
        runs: seed and replication of each episode.
        bill: item -> dollars.
        decision: field of `Decision` -> the decision that took effect in the week.
        books: inventory, on_order, arrived, unmet -> units at the end of the week.
        notes: what the policy noted when it decided.
    """

    runs: Runs
    bill: dict[str, np.ndarray]
    decision: dict[str, np.ndarray]
    books: dict[str, np.ndarray]
    notes: dict[str, np.ndarray]

    @property
    def cost(self) -> np.ndarray:
        """(episode,) total cost in dollars."""
        return sum(self.bill[name].sum(axis=1) for name in self.bill)


ITEMS = (*Bill.ALWAYS, *Bill.SOMETIMES)
"""Items of a bill, in the order in which they are shown."""


def simulate(
    policy: BatchPolicy,
    tapes: Tape,
    runs: Runs,
    tape_of: np.ndarray,
    world: World | None = None,
    rules: Rules = "paper",
    on_week: Callable[[int], None] | None = None,
) -> Trajectories:
    """Run a policy on many episodes at once, week by week, with the true books in float64.

    Args:
        policy: decides all episodes of a week together, from what their desks show.
        tapes: the tapes, along a leading axis; float64 (`Tape.snapped` makes fresh ones so).
        runs: the episodes.
        tape_of: (episode,) which tape each has.
        world: the true world, of tapes and books.
        rules: of the books.
        on_week: called after each week with its number, for progress.
    """
    world = world or World.paper()
    episodes = len(runs.seed)
    hits = jax.tree.map(lambda x: x[tape_of], shocks(world, tapes))
    everything = tapes.readings(world, np.ones(np.shape(tapes.states["canal"]), bool))
    readings = jax.tree.map(lambda x: np.asarray(x, np.float32)[tape_of], everything)
    start = Books.start(world)
    books = jax.tree.map(lambda x: np.broadcast_to(x, (episodes, *np.shape(x))), start)
    shown = _shown(world, books)
    memory = policy.begin(runs)
    bills, decisions, held, notes = [], [], [], []
    for week in range(HORIZON):
        now = jax.tree.map(lambda x, t=week: x[:, t], readings)
        sourced = np.asarray(shown.sourced)
        now["supplier"]["realized_fill"] = np.where(sourced, now["supplier"]["realized_fill"], np.float32(np.nan))
        memory, decision, note = policy.decide(memory, week, now, shown)
        decision = jax.tree.map(lambda x: np.broadcast_to(np.asarray(x, np.int32), (episodes,)), decision)
        books, bill, shown = _advance(world, books, decision, hits.week(week + 1), rules)
        bills.append({name: np.asarray(getattr(bill, name)) for name in ITEMS})
        decisions.append(vars(decision))
        held.append(
            {
                "inventory": np.asarray(books.on_hand),
                "on_order": np.asarray(shown.units).sum(1, dtype=np.int32),
                "arrived": np.asarray(books.arrived),
                "unmet": np.asarray(bill.flow.unmet),
            }
        )
        notes.append(note)
        if on_week is not None:
            on_week(week + 1)

    def collect(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        return {name: np.stack([np.asarray(row[name]) for row in rows], axis=1) for name in rows[0]}

    return Trajectories(runs, collect(bills), collect(decisions), collect(held), collect(notes))


def _advance(world: World, books: Books, decision: Decision, now: Shocks, rules: Rules) -> tuple[Books, Bill, Shown]:
    with jax.enable_x64(True):
        return _advance_jit(world, books, decision, now, rules)


@functools.partial(jax.jit, static_argnums=4)
def _advance_jit(
    world: World, books: Books, decision: Decision, now: Shocks, rules: Rules
) -> tuple[Books, Bill, Shown]:
    after, bill = jax.vmap(lambda b, d, s: step(world, b, d, s, rules))(books, decision, now)
    return after, bill, jax.vmap(lambda b: _shown_one(world, b))(after)


def _shown(world: World, books: Books) -> Shown:
    with jax.enable_x64(True):
        return _shown_jit(world, books)


@jax.jit
def _shown_jit(world: World, books: Books) -> Shown:
    return jax.vmap(lambda b: _shown_one(world, b))(books)


def _shown_one(world: World, books: Books) -> Shown:
    units = jnp.where(books.ships.at_sea, books.ships.qty, 0)
    return Shown(books.on_hand, units, books.eta(world), books.live(), books.sourced_spot)


def play(
    policy: Policy, seeds: Sequence[int], world: World | None = None, rules: Rules = "paper", replications: int = 1
) -> dict[int, list[float]]:
    """Play any policy through the agent's tools: seed -> total cost of each replication.

    `world` is the true one. For many runs of a policy that decides in batches, `simulate` is far faster.
    """
    costs: dict[int, list[float]] = {}
    for seed in seeds:
        for replication in range(1, replications + 1):
            episode = Episode(seed=seed, world=world, rules=rules)
            policy.reset(replication)
            while not episode.done:
                policy.act(episode.observe(), episode)
            costs.setdefault(seed, []).append(episode.cost)
    return costs
