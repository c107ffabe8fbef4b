"""Planted faults come out as planted; the agents that see hidden states are marked wherever they appear."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stocktake_jax.agents.graders import LexicalGrader
from stocktake_jax.agents.play import read_folder
from stocktake_jax.agents.scripted import SCRIPTED, Hunch, Scripted, play_scripted, together, voice
from stocktake_jax.desk import Decision, Episode
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.beliefs import Truth, pooled, split_rationale
from stocktake_jax.evaluation.catalog import published_seeds
from stocktake_jax.evaluation.ledger import Ledger, of_trajectories
from stocktake_jax.evaluation.scoring import Run, ScoreBoard, labelled, oracle_ledgers, score_runs
from stocktake_jax.evaluation.simulate import simulate
from stocktake_jax.models import FACTORS, HORIZON, Tape, World
from stocktake_jax.policies import Oracle, Runs
from tests.agents.conftest import FEW, FUTURES
from tests.conftest import unchecked

PRIVILEGED = {"freezer", "flailer", "dawdler"}


def play_all(folder: Path, seeds: tuple[int, ...], futures: int) -> None:
    for number, (name, agent) in enumerate(SCRIPTED.items()):
        with unchecked() if number else contextlib.nullcontext():  # the first has had all that they share checked
            done = play_scripted(agent(futures=futures), seeds, journals=folder)
        assert [f.seed for f in done] == list(seeds) and not any(math.isnan(f.cost) for f in done), name


def board_of(runs: Sequence[Run], oracle: Mapping[int, Sequence[Ledger]]) -> ScoreBoard:
    with unchecked():  # the tests of scoring check its types
        return score_runs(labelled(runs, LexicalGrader(), LexicalGrader.name), oracle=oracle, resamples=20)


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("journals")
    play_all(folder, FEW, FUTURES)
    return folder


@pytest.fixture(scope="module")
def runs(journals: Path) -> tuple[Run, ...]:
    with unchecked():
        return read_folder(journals)


@pytest.fixture(scope="module")
def oracle() -> dict[int, tuple[Ledger, ...]]:
    runs = Runs(np.array(FEW), np.ones(len(FEW), np.int64))
    played = simulate(Oracle(futures=FUTURES), Tape.published_batch(FEW), runs, np.arange(len(FEW)))
    return {seed: (ledger,) for seed, ledger in zip(FEW, of_trajectories(played), strict=True)}


@pytest.fixture(scope="module")
def board(runs: tuple[Run, ...], oracle: dict[int, tuple[Ledger, ...]]) -> ScoreBoard:
    return board_of(runs, oracle)


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
    assert value("dawdler", "air_called") < value("dawdler", "oracle.air_called")

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
    play_all(tmp_path, published_seeds(), 100)
    whole = board_of(read_folder(tmp_path), oracle_ledgers(published_seeds(), 2))
    faults_are_as_planted(whole)
    assert whole.rate("blind", "missed") == (266, 266)
    assert whole.rate("freezer", "knowing_doing").denominator == 639
    assert whole.rate("voice", "skill").value > 0.9 and whole.rate("flailer", "skill").value < -1


def test_the_privileged_are_marked_in_every_table(board: ScoreBoard, checks: Callable[[bool], None]) -> None:
    checks(False)  # thousands of rates; the tests of scoring check their types
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


def test_the_voice_decides_as_the_oracle(runs: tuple[Run, ...], oracle: dict[int, tuple[Ledger, ...]]) -> None:
    found = {run.seed: run.cost for run in runs if run.agent == "voice"}
    assert found == {seed: pytest.approx(ledger.cost, abs=1e-6) for seed, (ledger,) in oracle.items()}


def test_rationales_say_what_is_believed_and_are_graded_so(board: ScoreBoard) -> None:
    world, decision = World.paper(), Decision.make(qty=20)
    rng = np.random.default_rng(0)
    for _ in range(200):
        states = {n: int(rng.integers(len(f.states))) for n, f in world.factors.items()}
        belief = {n: np.eye(len(f.states))[states[n]] for n, f in world.factors.items()}
        stressed = {n for n, f in world.factors.items() if f.stress_mask[states[n]]}
        assert LexicalGrader().grade(voice(belief, world, decision, 3)) == stressed
    assert Truth.of(Tape.published(1), world).stressed.shape == (HORIZON + 1, len(FACTORS))


def test_probabilities_are_recorded_with_the_rationales(runs: tuple[Run, ...]) -> None:
    run = next(run for run in runs if run.agent == "blind" and run.seed == 1)
    assert run.ledger is not None
    stated = [split_rationale(text)[1] for text in run.ledger.rationales]
    assert stated[0] == dict.fromkeys(FACTORS, 0.0)
    assert stated[10] is not None and 0 < stated[10]["port"] < 0.5


def test_finished_episodes_are_not_played_again(
    journals: Path, runs: tuple[Run, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def must_not(*_: Any) -> None:
        raise AssertionError("played again")

    monkeypatch.setattr(Scripted, "decide", must_not)
    again = play_scripted(SCRIPTED["blind"](futures=FUTURES), FEW, journals=journals)
    assert {f.seed: f.cost for f in again} == {r.seed: r.cost for r in runs if r.agent == "blind"}


def test_a_hunch_can_be_about_any_factor() -> None:
    hunch = Hunch(futures=FUTURES, factor="demand", regime="seasonal_lift")
    readings, shown = together([Episode(seed).observe() for seed in FEW])
    batch = hunch.begin(Runs(np.array(FEW), np.ones(len(FEW), np.int64)), None)
    _, rationales, probabilities = hunch.decide(batch, 0, readings, shown)
    assert all("a seasonal lift is on" in text for text in rationales)
    assert [p["demand"] for p in probabilities] == [1] * len(FEW)
    with pytest.raises(InputError, match="factor must be one of"):
        Hunch(factor="weather")
    with pytest.raises(InputError, match="futures"):
        Hunch(futures=0)


def test_what_is_no_scripted_agent_is_refused() -> None:
    for wrong in ("voice", SCRIPTED["voice"], None):
        with pytest.raises(InputError, match="a scripted agent is wanted"):
            play_scripted(wrong, [1])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="rules"):
        play_scripted(SCRIPTED["voice"](futures=2), [1], rules="lax")
