"""The commands about agents: what they print, what they refuse."""

from __future__ import annotations

import csv
import json
import shutil
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
from tests.agents.conftest import EXAMPLES, FEW, FUTURES
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
    assert document["gpt-5.4"]["missed_paper"]["all"]["numerator"] == 35


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
    assert "Agreement of the graders lexical-1 and lexical-1" in text and "1.000 50/50" in text


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
        (("agents", "play", "blind", "--out", "a-file", "--seeds", "1"), "cannot use the folder"),
        (("score", "=here"), "give NAME=PATH"),
        (("score", "mine="), "give NAME=PATH"),
        (("score", "a-file"), "a-file: line 1 is damaged"),
        (("score", "costs.csv", "--references", "nothing.csv"), "cannot read the references"),
        (("score", "costs.csv", "--references", "."), "cannot read the references"),
        (("score", "costs.csv", "--grader", "nobody/nothing"), "the grader must be lexical"),
        (("score", "costs.csv", "--no-published", "--second-grader", "lexical"), "needs rationales"),
        (("score", "costs.csv", "--no-published", "--out", "a-file"), "cannot write to a-file"),
        (("score", "labels.txt", "--no-published", "--budget", "0"), "budget"),
        (("mcp", "--seed", "1", "--journal", "."), "cannot read the journal"),
        (("mcp", "--seed", "1", "--journal", "a-file"), "a-file: line 1 is damaged"),
        (("mcp", "--seed", "1", "--arm", "faithful"), "arm"),
    ],
)
def test_bad_input_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").write_text("what is this?\n")
    (tmp_path / "costs.csv").write_text("agent,seed,cost\nmine,24,5000\n")
    (tmp_path / "labels.txt").write_text("mine|24|" + " ".join(["-"] * 26) + "\n")
    with pytest.raises(InputError, match=said) as caught:
        run(*arguments)
    assert "\n" not in str(caught.value)


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
    out, seeds = tmp_path / "runs", ",".join(map(str, FEW))
    arguments = ("agents", "play", "blind", "--seeds", seeds, "--futures", str(FUTURES), "--out", str(out))
    rows = [json.loads(line) for line in run(*arguments, "--json").stdout.splitlines()]
    assert [(row["agent"], row["seed"]) for row in rows] == [("blind", seed) for seed in FEW]
    mean = sum(row["cost"] for row in rows) / len(rows)
    again = run(*arguments)
    assert f"mean cost {mean:.1f}" in again.stdout and "blind on 4 seeds" in again.stderr  # read from the journals
    scored = json.loads(
        run("score", str(out), "--no-published", "--oracle-runs", "0", "--resamples", "20", "--json").stdout
    )
    assert scored["blind"]["cost"]["all"]["value"] == pytest.approx(mean)


def test_the_prompt_and_the_graders_agreement_are_printed() -> None:
    result = run("agents", "prompt", "coached")
    assert result.stdout == system_prompt("coached") + "\n" and prompt_hash("coached") in result.stderr
    document = json.loads(run("agents", "prompt", "anonymous", "--rules", "strict", "--json").stdout)
    assert document["prompt"] == system_prompt("anonymous", rules="strict")
    assert document["prompt_sha256"] == prompt_hash("anonymous", rules="strict") and len(document["tools"]) == 6
    assert "lexical-1: exact 81/90" in run("agents", "graders", str(EXAMPLES)).stdout
    document = json.loads(run("agents", "graders", str(EXAMPLES), "--json").stdout)
    assert document["exact"] == {"value": 0.9, "numerator": 81, "denominator": 90}


def test_a_folder_may_hold_what_scoring_wrote(journals: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(journals, folder)
    arguments = ("score", str(folder), "--oracle-runs", "0", "--no-published", "--resamples", "20", "--json")
    first = run(*arguments, "--out", str(folder)).stdout
    assert (folder / "labels.jsonl").exists() and run(*arguments).stdout == first


def test_runs_under_other_rules_are_scored_without_the_published_agents(tmp_path: Path) -> None:
    play(steady, [24], journals=tmp_path, rules="strict")
    arguments = ("score", str(tmp_path), "--oracle-runs", "0", "--resamples", "20", "--json")
    document = json.loads(run(*arguments).stdout)
    assert list(document) == ["steady"] and document["steady"]["skill"]["all"]["denominator"] == 0
    with pytest.raises(InputError, match="different worlds or rules"):
        run(*arguments, "--published")


def test_agreement_stands_in_the_document(journals: Path) -> None:
    arguments = ("--no-published", "--oracle-runs", "0", "--resamples", "20", "--second-grader", "lexical", "--json")
    document = json.loads(run("score", str(journals), *arguments).stdout)
    for part in ("exact", "relevant", "per_factor"):
        assert document["steady"][f"agreement_{part}"]["all"]["value"] == 1


def test_a_grader_that_fails_is_told_on_standard_error(journals: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        failure = "RuntimeError: quota"

        def __call__(self, texts: list[str]) -> list[None]:
            return [None] * len(texts)

    monkeypatch.setattr("stocktake_jax.cli_agents._grader", lambda name: (Broken(), "broken"))
    result = run("score", str(journals), "--no-published", "--oracle-runs", "0", "--resamples", "20", "--json")
    assert "broken could not grade 50 of 50 rationales" in result.stderr and "RuntimeError: quota" in result.stderr
    assert json.loads(result.stdout)["steady"]["ungraded"]["all"]["numerator"] == 50
