"""Reading a folder of results: whole, interrupted, missing and damaged."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from stocktake_jax.cli import main
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.benchmark import BenchOptions, BenchResult, read_results
from stocktake_jax.models import World

SEEDS = (0, 3, 11)
"""Those of the fixture `results`."""


@pytest.fixture
def copied(results: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(results, tmp_path / "copied"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command in this process: exit status, standard output, standard error."""

    def command(*arguments: Any) -> tuple[Any, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(["report", *(str(a) for a in arguments)])
        return exit_.value.code, *capsys.readouterr()

    return command


def test_what_was_saved_is_read(results: Path) -> None:
    read = read_results(results)
    saved = json.loads((results / "results.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(read.to_json())) == saved
    assert [r.seed for r in read.seeds] == list(SEEDS)


def test_options_survive_their_json() -> None:
    options = BenchOptions(
        seeds=(3, 5),
        replications=4,
        futures=9,
        likelihood="exact",
        initial="baseline",
        rules="strict",
        model=World.paper().replace({"port.wait_sd": 3.0}),
        true_world=World.paper().replace({"costs.air": 14.0}),
        agents={"me": {3: (5000.0, math.nan)}},
    )
    row = json.loads(json.dumps(options.to_json(), allow_nan=False))
    assert BenchOptions.from_json(row).to_json() == row
    assert BenchOptions.from_json(BenchOptions().to_json()).to_json() == BenchOptions().to_json()


def test_of_an_interrupted_run_the_finished_seeds(copied: Path, result: BenchResult) -> None:
    (copied / "seeds" / "0.json").unlink()
    (copied / "results.json").unlink()
    read = read_results(copied)
    assert [r.seed for r in read.seeds] == [3, 11] and read.options.seeds == SEEDS
    assert read.references.floor.tolist() == result.references.floor[1:].tolist()
    assert read.published.references.seeds == (11,)
    assert list(read.run) == ["package"]


def test_folders_that_hold_no_results(tmp_path: Path, copied: Path) -> None:
    with pytest.raises(InputError, match="is no folder; make one with `stocktake bench --out"):
        read_results(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"no manifest\.json"):
        read_results(tmp_path)
    manifest = copied / "manifest.json"
    about = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text('{"package": "1"}', encoding="utf-8")
    with pytest.raises(InputError, match="holds no options"):
        read_results(copied)
    manifest.write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="is damaged"):
        read_results(copied)
    manifest.write_text(json.dumps(about), encoding="utf-8")
    (copied / "seeds" / "3.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="no result of seed 3"):
        read_results(copied)
    for seed in SEEDS:
        (copied / "seeds" / f"{seed}.json").unlink()
    with pytest.raises(InputError, match="no finished seed"):
        read_results(copied)


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command_makes_a_page_with_journals_and_labels(
    run: Any, copied: Path, journals: Path, stopped: Path, tmp_path: Path
) -> None:
    labels = tmp_path / "labels.jsonl"
    rows = [
        {"agent": "mine", "seed": s, "repeat": 1, "grader": "by hand", "labels": {"1": ["canal"], "2": [], "3": None}}
        for s in (0, 3)
    ]
    labels.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    out = tmp_path / "page.html"
    given = (copied, "-o", out, "--journals", f"mine={journals / 'buyer'}", "--journals", stopped, "--scores", tmp_path)
    code, said, noted = run(*given, "--json")
    assert (code, noted) == (0, "")
    told = json.loads(said)
    assert told == {"file": str(out), "bytes": out.stat().st_size, "seeds": 3, "withheld": [11], "warnings": []}
    page = out.read_text(encoding="utf-8")
    assert "by hand" in page
    document = json.loads(page.split('id="data">')[1].split("</script>")[0])
    mine = next(r for r in document["seeds"][0]["runs"] if r["who"] == "agent")
    assert mine["named"][:5] == [-1, 1, 0, -1, -1]
    assert mine["stated"][5] == [250] * 6
    labels.write_text(json.dumps(rows[0]) + "\n", encoding="utf-8")
    code, _, wrong = run(*given)
    assert code == 2 and "no labels for agent mine, seed 3, repeat 1" in wrong
    labels.write_text(json.dumps(rows[0] | {"labels": {"1": ["weather"]}}) + "\n", encoding="utf-8")
    code, _, wrong = run(*given)
    assert code == 2 and "labels.jsonl, line 1" in wrong and "'weather' is no factor" in wrong


def test_the_command_says_what_is_wrong(run: Any, copied: Path, tmp_path: Path) -> None:
    code, said, wrong = run(tmp_path / "nowhere", "-o", tmp_path / "page.html")
    assert (code, said) == (2, "") and len(wrong.splitlines()) == 1 and "nowhere is no folder" in wrong
    code, _, wrong = run(copied, "-o", tmp_path)
    assert code == 2 and "is a folder" in wrong
    code, _, wrong = run(copied, "-o", tmp_path / "no" / "page.html")
    assert code == 2 and "cannot be written" in wrong
    code, _, wrong = run(copied, "-o", tmp_path / "page.html", "--scores", tmp_path)
    assert code == 2 and "--scores goes with --journals" in wrong
    seed = copied / "seeds" / "3.json"
    row = json.loads(seed.read_text(encoding="utf-8"))
    row["weeks"]["oracle"] = row["weeks"]["oracle"][:5]
    seed.write_text(json.dumps(row), encoding="utf-8")
    code, _, wrong = run(copied, "-o", tmp_path / "page.html")
    assert code == 2 and "seeds/3.json of the results is damaged" in wrong
    assert not (tmp_path / "page.html").exists()
    seed.unlink()
    (copied / "results.json").unlink()
    code, said, noted = run(copied, "-o", tmp_path / "page.html")
    assert code == 0 and "2 of 3 seeds are there" in noted and "page.html: 2 seeds" in said
    assert "2 of 3 seeds are there" in (tmp_path / "page.html").read_text(encoding="utf-8")
