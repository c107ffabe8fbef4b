"""`stocktake plot`: every kind writes its files, says which, and refuses what it cannot use."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from stocktake_jax import plots
from stocktake_jax.cli import main
from stocktake_jax.cli_plot import plot_app
from stocktake_jax.evaluation.explain import Explained
from stocktake_jax.evaluation.scoring import ScoreBoard
from stocktake_jax.models import Tape, World
from stocktake_jax.policies import BaseStock

from .conftest import COVERAGE, DATA, FACTORS_ON, PAIRS, misspecified

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: Any) -> tuple[Any, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main(["plot", *map(str, arguments)])
        return exit_.value.code, *capsys.readouterr()

    return command


@pytest.fixture
def drawn(run: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command that must draw a figure, and return the texts in it; what takes long, rendering it, is left out."""

    def command(*arguments: Any) -> str:
        figures: list[Any] = []

        def save(axes: Any, *files: Path) -> tuple[Path, ...]:
            figures.append(plots.figure_of(axes))
            return files

        with monkeypatch.context() as patch:
            patch.setattr(plots, "save", save)
            code, out, err = run(*arguments, "-o", "figure.svg")
        assert (code, err) == (0, "")
        assert out == "figure.svg\n"
        (figure,) = figures
        ranges = [f"x from {ax.get_xlim()[0]:g} to {ax.get_xlim()[1]:g}" for ax in figure.axes]
        return " | ".join([*ranges, *(t.get_text() for t in figure.findobj(Text) if t.get_text())])

    return command


@pytest.fixture
def refused(run: Any) -> Any:
    """Run a command that must end with one line and exit status 2, and write nothing; returns the line."""

    def command(*arguments: Any) -> str:
        before = sorted(Path().rglob("*"))
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert sorted(Path().rglob("*")) == before
        return err

    return command


def said_in(file: Path) -> list[str]:
    """Every text of a figure: matplotlib writes each as a comment before its shapes."""
    return re.findall(r"<!-- (.*?) -->", file.read_text(encoding="utf-8"), re.S)


def test_writes_png_and_svg_and_says_so(run: Any) -> None:
    code, out, err = run("posterior", "60", "--factors", "port", "--results", DATA / "results", "-o", "a/b", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"kind": "posterior", "files": ["a/b.png", "a/b.svg"]}
    assert Path("a/b.png").read_bytes().startswith(b"\x89PNG")
    assert any("port: the true regime" in text for text in said_in(Path("a/b.svg")))


def test_tape(drawn: Any) -> None:
    said = drawn("tape", "9", "--title", "Nine")
    assert "Nine" in said
    assert "degraded" in said


def test_posterior_of_a_seed(drawn: Any) -> None:
    said = drawn("posterior", "82", "--factors", "canal")
    assert "canal: the true regime (framed) has probability 0.96 on average" in said
    assert "port" not in said


def test_posterior_of_saved_results(drawn: Any, results: Any, world: World) -> None:
    said = drawn("posterior", "60", "--factors", "quality", "--results", DATA / "results")
    truth = Tape.published(60, world).regimes(world)["quality"]
    believed = [w["belief"]["quality"][r] for w, r in zip(results.seeds[0].weeks["oracle"], truth, strict=False)]
    assert f"quality: the true regime (framed) has probability {np.mean(believed):.2f} on average" in said
    assert "port" not in said
    # Beliefs at the 26 decisions, of weeks 0 .. 25; the filters on the tape would go on to week 26.
    assert said.startswith("x from -0.5 to 25.5 | ")


def test_beliefs_of_two_likelihoods_or_worlds(drawn: Any, tmp_path: Path) -> None:
    how = ("beliefs", "9", "--factors", "port", "--initial", "baseline")
    assert "The filters paper and exact differ" in drawn(*how)
    (tmp_path / "calm.toml").write_text("[port]\nbuild_onset = 0.001\n")
    said = drawn(*how, "--likelihood", "paper", "--world", "calm.toml")
    assert "The filters true and calm differ most about port" in said


def test_books_of_saved_results_and_a_journal(drawn: Any, refused: Any, tmp_path: Path) -> None:
    from stocktake_jax.desk import Episode

    policy = BaseStock()
    policy.reset(1)
    (tmp_path / "me").mkdir()
    with Episode(60, journal=tmp_path / "me" / "60.jsonl") as desk:
        while not desk.done:
            policy.act(desk.observe(), desk)
    said = drawn("books", "60", "--results", DATA / "results", "--journal", "mine=me/60.jsonl")
    assert "mine: $7,071, 93 units of demand lost" in said
    assert "floor: $7,071, 93 units of demand lost" in said
    assert "oracle: $4,971, 0 units of demand lost" in said
    assert "on seed 60, not on 61" in refused("books", "61", "--no-references", "--journal", "me/60.jsonl", "-o", "a")


def test_skill(drawn: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("agent,seed,cost\nmine,60,5000\nmine,24,4000\n")
    assert "mine has the highest mean skill" in drawn("skill", "--agents", "mine.csv")
    said = drawn("skill", DATA / "results", "--agents", "mine.csv")
    assert "(1 seeds)" in said
    assert "mine" in said
    assert "gpt-5.4" not in said


def test_scores_as_json_and_as_csv(drawn: Any, board: ScoreBoard, tmp_path: Path) -> None:
    (tmp_path / "scores.json").write_text(json.dumps(board.to_json()))
    rows = board.rate_rows()
    with (tmp_path / "rates.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert "names 100% of stress episodes in time" in drawn("detection", "scores.json")
    assert "of 2 agents run out of stock more often" in drawn("knowing-doing", ".")


@pytest.mark.parametrize(
    ("kind", "file", "says"),
    [
        ("tornado", "study.json", "The costliest mistake: canal.watch_onset halved"),
        ("learning", "learned.json", "Learned from 50 tapes"),
        ("reliability", "calibration.json", "Largest mean distance from the diagonal"),
        ("ranks", "sbc.json", "rank histograms are flat"),
    ],
)
def test_studies(kind: str, file: str, says: str, drawn: Any) -> None:
    # The folder of a study serves as well as its document.
    assert says in drawn(kind, DATA if kind == "tornado" else DATA / file)


def test_wrong_models(drawn: Any, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(json.dumps(misspecified(*FACTORS_ON, *PAIRS)))
    listed = drawn("models", ".", "--order", "given", "--most", "9")
    assert "port.wait_sd x0.25 | port.wait_sd x0.5" in listed and "The costliest model: port.wait_sd x2, " in listed
    assert "The costliest belief: port.wait_sd x4 (+$40)" in drawn("curves", ".")
    assert "The costliest pair: port.wait_sd x2, port.outlook_sd x0.5 (+$70)" in drawn("grid", ".")


def test_coverage(drawn: Any, tmp_path: Path) -> None:
    (tmp_path / "coverage.json").write_text(json.dumps(COVERAGE))
    assert "90% intervals hold the truth in 92.0% of fits" in drawn("coverage", ".")


def test_parameters_of_a_fit(drawn: Any, refused: Any, draws: dict[str, np.ndarray], tmp_path: Path) -> None:
    np.savez(tmp_path / "posterior.npz", **draws)
    rows = [{"name": "port.build_onset", "truth": 0.06}, {"name": "port.wait_sd"}]
    (tmp_path / "fit.json").write_text(json.dumps({"parameters": rows}))
    assert "1 of 1 90 % intervals hold the truth" in drawn("parameters", ".")
    (tmp_path / "true.toml").write_text("[port]\nbuild_onset = 0.5\n")
    assert "1 of 2 90 % intervals hold the truth" in drawn("parameters", ".", "--true-world", "true.toml")
    assert "no draws of canal" in refused("parameters", ".", "--factors", "canal", "-o", "a")


def test_decision(drawn: Any, decided: Explained, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def explained(seed: int, week: int, **how: Any) -> Explained:
        asked.update(how, seed=seed, week=week)
        return decided

    # The real one is tested in test_explain; compiling another oracle here would show nothing more.
    monkeypatch.setattr("stocktake_jax.evaluation.explain.explain", explained)
    options = ("--futures", "16", "--most", "4", "--replication", "2", "--rules", "strict", "--likelihood", "exact")
    said = drawn("decision", "12", "5", *options)
    assert "Seed 12, week 5: the oracle takes" in said
    assert said.count(" | happened") == 1
    oracle = asked.pop("oracle")
    assert (oracle.futures, oracle.likelihood, oracle.initial) == (16, "exact", "uniform")
    assert asked.pop("world").to_toml() == oracle.model.to_toml()
    assert asked == {"seed": 12, "week": 5, "replication": 2, "rules": "strict"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tape", "9"), "-o"),
        (("tape", "9", "-o", "a.pdf"), ".png or .svg"),
        (("tape", "nine", "-o", "a"), "'seed'"),
        (("posterior", "9", "-o", "a", "--factors", "weather"), "'weather'"),
        (("posterior", "9", "-o", "a", "--policy", "all"), "--policy must be idle or spot20"),
        (("posterior", "9", "-o", "a", "--results", DATA / "results"), "no seed 9; they have 60"),
        (("posterior", "9", "-o", "a", "--results", "nowhere"), "nowhere is no folder"),
        (("beliefs", "9", "-o", "a", "--likelihood", "paper"), "needs two filters"),
        (("decision", "9", "26", "-o", "a"), "weeks 0 to 25"),
        (("books", "9", "-o", "a", "--no-references"), "no episode to draw"),
        (("books", "60", "-o", "a", "--no-references", "--journal", "gone.jsonl"), "gone.jsonl"),
        (("skill", "nowhere", "-o", "a"), "nowhere is no folder"),
        (("detection", "gone.json", "-o", "a"), "gone.json cannot be read"),
        (("knowing-doing", DATA / "study.json", "-o", "a"), "no document of `stocktake score --json`"),
        (("detection", DATA / "study.json", "-o", "a", "--group", "some"), "--group must be"),
        (("tornado", DATA / "sbc.json", "-o", "a"), "no 'outcomes'"),
        (("learning", DATA / "study.json", "-o", "a"), "no 'models'"),
        (("models", DATA / "study.json", "--order", "none", "-o", "a"), "--order must be cost or given"),
        (("parameters", "nowhere", "-o", "a"), "cannot read the posterior draws"),
        (("weather", "-o", "a"), "weather"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: tuple[Any, ...], words: str, refused: Any) -> None:
    assert words in refused(*arguments)


@pytest.mark.parametrize(
    "text",
    ["[1, 2]", "{", "\xff", '{"outcomes": [1]}', '{"outcomes": [{"label": "a", "parameter": "a", "factor": 2}]}'],
)
def test_a_damaged_document_is_refused(text: str, refused: Any, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_bytes(text.encode("latin-1"))
    assert "study.json" in refused("tornado", "study.json", "-o", "a")


def test_every_kind_has_a_test() -> None:
    kinds = {command.name for command in plot_app.registered_commands}
    mine = Path(__file__).read_text(encoding="utf-8")
    assert len(kinds) == 17
    assert [kind for kind in kinds if not re.search(rf'\("{kind}"', mine)] == []


# ---- the figures of the README --------------------------------------------------------------------------------------

COMMANDS = re.findall(
    r"^stocktake plot (.*) -o (docs/figures/\S+\.svg)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M
)


def test_the_readme_shows_what_its_commands_make() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [arguments.split()[0] for arguments, _ in COMMANDS] == ["skill", "posterior"]
    shown = re.findall(r"!\[[^\]]+\]\((docs/figures/[^)]+)\)", readme)
    assert shown[: len(COMMANDS)] == [file for _, file in COMMANDS]
    # The others come from a study and from the benchmarks, whose commands take longer.
    assert shown[len(COMMANDS) :] == ["docs/figures/coverage.svg", "docs/figures/growth.svg"]


@pytest.mark.parametrize(("arguments", "file"), COMMANDS, ids=[file for _, file in COMMANDS])
def test_a_figure_of_the_readme_is_what_its_command_makes(arguments: str, file: str, run: Any) -> None:
    code, _, err = run(*arguments.split(), "-o", "again.svg")
    assert (code, err) == (0, "")
    # Shapes may differ in their last digits with the versions of the libraries; what is said may not.
    assert said_in(Path("again.svg")) == said_in(ROOT / file)
