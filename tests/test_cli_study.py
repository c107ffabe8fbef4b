"""`study calibration` and `study sbc` at their smallest size: files, JSON, exit codes. The others are beside their library."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from typer.testing import CliRunner

from stocktake_jax.cli import app
from stocktake_jax.errors import InputError


def run(*arguments):
    return CliRunner().invoke(app, ["study", *map(str, arguments)])


def rows_of(path):
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_calibration_writes_tables_and_figures(tmp_path):
    (tmp_path / "slow.toml").write_text("[port]\ncongest_persist = 0.95\n", encoding="utf-8")
    sizes = (
        "--tapes",
        100,
        "--chunk",
        100,
        "--likelihood",
        "exact",
        "--initial",
        "baseline",
        "--world",
        tmp_path / "slow.toml",
    )
    result = run("calibration", *sizes, "--out", tmp_path / "out", "--figures", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["tapes"] == 100 and {row["model"] for row in document["scores"]} == {"true", "slow"}
    assert document == json.loads((tmp_path / "out" / "calibration.json").read_text(encoding="utf-8"))
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "calibration.csv", "reliability.csv", "calibration.json", "reliability.png", "reliability.svg",
    }  # fmt: skip
    assert len(rows_of(tmp_path / "out" / "calibration.csv")) == 12
    assert len(rows_of(tmp_path / "out" / "reliability.csv")) == len(document["reliability"])


def test_filters_of_a_fit_are_plug_in_and_averaged(tmp_path, monkeypatch):
    from stocktake_jax.evaluation.learned import LearnedWorld
    from stocktake_jax.inference import calibration
    from stocktake_jax.models import World

    learned = World.paper().replace({"port.wait_sd": 3.0})
    draws = {"port.wait_sd": np.array([[1.0, 5.0]])}
    fit = LearnedWorld("mine", 20, "map", learned, draws, [], {}, {})
    monkeypatch.setattr(LearnedWorld, "load", classmethod(lambda cls, folder: fit))
    asked = {}

    def watched(models, *arguments, **how):
        asked.update(models)
        return {}

    monkeypatch.setattr(calibration, "calibrate", watched)
    result = run("calibration", "--fits", "mine", "--draws", "16", "--json")
    assert result.exit_code == 0, result.output
    assert list(asked) == ["true", "mine, plug-in", "mine, averaged"]
    assert float(asked["mine, plug-in"].port.wait_sd) == 3.0
    assert {float(w.port.wait_sd) for w in asked["mine, averaged"]} == {1.0, 5.0} and len(asked["mine, averaged"]) == 16
    asked.clear()
    run("calibration", "--fits", "mine", "--draws", "0")
    assert list(asked) == ["true", "mine, plug-in"]


@pytest.mark.usefixtures("standard_promotion")
def test_sbc_writes_ranks_and_says_what_is_not_uniform(tmp_path, monkeypatch):
    sizes = ("--replicates", 3, "--series", 3, "--weeks", 8, "--warmup", 20, "--draws", 5, "--thin", 1)
    call = ("sbc", "--factors", "port", "--learn", "port.build_onset", *sizes, "--out", tmp_path)
    result = run(*call, "--json", "--figures")
    assert result.exit_code == 0, result.output
    assert [f["factor"] for f in json.loads(result.stdout)["factors"]] == ["port"]
    assert {p.name for p in tmp_path.iterdir()} == {
        "sbc.json", "ranks.csv", "sbc", "rank_histograms.png", "rank_histograms.svg",
    }  # fmt: skip
    assert len(rows_of(tmp_path / "ranks.csv")) == 3 * 2
    from stocktake_jax.inference.sbc import Ranks

    monkeypatch.setattr(Ranks, "failures", lambda self, level=0.01: ("port.build_onset",))
    again = run(*call)
    assert again.exit_code == 1
    assert "NOT UNIFORM" in again.stdout and "ranks of port are not uniform: port.build_onset" in again.stderr


SMALL = ("--replicates", "1", "--series", "1", "--weeks", "3", "--warmup", "1", "--draws", "1", "--thin", "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("calibration", "--likelihood", "vague"), "--likelihood must be paper or exact"),
        (("calibration", "--figures"), "give --out DIR"),
        (("calibration", "--draws", "-1"), "--draws must be at least 0"),
        (("calibration", "--fits", "nowhere"), "cannot read the world nowhere"),
        (("calibration", "--world", "true.toml"), "two models have the same name"),
        (("calibration", "--seed", -1), "--seed must be a whole number"),
        (("sbc", "--level", "2"), "--level must lie between 0 and 1"),
        (("sbc", "--factors", "harbour"), "--factors must be canal"),
        (("sbc", *SMALL, "--learn", "port.wait_sd,harbour.wait_sd"), "'harbour.wait_sd' is no parameter of a factor"),
    ],
)
def test_bad_arguments_are_refused(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "true.toml").write_text("", encoding="utf-8")
    result = run(*arguments)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
