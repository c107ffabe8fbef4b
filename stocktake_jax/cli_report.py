"""`stocktake report`: a folder of results as one page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stocktake_jax.errors import InputError


def report(
    results: Annotated[Path, typer.Argument(help="Folder that `stocktake bench --out` filled.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page.")] = Path("report.html"),
    journals: Annotated[
        list[str] | None,
        typer.Option(
            "--journals",
            help="Agents' journals, a file or a folder (or an Inspect log, .eval); NAME=PATH calls the agent NAME. May be "
            "repeated.",
        ),
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(
            "--scores",
            help="labels.jsonl, or its folder, of `stocktake score --out`: labels of the rationales; by default the "
            "lexical grader labels them.",
        ),
    ] = None,
    characters: Annotated[
        int, typer.Option("--characters", help="Characters of a rationale that are kept on the page.", min=1)
    ] = 2000,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was made as one JSON document, and nothing else.")
    ] = False,
) -> None:
    """A self-contained HTML page of a benchmark's results, with every episode to unfold."""
    from stocktake_jax.cli_plot import _busy
    from stocktake_jax.evaluation.benchmark import read_results
    from stocktake_jax.report import make_report, write_report

    if out.is_dir():
        raise InputError(f"-o {out} is a folder; give a file such as {out / 'report.html'}")
    if scores is not None and not journals:
        raise InputError("--scores goes with --journals: labels alone have no books to stand beside")
    result = read_results(results)
    with _busy("reading journals"):
        runs = _runs(journals or [], scores)
    with _busy("filtering the tapes, writing the page"):
        made = make_report(result, runs, most_characters=characters)
    size = write_report(made, out)
    for warning in made.warnings:
        print(f"stocktake: note: {warning}", file=sys.stderr)
    if as_json:
        withheld = [row["seed"] for row in made.document["seeds"] if row.get("withheld")]
        document = {"file": str(out), "bytes": size, "seeds": len(result.seeds), "withheld": withheld}
        print(json.dumps(document | {"warnings": list(made.warnings)}))
    else:
        print(f"{out}: {len(result.seeds)} seeds, {size / 1e6:.2f} MB; open it in any browser")


def _runs(journals: list[str], scores: Path | None) -> list[Any]:
    """The runs behind the arguments, labelled."""
    from stocktake_jax.agents.graders import LexicalGrader
    from stocktake_jax.cli_agents import _joined, _read
    from stocktake_jax.evaluation.scoring import labelled
    from stocktake_jax.report import read_labels, relabelled

    runs = _joined([run for text in journals for run in _read(text)])
    runs = list(labelled(runs, LexicalGrader(), LexicalGrader.name))
    return runs if scores is None else list(relabelled(runs, read_labels(scores)))
