"""The commands at their smallest size: files, JSON, exit codes."""

from __future__ import annotations

import csv
import importlib
import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from stocktake_jax import cli_fit
from stocktake_jax.cli_shared import Interrupted
from stocktake_jax.errors import InputError
from stocktake_jax.models import World

pytestmark = pytest.mark.usefixtures("standard_promotion")

SMALL = (
    "fit",
    "--tapes",
    "12",
    "--learn",
    "port.build_onset,port.congest_persist",
    "--restarts",
    "2",
    "--workers",
    "1",
)


@pytest.fixture
def run():
    app = typer.Typer(pretty_exceptions_enable=False)
    for command in (cli_fit.fit, cli_fit.coverage):
        app.command()(command)

    def call(*arguments):
        return CliRunner().invoke(app, [str(a) for a in arguments])

    return call


def test_fit_writes_a_world_and_prints_json(run, tmp_path):
    result = run(*SMALL, "--out", tmp_path, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [row["name"] for row in document["parameters"]] == ["port.build_onset", "port.congest_persist"]
    world = World.load(tmp_path / "world.toml")
    assert float(world.port.build_onset) == document["parameters"][0]["estimate"]
    again = run(*SMALL, "--out", tmp_path)
    assert again.exit_code == 0
    assert "intervals hold the truth" in again.stdout
    assert "Kept at the base world's value (was not asked for)" in again.stdout
    assert "nobody sees" not in again.stdout
    other = run(*SMALL, "--out", tmp_path, "--prior", "port.build_onset=Beta(2, 20)")
    assert "holds a fit with other priors" in str(other.exception)


def test_a_fit_that_did_not_converge_says_so_and_exits_with_one(run):
    sizes = ("--tapes", "4", "--factors", "port", "--learn", "transitions", "--method", "em", "--iterations", "2")
    result = run("fit", *sizes, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["converged"] is False
    assert "port did not converge: " in result.stderr


def test_own_readings_are_fitted_and_what_was_not_used_is_said(run, tmp_path):
    file = tmp_path / "mine.csv"
    rows = [f"{t},{w},{t}" for t, w in enumerate((1, 3, 0, 14, 17, 16, 2, 1, 0, 4, 2, 1))]
    file.write_text("\n".join(["week,days,note", *rows]) + "\n", encoding="utf-8")
    learn = ("--learn", "port.build_onset", "--restarts", "1")
    result = run("fit", "--from", file, "--column", "port.berth_wait=days", "--factors", "port", *learn, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert any("'note'" in note for note in document["notes"])
    assert "truth" not in document["parameters"][0]


FEW = ("--repeats", "1", "--tapes", "2", "--restarts", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "--method", "gibbs"), "--method must be map, nuts, svi or em"),
        (("fit", "--factors", "harbour"), "--factors must be canal"),
        (("fit", "--learn", "everything"), "--learn must be transitions"),
        (("fit", "--tapes", "3", "--from", "x.csv"), "--tapes does nothing beside --from"),
        (("fit", "--from", "x.csv", "--first-seed", "5000"), "--first-seed does nothing beside --from"),
        (("fit", "--column", "a=b"), "goes with --from"),
        (("fit", "--prior", "port.wait_sd"), "--prior must look like port.congest_persist=Beta(8, 2)"),
        (("fit", "--prior", "port.wait=Beta(2, 2)"), "did you mean 'port.wait_"),
        (("coverage", "--repeats", "0"), "repeats must be at least 1"),
        (("coverage", *FEW, "--seed", "-1"), "seed must be a whole number from 0"),
        (
            ("coverage", *FEW, "--learn", "port.wait_sd,harbour.wait_sd"),
            "'harbour.wait_sd' is no parameter of a factor",
        ),
        (("coverage", *FEW, "--learn", "port.wait_sd", "--factors", "quality"), "none of quality has a parameter"),
        (("fit", "--from", "x.csv", "--column", "ab"), "--column must look like"),
    ],
)
def test_bad_arguments_are_refused(run, arguments, message):
    result = run(*arguments)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)


@pytest.mark.parametrize(("command", "module", "function"), [("fit", "learning", "fit_world"), ("coverage",) * 3])
def test_an_interruption_says_what_is_kept(run, monkeypatch, tmp_path, command, module, function):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module(f"stocktake_jax.inference.{module}"), function, interrupted)
    for more, kept in (((), "nothing is kept; with --out DIR"), (("--out", tmp_path), "run the same command again")):
        stopped = run(command, "--tapes", "1", *more)
        assert isinstance(stopped.exception, Interrupted) and kept in str(stopped.exception)
        assert stopped.stderr == ""


def test_coverage_counts_intervals_and_goes_on_where_it_was(run, tmp_path):
    sizes = (
        "coverage",
        "--tapes",
        "8",
        "--factors",
        "port",
        "--learn",
        "port.build_onset,port.wait_sd",
        "--restarts",
        "1",
    )
    first = run(*sizes, "--repeats", "2", "--out", tmp_path)
    assert first.exit_code == 0, first.output
    assert "1 identifiable transition parameters together" in first.stdout
    kept = (tmp_path / "repeats" / "0001.json").stat().st_mtime_ns
    more = run(*sizes, "--repeats", "3", "--out", tmp_path, "--json")
    assert (tmp_path / "repeats" / "0001.json").stat().st_mtime_ns == kept
    document = json.loads(more.stdout)
    assert document["plan"]["repeats"] == 3
    with (tmp_path / "estimates.csv").open(encoding="utf-8") as lines:
        each = list(csv.DictReader(lines))
    assert len(each) == 3 * 2
    for row, name in zip(document["parameters"], ("port.build_onset", "port.wait_sd"), strict=True):
        own = [e for e in each if e["name"] == name]
        inside = [float(e["low"]) <= float(e["truth"]) <= float(e["high"]) for e in own]
        assert row["coverage"] == pytest.approx(np.mean(inside))
        assert [e["covered"] == "True" for e in own] == inside
        assert row["mean_estimate"] == pytest.approx(np.mean([float(e["estimate"]) for e in own]))
    assert [row["transition"] for row in document["parameters"]] == [True, False]
    assert len({e["estimate"] for e in each}) == 6
    assert {p.name for p in tmp_path.iterdir()} == {
        "coverage.json", "coverage.csv", "estimates.csv", "coverage.png", "coverage.svg", "repeats",
    }  # fmt: skip
    other = run(*sizes, "--repeats", "2", "--policy", "spot20", "--out", tmp_path)
    assert "holds a study of another plan" in str(other.exception)
