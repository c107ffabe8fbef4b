"""Planted faults come out as planted; the agents that see hidden states are marked wherever they appear."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from stocktake_jax.agents.graders import LexicalGrader
from stocktake_jax.agents.play import read_folder
from stocktake_jax.agents.scripted import SCRIPTED, Hunch, Scripted, play_scripted, together, voice
from stocktake_jax.desk import Decision, Episode
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.beliefs import Truth, pooled, split_rationale
from stocktake_jax.evaluation.catalog import published_seeds
from stocktake_jax.evaluation.scoring import ScoreBoard, labelled, oracle_ledgers, score_runs
from stocktake_jax.models import FACTORS, HORIZON, Tape, World
from stocktake_jax.policies import Oracle, Runs

FEW = (24, 157, 0, 1)
PRIVILEGED = {"freezer", "flailer", "dawdler"}


def board_of(folder: Path, seeds: tuple[int, ...], futures: int, oracle_runs: int) -> ScoreBoard:
    for name, agent in SCRIPTED.items():
        done = play_scripted(agent(futures=futures), seeds, journals=folder)
        assert [f.seed for f in done] == list(seeds) and not any(math.isnan(f.cost) for f in done), name
    runs = labelled(read_folder(folder), LexicalGrader(), LexicalGrader.name)
    return score_runs(runs, oracle=oracle_ledgers(seeds, oracle_runs), resamples=200)


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> ScoreBoard:
    with jax.numpy_dtype_promotion("strict"):
        return board_of(tmp_path_factory.mktemp("journals"), FEW, 24, 1)


def faults_are_as_planted(board: ScoreBoard) -> None:
    def value(agent: str, metric: str) -> float:
        return board.rate(agent, metric).value

    def loss(agent: str, part: str) -> float:
        return board.rate(agent, f"loss.{part}").value

    # Perception: whoever sees exactly misses nothing at no lag and names nothing else; the blind one names nothing.
    for agent in PRIVILEGED:
        assert value(agent, "missed") == value(agent, "mean_lag") == value(agent, "brier") == 0
        assert value(agent, "precision") == value(agent, "diagnosed") == 1
        assert loss(agent, "perception.total") == 0
    assert value("blind", "missed") == 1 and value("blind", "names_per_week") == 0
    assert value("voice", "missed") < 0.25 and value("voice", "precision") > 0.8
    assert value("voice", "brier") < value("blind", "brier") / 2

    # The blind one's loss is one of perception; those of the others are ones of control, on the right side.
    assert loss("blind", "perception.total") > 0.9 * loss("blind", "all.total") > 0
    assert loss("blind", "control.total") == 0 and loss("blind", "perception.under") > 0
    assert loss("freezer", "control.under") > 0 > loss("freezer", "control.over")
    assert loss("flailer", "control.over") > 0 > loss("flailer", "control.under")
    assert loss("flailer", "all.total") > 1000
    assert loss("dawdler", "control.under") > abs(loss("dawdler", "control.over"))
    assert loss("dawdler", "control.total") > 0.9 * loss("dawdler", "all.total") > 0
    assert abs(loss("voice", "all.total")) < 0.25 * loss("blind", "all.total")

    # What they do is what they were told to do.
    assert value("freezer", "no_order_blocked") == 1 and value("freezer", "no_order_open") < 0.6
    assert value("flailer", "air_called") == value("flailer", "inspect_called") == value("flailer", "cape_called") == 1
    assert value("flailer", "air_spend") > 2 * value("flailer", "oracle.air_spend")
    assert value("blind", "air_spend") == 0
    assert value("dawdler", "air_called") <= value("dawdler", "oracle.air_called")

    # The hunch is wrong about the port and right about the rest.
    assert value("hunch", "missed.port") == 1
    others = [f for f in FACTORS if f != "port"]
    missed = pooled(board.rate("hunch", f"missed.{f}") for f in others)
    assert missed == pooled(board.rate("voice", f"missed.{f}") for f in others)
    assert value("hunch", "missed") > value("voice", "missed")


def test_planted_faults_come_out_on_a_few_seeds(board: ScoreBoard) -> None:
    faults_are_as_planted(board)


@pytest.mark.slow
def test_planted_faults_come_out_on_all_seeds(tmp_path: Path) -> None:
    whole = board_of(tmp_path, published_seeds(), 100, 2)
    faults_are_as_planted(whole)
    assert whole.rate("blind", "missed") == (266, 266)
    assert whole.rate("freezer", "knowing_doing").denominator == 639
    assert whole.rate("voice", "skill").value > 0.9 and whole.rate("flailer", "skill").value < -1


def test_the_privileged_are_marked_in_every_table(board: ScoreBoard) -> None:
    assert board.privileged == PRIVILEGED == {name for name, a in SCRIPTED.items() if a.privileged}
    document = board.to_json()
    assert {a for a in document if document[a]["privileged"]["all"]["value"] == 1} == PRIVILEGED
    for line in board.text().splitlines():
        for agent in PRIVILEGED:
            if line.startswith((agent, f"Costs of {agent}")):
                assert "(sees hidden states)" in line


def test_they_are_refused_without_tapes_and_the_others_are_given_none() -> None:
    runs = Runs(np.array([1]), np.array([1]))
    tapes = Tape.published_batch([1])
    for name, agent in SCRIPTED.items():
        made = agent(futures=2)
        if name in PRIVILEGED:
            with pytest.raises(InputError, match="sees hidden states"):
                made.begin(runs, None)
        else:
            assert made.begin(runs, tapes).tapes is None


def test_the_voice_decides_as_the_oracle(tmp_path: Path) -> None:
    oracle = Oracle(futures=24)
    (done,) = play_scripted(SCRIPTED["voice"](futures=24), [24])
    from stocktake_jax.evaluation.simulate import simulate

    tapes = Tape.published_batch([24])
    same = simulate(oracle, tapes, Runs(np.array([24]), np.array([1])), np.array([0]))
    assert done.cost == pytest.approx(same.cost[0], rel=0.1)


def test_rationales_say_what_is_believed_and_are_graded_so(board: ScoreBoard) -> None:
    world, decision = World.paper(), Decision.make(qty=20)
    rng = np.random.default_rng(0)
    for _ in range(200):
        states = {n: int(rng.integers(len(f.states))) for n, f in world.factors.items()}
        belief = {n: np.eye(len(f.states))[states[n]] for n, f in world.factors.items()}
        stressed = {n for n, f in world.factors.items() if f.stress_mask[states[n]]}
        assert LexicalGrader().grade(voice(belief, world, decision, 3)) == stressed
    assert Truth.of(Tape.published(1), world).stressed.shape == (HORIZON + 1, len(FACTORS))


def test_probabilities_are_recorded_with_the_rationales(tmp_path: Path) -> None:
    play_scripted(SCRIPTED["blind"](futures=2), [1], journals=tmp_path)
    (run,) = read_folder(tmp_path)
    assert run.ledger is not None
    stated = [split_rationale(text)[1] for text in run.ledger.rationales]
    assert stated[0] == dict.fromkeys(FACTORS, 0.0)
    assert stated[10] is not None and 0 < stated[10]["port"] < 0.5


def test_finished_episodes_are_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = SCRIPTED["blind"](futures=2)
    first = play_scripted(agent, [1, 3], journals=tmp_path)

    def must_not(*_: Any) -> None:
        raise AssertionError("played again")

    monkeypatch.setattr(Scripted, "decide", must_not)
    assert [f.cost for f in play_scripted(agent, [1, 3], journals=tmp_path)] == [f.cost for f in first]


def test_a_hunch_can_be_about_any_factor() -> None:
    hunch = Hunch(futures=2, factor="demand", regime="seasonal_lift")
    readings, shown = together([Episode(1).observe()])
    batch = hunch.begin(Runs(np.array([1]), np.array([1])), None)
    _, (rationale,), (probabilities,) = hunch.decide(batch, 0, readings, shown)
    assert "a seasonal lift is on" in rationale and probabilities["demand"] == 1
    with pytest.raises(InputError, match="factor must be one of"):
        Hunch(factor="weather")
    with pytest.raises(InputError, match="futures"):
        Hunch(futures=0)
