"""Batches of episodes against single ones: the floor, the oracle, and policies of a user's own."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from stocktake_jax.desk import ACTIONS, ROUTES, SUPPLIERS, Decision, Episode
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.catalog import published_seeds
from stocktake_jax.evaluation.exchange import floor_rows
from stocktake_jax.evaluation.simulate import Trajectories, play, simulate
from stocktake_jax.models import FACTORS, HORIZON, Tape, World
from stocktake_jax.policies import BaseStock, BatchPolicy, Oracle, Policy, Runs, Shown

DATA = Path(__file__).parent.parent / "data"
FUTURES = 5
"""Futures in every test that runs the oracle: with equal sizes its program is compiled once."""


def batch(policy: BatchPolicy, seeds: list[int], world: World | None = None, rules: Any = "paper") -> Trajectories:
    """One episode per seed."""
    runs = Runs(np.array(seeds), np.ones(len(seeds), np.int64))
    return simulate(policy, Tape.published_batch(seeds, world), runs, np.arange(len(seeds)), world, rules)


# ---- the floor ------------------------------------------------------------------------------------------------------


def test_floors_of_fifty_seeds_week_by_week() -> None:
    with gzip.open(DATA / "floor.jsonl.gz", "rt", encoding="utf-8") as lines:
        published = {row["seed"]: row for row in map(json.loads, lines)}
    assert len(published) == 50
    for row in floor_rows(published_seeds()):
        wanted = published[row["seed"]]
        assert list(row) == list(wanted)
        assert round(row["total"], 2) == round(wanted["total"], 2)
        for mine, theirs in zip(row["weeks"], wanted["weeks"], strict=True):
            assert list(mine) == list(theirs) and list(mine["breakdown"]) == list(theirs["breakdown"])
            assert mine.pop("breakdown") == pytest.approx(theirs.pop("breakdown"), abs=1e-9)
            assert mine == pytest.approx(theirs, abs=1e-9)


def test_the_floor_of_another_world() -> None:
    """The level follows the world's lead time, the bills its costs, and a chunk of one seed is no different."""
    world = World.paper().replace({"logistics.lead_suez": 2, "costs.stockout": 30.0})
    rows = list(floor_rows([4, 2, 7], world))
    assert rows == [*floor_rows([4], world), *floor_rows([2], world), *floor_rows([7], world)]
    assert [r["total"] for r in rows] != [r["total"] for r in floor_rows([4, 2, 7])]
    costs = play(BaseStock(world), [4], world)
    assert costs[4][0] == pytest.approx(rows[0]["total"], abs=1e-6)


# ---- policies of a user's own ---------------------------------------------------------------------------------------


class SpotTwenty:
    """Twenty units from spot every other week while it lives, else nothing; a batch policy and one for the tools."""

    name = "spot20"

    def __init__(self) -> None:
        self.read: list[dict[str, np.ndarray]] = []
        self.replications: list[int] = []

    def begin(self, runs: Runs) -> int:
        return 0

    def decide(self, memory: int, week: int, readings: Any, shown: Shown) -> Any:
        assert memory == week
        self.read.append({name: np.asarray(v) for name, v in readings["supplier"].items()})
        live = np.asarray(shown.live)[:, SUPPLIERS.index("spot")]
        decision = Decision.make(
            qty=np.where(live & (week % 2 == 0), 20, 0), route=0, supplier=SUPPLIERS.index("spot"), audit=week == 3
        )
        return memory + 1, decision, {"live": live}

    def reset(self, replication: int) -> None:
        self.replications.append(replication)

    def act(self, observation: Mapping[str, Any], desk: Episode) -> None:
        live = "spot" not in observation["contract_open"]
        if observation["week"] == 3:
            desk.buy_audit()
        order = (20, "suez", "spot") if live and observation["week"] % 2 == 0 else (0, None, None)
        desk.place_order("Twenty, as ever.", *order)


def test_a_policy_of_ones_own_in_both_harnesses() -> None:
    mine = SpotTwenty()
    assert isinstance(mine, Policy) and isinstance(mine, BatchPolicy)
    seeds = [0, 28, 57]
    played = batch(mine, seeds)
    costs = play(mine, seeds, replications=2)
    assert mine.replications == [1, 2] * 3
    for i, seed in enumerate(seeds):
        assert costs[seed] == pytest.approx([played.cost[i]] * 2, abs=1e-6)
    assert (played.bill["audit"][:, 3] == 25).all() and played.bill["audit"].sum() == 75
    assert played.notes["live"].shape == (3, HORIZON)
    even = np.arange(HORIZON) % 2 == 0
    assert (played.decision["qty"] == np.where(played.notes["live"] & even, 20, 0)).all()


def test_fill_is_read_only_after_a_spot_order() -> None:
    """What a batch policy reads, against what an episode of the same orders shows."""
    mine, seeds = SpotTwenty(), [0, 57]
    batch(mine, seeds)
    assert len(mine.read) == HORIZON
    for i, seed in enumerate(seeds):
        episode = Episode(seed)
        while not episode.done:
            seen = episode.observe()
            fill = mine.read[seen["week"]]["realized_fill"][i]
            assert ("realized_fill" in seen) == (not np.isnan(fill))
            assert np.isnan(fill) or np.float32(seen["realized_fill"]) == fill
            assert (mine.read[seen["week"]]["realized_lead_slip"][i]) == np.float32(
                seen["suppliers"][1]["realized_lead_slip"]
            )
            mine.act(seen, episode)


# ---- the oracle -----------------------------------------------------------------------------------------------------


def decisions(played: Trajectories, i: int) -> list[dict[str, Any]]:
    """A batch's decisions in the words of an episode's result."""
    out = []
    for week in range(HORIZON):
        d = {name: int(value[i, week]) for name, value in played.decision.items()}
        route, supplier = (ROUTES[d["route"]], SUPPLIERS[d["supplier"]]) if d["qty"] else (None, None)
        contract = None
        if d["action"]:
            contract = {
                "action": ACTIONS[d["action"] - 1],
                "supplier": SUPPLIERS[d["contract_supplier"]],
                "terms": None,
            }
        levers = {name: d[name] for name in ("lock_weeks", "air", "inspect", "briefing", "audit") if d[name]}
        order = {"qty": d["qty"], "route": route, "supplier": supplier}
        out.append({"order": order, "contract": contract, "levers": levers})
    return out


@pytest.mark.parametrize("seed", [1, 28])
def test_the_oracle_decides_the_same_through_the_tools(seed: int) -> None:
    """Week by week: from an agent's observations as from the arrays of a batch."""
    played = batch(Oracle(futures=FUTURES), [seed])
    oracle, episode = Oracle(futures=FUTURES, seed=seed), Episode(seed)
    oracle.reset(1)
    while not episode.done:
        oracle.act(episode.observe(), episode)
    weeks = episode.result()["weeks"]
    assert [{k: week[k] for k in ("order", "contract", "levers")} for week in weeks] == decisions(played, 0)
    assert episode.cost == pytest.approx(played.cost[0], abs=1e-6)
    assert len({week["order"]["qty"] for week in weeks}) > 5
    assert {"lock_weeks", "air"} & {lever for week in weeks for lever in week["levers"]}


def test_replications_differ_and_repeat() -> None:
    seeds, oracle = [1, 1], Oracle(futures=FUTURES)
    tapes, tape_of = Tape.published_batch(seeds), np.arange(2)
    first = simulate(oracle, tapes, Runs(np.array([1, 1]), np.array([1, 2])), tape_of)
    again = simulate(oracle, tapes, Runs(np.array([1, 1]), np.array([2, 1])), tape_of)
    assert first.cost[0] != first.cost[1]
    assert first.cost.tolist() == again.cost.tolist()[::-1]


def test_an_oracle_that_was_not_reset() -> None:
    with pytest.raises(InputError, match="reset"):
        Oracle(futures=FUTURES).act({}, Episode(1))


def test_twin_tapes_get_the_same_decisions() -> None:
    """Tapes that emit the same and differ in what is hidden: nothing that is decided may tell them apart."""
    world, seed = World.paper(), 1
    tape = Tape.published(seed)
    rng = np.random.default_rng(7)
    hidden = {name: states.copy() for name, states in tape.states.items()}

    def shuffle(name: str, regimes: set[str]) -> None:
        """Replace states by others of the same class, which the books and the readings do not tell apart."""
        group = [i for i, s in enumerate(world.factors[name].states) if s.regime in regimes]
        mask = np.isin(hidden[name], group)
        hidden[name][mask] = rng.choice(group, mask.sum())

    shuffle("demand", {s.regime for s in world.demand.states})
    shuffle("freight", {s.regime for s in world.freight.states})
    shuffle("quality", {s.regime for s in world.quality.states})
    shuffle("port", {"congested", "customs_hold"})
    shuffle("port", {"clear", "building"})
    shuffle("supplier", {"reliable", "wobbling", "degraded"})
    twin = Tape({n: s.astype(np.int32) for n, s in hidden.items()}, tape.ages, tape.values)
    for name in FACTORS:
        assert (twin.states[name] == tape.states[name]).all() == (name == "canal"), name
    both = jax.tree.map(lambda *x: np.stack(x), tape, twin)
    runs = Runs(np.array([seed, seed]), np.array([1, 1]))
    for policy in (Oracle(futures=FUTURES), BaseStock(), SpotTwenty()):
        played = simulate(policy, both, runs, np.arange(2))
        for part in (played.decision, played.bill, played.books, played.notes):
            for name, value in part.items():
                assert value[0].tobytes() == value[1].tobytes(), (policy.name, name)
