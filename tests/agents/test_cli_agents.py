"""The commands about agents: what they print, what they refuse."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from stocktake_jax.agents.play import play
from stocktake_jax.agents.prompt import prompt_hash, system_prompt
from stocktake_jax.agents.scripted import SCRIPTED
from stocktake_jax.cli_agents import mount
from stocktake_jax.errors import InputError
from tests.agents.conftest import EXAMPLES
from tests.agents.test_play import steady

APP = typer.Typer()
mount(APP)


def run(*arguments: str) -> Any:
    result = CliRunner().invoke(APP, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module")
def journals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("journals")
    play(steady, [24, 0], journals=folder)
    return folder


def test_published_scores() -> None:
    document = json.loads(run("score", "--published", "--json", "--resamples", "50").stdout)
    assert document["claude-sonnet-5"]["missed"]["all"] == {"value": 16 / 266, "numerator": 16, "denominator": 266}
    assert document["grok-4.5"]["knowing_doing"]["all"]["numerator"] == 75
    text = run("score", "--published", "--resamples", "50").stdout
    assert "33/283" in text and "0.62 (0.65)" in text


def test_journals_stand_beside_the_published_agents(journals: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("score", str(journals), "--oracle-runs", "0", "--resamples", "50", "--out", str(out), "--json")
    result = run(*arguments)
    document = json.loads(result.stdout)
    assert list(document) == ["steady", "claude-sonnet-5", "gpt-5.4", "deepseek-v4-pro", "grok-4.5"]
    assert document["steady"]["complete"]["all"] == {"value": 1.0, "numerator": 2, "denominator": 2}
    alone = json.loads(run(*arguments[:2], "--no-published", *arguments[2:]).stdout)
    assert alone == {"steady": document["steady"]}
    with (out / "rates.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"agent", "metric", "group", "value", "numerator", "denominator", "low", "high"} == set(rows[0])
    labels = [json.loads(line) for line in (out / "labels.jsonl").read_text().splitlines()]
    assert labels[0]["agent"] == "steady" and labels[0]["grader"] == "lexical-1" and len(labels[0]["labels"]) == 25


def test_names_csv_files_and_a_second_grader(journals: Path, tmp_path: Path) -> None:
    costs = tmp_path / "costs.csv"
    costs.write_text("agent,seed,cost\nlisted,24,5000\nlisted,0,nan\n")
    text = run(
        "score", f"mine={journals}", str(costs), "--no-published", "--oracle-runs", "0", "--resamples", "50",
        "--second-grader", "lexical",
    ).stdout  # fmt: skip
    assert "mine" in text and "listed" in text and "steady" not in text and "1/2" in text
    assert "Agreement of the graders lexical-1 and lexical-1" in text and "same names: 1.000 (50/50)" in text


def test_labels_and_costs_of_the_same_runs_are_joined(tmp_path: Path) -> None:
    costs, labels = tmp_path / "costs.csv", tmp_path / "labels.txt"
    costs.write_text("agent,seed,cost\na,24,5000\n")
    labels.write_text("a|24|" + " ".join(["-"] * 26) + "\n")
    arguments = (str(costs), str(labels), "--no-published", "--resamples", "20", "--json")
    document = json.loads(run("score", *arguments).stdout)
    assert document["a"]["missed"]["all"]["value"] == 1 and document["a"]["skill"]["all"]["denominator"] == 1
    with pytest.raises(InputError, match="given twice"):
        run("score", str(costs), str(costs), "--no-published")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("score",), "nothing to score"),
        (("score", "no-such-file"), "does not exist"),
        (("agents", "play", "nobody", "--out", "x"), "no scripted agent 'nobody'; there are voice"),
        (("agents", "play", "blind", "--out", "x", "--seeds", "a"), "seeds must look like"),
        (("agents", "prompt", "faithful"), "arm"),
        (("agents", "prompt", "--rules", "lax"), "rules"),
        (("agents", "graders", "no-such-file"), "cannot read"),
    ],
)
def test_bad_input_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        run(*arguments)


def test_an_empty_folder_holds_nothing_to_score(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no journal"):
        run("score", str(tmp_path))


def test_agents_are_listed_with_their_faults_and_privileges() -> None:
    rows = json.loads(run("agents", "list", "--json").stdout)
    assert [row["agent"] for row in rows] == list(SCRIPTED)
    assert {row["agent"] for row in rows if row["privileged"]} == {"freezer", "flailer", "dawdler"}
    text = run("agents", "list").stdout
    assert text.count("sees hidden states") == 3 and "3 weeks late" in text


def test_scripted_agents_play_into_journals(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    arguments = ("agents", "play", "blind", "--seeds", "24", "--futures", "2", "--out", str(out))
    first = json.loads(run(*arguments, "--json").stdout)
    assert first["agent"] == "blind" and first["seed"] == 24
    assert f"mean cost {first['cost']:.1f}" in run(*arguments).stdout  # read from the journal
    scored = json.loads(
        run("score", str(out), "--no-published", "--oracle-runs", "0", "--resamples", "20", "--json").stdout
    )
    assert scored["blind"]["cost"]["all"]["value"] == pytest.approx(first["cost"])


def test_the_prompt_and_the_graders_agreement_are_printed() -> None:
    result = run("agents", "prompt", "coached")
    assert result.stdout == system_prompt("coached") + "\n" and prompt_hash("coached") in result.stderr
    assert "lexical-1: exact 81/90" in run("agents", "graders", str(EXAMPLES)).stdout
