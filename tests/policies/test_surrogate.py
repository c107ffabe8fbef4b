"""The surrogate against 288 costs that the benchmark's authors' planner gives."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.exchange import read_rows, surrogate_row
from stocktake_jax.models import HORIZON, World
from stocktake_jax.policies.surrogate import Candidate, cost_of, outlook_of, situation, tables

CASES = Path(__file__).parent.parent / "data" / "surrogate.jsonl.gz"
SUPPLIERS, ROUTES = ("qualified", "spot", "backup"), ("suez", "cape")


def state_index(factor: Any, state: list[Any]) -> int:
    """[regime], [regime, age] or ["disruption", kind, age]; "persist" is the oldest age that is kept."""
    regime, *age = state[1:] if state[0] == "disruption" else state
    states = [i for i, s in enumerate(factor.states) if s.regime == regime]
    return states[-1] if age == ["persist"] else states[min(age[0] if age else 0, len(states) - 1)]


@jax.jit
def cost(t, inventory, units, due, live, states, candidate, weeks):
    desk = situation(t, inventory, units, due, live)
    outlook = outlook_of(t, desk, states, weeks)
    return cost_of(t, desk, candidate, jax.tree.map(lambda x: x[..., 0], outlook), weeks)


def costs(rows: list[dict[str, Any]], dtype: Any) -> list[float]:
    """What `cost_of` gives for every case."""
    world = World.paper()
    t = tables(world, dtype)
    out = []
    for row in rows:
        weeks = HORIZON - row["week"]
        states = np.zeros((HORIZON, len(world.factors), 1), int)
        for column, (name, factor) in enumerate(world.factors.items()):
            assert len(row["future"][name]) == weeks
            states[:weeks, column, 0] = [state_index(factor, s) for s in row["future"][name]]
        units, due = np.zeros(HORIZON, int), np.full(HORIZON, -1)
        for i, (qty, eta) in enumerate(row["pipeline"]):
            units[i], due[i] = qty, eta - row["week"] - 1
        live = np.array([s in row["live"] for s in SUPPLIERS])
        for case in row["cases"]:
            c = case["candidate"]
            candidate = Candidate(
                jnp.asarray(c["qty"]),
                jnp.asarray(ROUTES.index(c["route"]) if c["route"] else -1),
                jnp.asarray(SUPPLIERS.index(c["supplier"]) if c["supplier"] else -1),
                jnp.asarray(c["sign_qualified"]),
                jnp.asarray(c["lock_freight"]),
                jnp.asarray(c["air_qty"]),
                jnp.asarray(c["inspect"]),
            )
            inventory = jnp.asarray(row["inventory"], dtype)
            out.append(float(cost(t, inventory, units, due, live, states, candidate, jnp.asarray(weeks))))
    return out


def recorded(rows: list[dict[str, Any]]) -> list[float]:
    return [case["cost"] for row in rows for case in row["cases"]]


def test_all_cases_in_float32(rows: list[dict[str, Any]]) -> None:
    assert len(recorded(rows)) == 288
    assert costs(rows, jnp.float32) == pytest.approx(recorded(rows), abs=1e-2, rel=0)


def test_all_cases_in_float64(rows: list[dict[str, Any]]) -> None:
    with jax.enable_x64(True):
        assert costs(rows, jnp.float64) == pytest.approx(recorded(rows), abs=1e-6, rel=0)


def test_the_plain_surrogate_is_a_fair_judge(plain: Any, rows: list[dict[str, Any]]) -> None:
    """The plain Python that other tests rely on gives the reference costs, too."""
    for row in rows:
        for case in row["cases"]:
            mine = plain.cost(*plain_case(row), case["candidate"])
            assert mine == pytest.approx(case["cost"], abs=1e-9, rel=0)


def plain_case(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["week"], row["inventory"], row["pipeline"], set(row["live"]), row["future"]


def random_row(rng: random.Random) -> dict[str, Any]:
    """A situation like those of the reference, but anywhere: harsh futures, full pipelines, any contracts."""
    world, week = World.paper(), rng.randrange(26)
    pooled = {"short": ["disruption", "short"], "long": ["disruption", "long"]}

    def path(factor: Any) -> list[list[Any]]:
        states = [factor.states[rng.randrange(len(factor.states))] for _ in range(26 - week)]
        ageless = {r.name for r in factor.regimes if r.ages == 1}
        return [pooled.get(s.regime, [s.regime]) + ([] if s.regime in ageless else [s.age]) for s in states]

    return {
        "week": week,
        "inventory": rng.randrange(150),
        "pipeline": [[rng.randrange(1, 101), week + rng.randint(1, 4)] for _ in range(rng.randrange(5))],
        "live": rng.sample(SUPPLIERS, rng.randint(1, 3)),
        "future": {name: path(factor) for name, factor in world.factors.items()},
    }


def test_random_situations_against_plain_python(plain: Any) -> None:
    """More kinds of case than the reference has: backup, no qualified contract, harsh futures, several ships a week."""
    rng = random.Random(11)
    rows = []
    for _ in range(60):
        row = random_row(rng)
        menu = plain.menu(rng.uniform(14, 30), True, True, True, rng.randrange(90), set(row["live"]), True)
        row["cases"] = [
            {"candidate": c, "cost": plain.cost(*plain_case(row), c)} for c in rng.sample(menu, min(8, len(menu)))
        ]
        rows.append(row)
    assert {case["candidate"]["supplier"] for row in rows for case in row["cases"]} == {None, *SUPPLIERS}
    with jax.enable_x64(True):
        assert costs(rows, jnp.float64) == pytest.approx(recorded(rows), abs=1e-6, rel=0)


def test_cases_cover_what_the_surrogate_does(rows: list[dict[str, Any]]) -> None:
    candidates = [case["candidate"] for row in rows for case in row["cases"]]
    assert {c["route"] for c in candidates} == {None, "suez", "cape"}
    assert {c["supplier"] for c in candidates} >= {None, "qualified", "spot"}
    for name in ("sign_qualified", "lock_freight", "inspect"):
        assert {c[name] for c in candidates} == {False, True}
    assert {c["air_qty"] for c in candidates} == {0, 20}
    seen = {state[0] for row in rows for path in row["future"].values() for state in path}
    assert {"disruption", "defunct", "customs_hold", "congested", "spike", "out_of_control", "promo_spike"} <= seen


def test_rows_in_the_exchange_shape(rows: list[dict[str, Any]]) -> None:
    """The row reader computes the same, keeps all that it does not compute, and finds a wrong cost."""
    for where, row in list(read_rows(CASES))[:8]:
        computed, differences = surrogate_row(row, where)
        assert differences == []
        assert list(computed) == list(row)
        assert {k: v for k, v in computed.items() if k != "cases"} == {k: v for k, v in row.items() if k != "cases"}
        assert [c["candidate"] for c in computed["cases"]] == [c["candidate"] for c in row["cases"]]
        assert [c["cost"] for c in computed["cases"]] == pytest.approx(recorded([row]), abs=1e-6, rel=0)
    wrong = copy.deepcopy(rows[0])
    wrong["cases"][2]["cost"] += 1e-5
    assert [line.split(":")[0] for line in surrogate_row(wrong, "row 1")[1]] == ["row 1, cases[2] cost"]
    del wrong["cases"][2]["cost"]
    assert surrogate_row(wrong, "row 1")[1] == []


@pytest.mark.parametrize("changed", ["costs.stockout", "costs.in_transit", "freight.rate_normal"])
def test_another_world_costs_otherwise(rows: list[dict[str, Any]], changed: str) -> None:
    world = World.paper()
    dear = world.replace({changed: 2 * float(world.get(changed))})
    computed, differences = surrogate_row(rows[0], "row", dear)
    assert len(differences) == len(rows[0]["cases"])
    assert all(a["cost"] > b["cost"] for a, b in zip(computed["cases"], rows[0]["cases"], strict=True))


def change(row: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    for key in parents:
        row = row[key]
    row[last] = value


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("week", 26, "week is 26"),
        ("week", "2", "week is '2'"),
        ("inventory", -1, "inventory is -1"),
        ("inventory", 1.5, "inventory is 1.5"),
        ("live", ["spott"], "spott"),
        ("live", "spot", "a list"),
        ("pipeline", [[1]], "pipeline\\[0\\]"),
        ("pipeline", [[1, 2]], "week of arrival is 2"),
        ("pipeline", [[1, 20]], "week of arrival is 20"),
        ("pipeline", [[True, 4]], "units is True"),
        ("future/port", [], "0 states"),
        ("future/port/3", ["cleared"], "cleared"),
        ("future/port/3", "clear", "it must be"),
        ("future/port/3", ["congested", -1], "age is -1"),
        ("future", {}, "'canal'"),
        ("cases", {}, "a list"),
        ("cases/0/candidate", {}, "'qty'"),
        ("cases/0/candidate/qty", 101, "qty is 101"),
        ("cases/0/candidate/route", "panama", "panama"),
        ("cases/0/candidate/supplier", None, "None"),
        ("cases/0/candidate/air_qty", 21, "air_qty is 21"),
        ("cases/0/candidate/inspect", 1, "true or false"),
        ("cases/0", 5, "an object"),
    ],
)
def test_what_is_no_row(rows: list[dict[str, Any]], path: str, value: Any, says: str) -> None:
    row = copy.deepcopy(rows[0])
    change(row, path, value)
    with pytest.raises(InputError, match=says) as error:
        surrogate_row(row, "cases.jsonl, line 1")
    assert str(error.value).startswith("cases.jsonl, line 1") and "\n" not in str(error.value)
