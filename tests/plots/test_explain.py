"""The cost table behind a decision is the one that the decision was made from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.explain import explain
from stocktake_jax.evaluation.simulate import Trajectories, simulate
from stocktake_jax.models import FACTORS, Tape, World
from stocktake_jax.policies import Oracle, Runs


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


@pytest.mark.parametrize(("week", "replication"), [(26, 1), (-1, 1), (True, 1), (3, 0)])
def test_there_is_no_such_decision(week: Any, replication: int, oracle: Oracle) -> None:
    with pytest.raises(InputError, match="weeks 0 to 25" if replication else "no run 0"):
        explain(12, week, replication=replication, oracle=oracle)
