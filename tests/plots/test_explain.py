"""The cost table behind a decision is the one that the decision was made from."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from stocktake_jax.desk import Episode
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.explain import explain
from stocktake_jax.evaluation.simulate import Trajectories, simulate
from stocktake_jax.models import FACTORS, Tape, World
from stocktake_jax.policies import Oracle, Runs
from stocktake_jax.policies.cost_table import _table_jit
from stocktake_jax.policies.oracle import read
from stocktake_jax.policies.posterior import laws
from stocktake_jax.policies.rollout import assemble


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    """An oracle that looks at few futures."""
    return Oracle(futures=16)


@pytest.fixture(scope="module")
def played(oracle: Oracle, world: World) -> Trajectories:
    return simulate(
        oracle, Tape.published_batch([12], world), Runs(np.array([12]), np.array([1])), np.zeros(1, np.int64)
    )


@pytest.mark.parametrize("week", [0, 5, 25])
def test_explanation_is_of_the_decision_that_was_taken(
    week: int, oracle: Oracle, played: Trajectories, world: World
) -> None:
    e = explain(12, week, oracle=oracle)
    d = {name: int(x[0, week]) for name, x in played.decision.items()}
    assert e.costs.shape == (len(e.labels), 16)
    assert e.expected == pytest.approx(float(played.notes["cost"][0, week]), rel=1e-5)
    assert e.expected == e.costs.mean(axis=1).min()
    label = e.labels[e.chosen]
    assert label.startswith(f"{d['qty']} unit" if d["qty"] else "no order")
    assert ("inspect" in label, "sign a contract" in label) == (bool(d["inspect"]), bool(d["action"]))
    assert ("fly in" in label, "lock freight" in label) == (bool(d["air"]), bool(d["lock_weeks"]))
    assert e.happened == pytest.approx(sum(x[0, week:].sum() for x in played.bill.values()))
    tape = Tape.published(12, world)
    assert e.regimes == {n: r[week] for n, r in tape.regimes(world).items()}
    for n in FACTORS:
        factor = world.factors[n]
        mask = [any(r.stress for r in factor.regimes if r.label == label) for label in factor.labels]
        assert e.stress[n][0] == pytest.approx(float(played.notes[f"belief.{n}"][0, week][mask].sum()), abs=1e-5)
        assert e.stress[n][1] == bool(factor.stress_mask[tape.states[n][week]])
    if week:
        held = played.books["inventory"][0, week - 1] + played.books["on_order"][0, week - 1]
        assert e.position == held


def test_an_averaging_oracle_says_what_it_believes_of_states(world: World) -> None:
    # Of five draws and a state, draws are summed out. Shapes tell, and need no compilation.
    posterior = jax.tree.map(lambda x: np.stack([x] * 5), world)
    start, moves = laws(posterior, "uniform")
    p = jax.eval_shape(assemble, posterior, start, moves, moves)
    readings, shown = jax.tree.map(lambda x: x[0], read(Episode(seed=12).observe()))
    predicted = {n: b.astype(np.float32) for n, b in start.items()}
    table = jax.eval_shape(_table_jit(16, "paper"), p, predicted, readings, shown, np.zeros(2, np.uint32), np.int32(0))
    for n, belief in table.belief.posteriors.items():
        assert start[n].shape == (5 * len(world.factors[n].states),)
        assert belief.shape == (len(world.factors[n].states),)


@pytest.mark.parametrize(("week", "replication"), [(26, 1), (-1, 1), (True, 1), (3, 0)])
def test_there_is_no_such_decision(week: Any, replication: int, oracle: Oracle) -> None:
    with pytest.raises(InputError, match="weeks 0 to 25" if replication else "no run 0"):
        explain(12, week, replication=replication, oracle=oracle)
