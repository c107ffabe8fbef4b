"""One decision of the oracle, taken apart: what was on the menu, what it expected, and what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from stocktake_jax.desk import ROUTES, SUPPLIERS, Decision, Rules
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.simulate import Trajectories, simulate
from stocktake_jax.models import FACTORS, HORIZON, Readings, Tape, World
from stocktake_jax.policies import Oracle, Runs, Shown
from stocktake_jax.policies.cost_table import CostTable, cost_table
from stocktake_jax.policies.surrogate import LOCK_WEEKS


@dataclass(frozen=True)
class Explained:
    """A decision of the oracle.

    Attributes:
        seed, replication, week: which one; week is that of the observation it was taken on, 0 .. 25.
        labels: the candidates on the menu, in words.
        costs: (candidate, future) what they would cost on the sampled futures from the next week to the end, dollars.
        chosen: the one that was taken.
        happened: what the weeks after the decision were billed in the end. The plan behind `costs` goes on by a base-stock
            rule, the oracle decides anew each week, so that it tends to pay less than it expected.
        stress: factor -> probability of stress that it held, and whether that was true.
        regimes: factor -> the true regime of the week.
        position: units on the shelf and at sea.
    """

    seed: int
    replication: int
    week: int
    labels: tuple[str, ...]
    costs: Float[np.ndarray, "candidate future"]
    chosen: int
    happened: float
    stress: dict[str, tuple[float, bool]]
    regimes: dict[str, str]
    position: int

    @property
    def expected(self) -> float:
        """Mean cost of the chosen candidate, dollars."""
        return float(self.costs[self.chosen].mean())


class _Watched:
    """An oracle whose table of one week is kept."""

    def __init__(self, oracle: Oracle, week: int) -> None:
        self.name, self.oracle, self.week = oracle.name, oracle, week
        self.table: CostTable | None = None
        self.position = 0

    def begin(self, runs: Runs) -> Any:
        return self.oracle.begin(runs)

    def decide(
        self, memory: Any, week: int, readings: Readings, shown: Shown
    ) -> tuple[Any, Decision, dict[str, np.ndarray]]:
        if week == self.week:
            self.table = cost_table(self.oracle, memory, week, readings, shown)
            self.position = int(np.asarray(shown.position)[0])
        return self.oracle.decide(memory, week, readings, shown)


def explain(
    seed: int,
    week: int,
    *,
    replication: int = 1,
    oracle: Oracle | None = None,
    world: World | None = None,
    rules: Rules = "paper",
) -> Explained:
    """Play the oracle on a seed, and take its decision of one week apart.

    Args:
        seed: of the tape.
        week: the week whose observation it decides on, 0 .. 25.
        replication: which of its runs.
        oracle: the fair one by default.
        world: the true one.
        rules: of the books.

    Raises:
        InputError: for another week.
    """
    if isinstance(week, bool) or not isinstance(week, int) or not 0 <= week < HORIZON:
        raise InputError(f"the oracle decides in weeks 0 to {HORIZON - 1}, not in {week!r}")
    if isinstance(replication, bool) or not isinstance(replication, int) or replication < 1:
        raise InputError(f"runs are numbered from 1, so there is no run {replication!r}")
    world = world or World.paper()
    watched = _Watched(oracle or Oracle(world), week)
    tape = Tape.published_batch([seed], world)
    runs = Runs(np.array([seed]), np.array([replication]))
    played = simulate(watched, tape, runs, np.zeros(1, np.int64), world, rules)
    table = watched.table
    assert table is not None
    on_menu = np.flatnonzero(np.asarray(table.valid))
    stress = {n: float(p) for n, p in table.belief.stress(watched.oracle.model).items()}
    states = {n: int(tape.states[n][0, week]) for n in FACTORS}
    return Explained(
        seed,
        replication,
        week,
        tuple(_in_words(table, int(slot)) for slot in on_menu),
        np.asarray(table.costs, np.float64)[on_menu],
        int(np.flatnonzero(on_menu == table.chosen)[0]),
        _rest(played, week),
        {n: (stress[n], bool(world.factors[n].stress_mask[states[n]])) for n in FACTORS},
        {n: world.factors[n].state_regimes[states[n]].label for n in FACTORS},
        watched.position,
    )


def _rest(played: Trajectories, week: int) -> float:
    """What the weeks after a decision were billed; entry w of a trajectory is week w + 1."""
    return float(sum(items[0, week:].sum() for items in played.bill.values()))


def _in_words(table: CostTable, slot: int) -> str:
    c = table.candidates
    qty = int(c.qty[slot])
    text = "no order"
    if qty:
        who, by = SUPPLIERS[int(c.supplier[slot])], ROUTES[int(c.route[slot])].capitalize()
        text = f"{qty} {'unit' if qty == 1 else 'units'}, {who} via {by}"
    extras = []
    if bool(c.sign[slot]):
        extras.append("sign a contract")
    if bool(c.lock[slot]):
        extras.append(f"lock freight for {LOCK_WEEKS} weeks")
    if int(c.air[slot]):
        extras.append(f"fly in {int(c.air[slot])}")
    if bool(c.inspect[slot]):
        extras.append("inspect")
    return " + ".join([text, *extras])
