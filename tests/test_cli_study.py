"""`study calibration` and `study sbc` at their smallest size: files, JSON, exit codes. The others are beside their library."""

from __future__ import annotations

import csv
import json

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
    assert document["tapes"] == 100 and {row["model"] for row in document["scores"]} == {"slow"}
    assert document == json.loads((tmp_path / "out" / "calibration.json").read_text(encoding="utf-8"))
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "calibration.csv", "reliability.csv", "calibration.json", "reliability.png", "reliability.svg",
    }  # fmt: skip
    assert len(rows_of(tmp_path / "out" / "calibration.csv")) == 6
    assert len(rows_of(tmp_path / "out" / "reliability.csv")) == len(document["reliability"])


@pytest.mark.usefixtures("standard_promotion")
def test_sbc_writes_ranks_and_says_what_is_not_uniform(tmp_path, monkeypatch):
    sizes = ("--replicates", 3, "--series", 3, "--weeks", 8, "--warmup", 20, "--draws", 5, "--thin", 1)
    call = ("sbc", "--factors", "port", "--learn", "port.build_onset", *sizes, "--out", tmp_path)
    result = run(*call, "--json")
    assert result.exit_code == 0, result.output
    assert [f["factor"] for f in json.loads(result.stdout)["factors"]] == ["port"]
    assert {p.name for p in tmp_path.iterdir()} == {"sbc.json", "ranks.csv", "sbc"}
    assert len(rows_of(tmp_path / "ranks.csv")) == 3 * 2
    from stocktake_jax.inference.sbc import Ranks

    monkeypatch.setattr(Ranks, "failures", lambda self, level=0.01: ("port.build_onset",))
    again = run(*call)
    assert again.exit_code == 1
    assert "NOT UNIFORM" in again.stdout and "ranks of port are not uniform: port.build_onset" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("calibration", "--likelihood", "vague"), "--likelihood must be one of paper, exact"),
        (("calibration", "--figures"), "give --out DIR"),
        (("calibration", "--seed", -1), "--seed must be a whole number"),
        (("sbc", "--level", "2"), "--level must lie between 0 and 1"),
        (("sbc", "--factors", "harbour"), "--factors must be one of canal"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    result = run(*arguments)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
