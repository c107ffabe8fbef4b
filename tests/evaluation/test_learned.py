"""The oracle on learned worlds: what is run, paired and said; learning from growing numbers of tapes."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from stocktake_jax.cli import app
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.learned import (
    LearnedWorld,
    fresh_log_scores,
    learn_worlds,
    parameter_error,
    run_learned,
)
from stocktake_jax.inference.learning import Settings, posterior_worlds
from stocktake_jax.models import World

WORLD = World.paper()
LEARN = ("port.build_onset", "port.congest_persist")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("learned")


@pytest.fixture(scope="module")
def worlds(folder: Path) -> Any:
    calls: list[tuple[int, int]] = []
    settings = Settings(learn=LEARN, restarts=2)
    with jax.numpy_dtype_promotion("standard"):
        found = learn_worlds([8, 30], settings, out=folder, progress=lambda a, b: calls.append((a, b)))
    return found, calls


@pytest.mark.usefixtures("standard_promotion")
def test_worlds_are_learned_from_growing_numbers_of_tapes(worlds: Any, folder: Path) -> None:
    found, calls = worlds
    assert calls == [(1, 2), (2, 2)]
    few, many = found
    assert (few.tapes, many.tapes, many.label, many.method) == (8, 30, "map, 30 tapes", "map")
    assert [row["name"] for row in many.parameters] == list(LEARN)
    assert float(many.world.port.build_onset) == many.parameters[0]["estimate"] != few.parameters[0]["estimate"]
    # What `fit --out` writes is read back as what was learned.
    back = LearnedWorld.load(folder / "fits" / "30")
    assert (back.tapes, back.method, back.label) == (30, "map", "30")
    assert back.world.get("port.build_onset") == many.world.get("port.build_onset")
    np.testing.assert_array_equal(back.draws["port.build_onset"], many.draws["port.build_onset"])
    assert back.matrices == {} == many.matrices
    assert back.fixed == many.fixed and "port.wait_sd" in back.fixed
    again = learn_worlds([30], Settings(learn=LEARN, restarts=2), out=folder)[0]
    assert again.parameters == many.parameters
    with pytest.raises(InputError, match="each listed once"):
        learn_worlds([8, 8], Settings())
    with pytest.raises(InputError, match="cannot read the world"):
        LearnedWorld.load(folder)


def _certain(label: str, world: World, names: tuple[str, ...]) -> LearnedWorld:
    """A world that was learned without a doubt: its posterior is one point."""
    rows = [{"name": n, "estimate": float(world.get(n)), "standard_error": 0.0} for n in names]
    draws = {n: np.full((1, 3), float(world.get(n))) for n in names}
    return LearnedWorld(label, 7, "map", world, draws, rows, {}, {})


WRONG = WORLD.replace({"demand.mean_normal": 26.0, "port.build_onset": 0.1})
NAMES = ("demand.mean_normal", "port.build_onset")


@pytest.fixture(scope="module")
def study(folder: Path) -> Any:
    worlds = [_certain("wrong", WRONG, NAMES), _certain("right", WORLD, NAMES)]
    # EM's free rows happen to be those of the wrong world's port, beside the true emissions.
    free = {"port": WRONG.port.transition_matrix()}
    worlds[1] = dataclasses.replace(worlds[1], matrices=free)
    sizes: Any = {"seeds": (24, 12), "replications": 2, "futures": 12, "out": folder / "study"}
    found = run_learned(worlds, draws=1, fresh=50, **sizes)
    found.save(folder / "study")
    return found


def test_a_posterior_without_doubt_is_its_plug_in_world(study: Any) -> None:
    truth, wrong, right, free, averaged_wrong, averaged_right = study.study.costs
    assert np.any(free != truth) and np.any(free != wrong)
    np.testing.assert_array_equal(right, truth)
    np.testing.assert_array_equal(averaged_right, truth)
    np.testing.assert_array_equal(averaged_wrong, wrong)
    assert np.any(wrong != truth)


def test_rows_say_what_was_learned_and_what_it_cost(study: Any, folder: Path) -> None:
    rows = {(r["label"], r["kind"]): r for r in study.rows()}
    assert set(rows) == {
        ("wrong, plug-in", "plug-in"), ("wrong, averaged", "averaged"),
        ("right, plug-in", "plug-in"), ("right, free rows", "free rows"), ("right, averaged", "averaged"),
    }  # fmt: skip
    wrong = rows["wrong, plug-in", "plug-in"]
    assert wrong["difference"] > 0 and wrong["tapes"] == 7 and wrong["converged"]
    assert wrong["parameter_error"]["transitions"] == pytest.approx(0.04)
    assert wrong["parameter_error"]["emissions"] == pytest.approx(0.3)
    assert wrong["fresh_log_score"]["demand"] < -0.1 and wrong["fresh_log_score"]["quality"] == 0.0
    free = rows["right, free rows", "free rows"]["fresh_log_score"]
    assert free["port"] == pytest.approx(wrong["fresh_log_score"]["port"], abs=1e-6) and free["demand"] == 0.0
    assert free["port"] < 0
    averaged = rows["wrong, averaged", "averaged"]["fresh_log_score"]
    assert averaged["demand"] == pytest.approx(wrong["fresh_log_score"]["demand"], abs=1e-5)
    document = json.loads((folder / "study" / "learned.json").read_text())
    assert document == json.loads(json.dumps(study.document()))
    assert document["parameters"][0] | {"truth": 20.0} == document["parameters"][0]
    with (folder / "study" / "learned.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [r["label"] for r in table] == [r["label"] for r in study.rows()]
    assert float(table[0]["worst"]) == wrong["worst"]


def test_what_is_refused(folder: Path) -> None:
    one = _certain("one", WORLD, NAMES)
    with pytest.raises(InputError, match="called 'one'"):
        run_learned([one, one])
    with pytest.raises(InputError, match="draws must be at least 0"):
        run_learned([one], draws=-1)
    with pytest.raises(InputError, match="at least 2 tapes"):
        run_learned([one], fresh=1)


def test_averaging_hedges() -> None:
    models = {
        "short": WORLD.replace({"port.congest_persist": 0.4}),
        "long": WORLD.replace({"port.congest_persist": 0.99}),
    }
    draws = {"port.congest_persist": np.array([[0.4, 0.99]])}
    models["both"] = posterior_worlds(WORLD, draws, 8, key=jax.random.key(2))
    assert len(np.unique(models["both"].port.congest_persist)) == 2
    got = fresh_log_scores(models, 50, key=jax.random.key(1), chunk=50)
    worst = min(got["short"]["port"][0], got["long"]["port"][0])
    assert worst < 0 and got["both"]["port"][0] > worst
    assert got["both"]["quality"][0] == pytest.approx(0.0, abs=1e-5) and got["both"]["port"][1] > 0


def test_errors_of_parameters() -> None:
    rows = [
        {"name": "port.build_onset", "estimate": 0.09, "truth": 0.06},
        {"name": "port.congest_onset", "estimate": 0.26, "truth": 0.3},
        {"name": "port.wait_sd", "estimate": 2.2, "truth": 2.0},
        {"name": "supplier.slip_reliable", "estimate": 0.1, "truth": 0.0},
    ]
    found = parameter_error(rows, WORLD)
    assert found["transitions"] == pytest.approx(np.sqrt((0.03**2 + 0.04**2) / 2))
    assert found["emissions"] == pytest.approx(0.1)
    assert np.isnan(parameter_error(rows[:1], WORLD)["emissions"])


@pytest.mark.usefixtures("standard_promotion")
def test_the_command_learns_and_refuses(folder: Path) -> None:
    for arguments, message in (
        (("--tapes", "8", "--fits", "x"), "--tapes does nothing beside --fits"),
        (("--fits", "x", "--method", "map"), "--method does nothing beside --fits"),
        (("--fits", "x", "--world", "x.toml"), "--world does nothing beside --fits"),
        (("--tapes", "8,x"), "--tapes must be a number or a list"),
        (("--method", "gibbs"), "--method must be map"),
        (("--learn", "much"), "--learn must be transitions"),
        (("--figures",), "give --out DIR"),
    ):
        result = CliRunner().invoke(app, ["study", "learned", *arguments])
        assert isinstance(result.exception, InputError) and message in str(result.exception), arguments
