"""Labels of rationales that were graded before: the `labels.jsonl` that `stocktake score --out` writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.beliefs import Statements
from stocktake_jax.evaluation.exchange import read_rows
from stocktake_jax.evaluation.scoring import Run
from stocktake_jax.models import FACTORS

Labels = Mapping[tuple[str, int, int], tuple[str, Mapping[int, frozenset[str] | None]]]
"""(agent, seed, repeat) -> the grader, and by week the named factors; None for a week that it could not grade."""


def read_labels(path: str | Path) -> Labels:
    """Read labels; of a folder, its `labels.jsonl`.

    Raises:
        InputError: naming the line at fault.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "labels.jsonl"
    out: dict[tuple[str, int, int], tuple[str, Mapping[int, frozenset[str] | None]]] = {}
    for where, row in read_rows(path):
        key, found = _row(row, where)
        if key in out:
            raise InputError(f"{where}: agent {key[0]}, seed {key[1]}, repeat {key[2]} has labels on an earlier line")
        out[key] = found
    return out


def _row(row: Any, where: str) -> tuple[tuple[str, int, int], tuple[str, Mapping[int, frozenset[str] | None]]]:
    try:
        agent, seed, repeat, weeks = (row[name] for name in ("agent", "seed", "repeat", "labels"))
        labels = {int(week): None if names is None else frozenset(names) for week, names in weeks.items()}
        if not (isinstance(agent, str) and isinstance(seed, int) and isinstance(repeat, int)):
            raise TypeError("agent must be text, seed and repeat whole numbers")
        unknown = sorted({str(n) for names in labels.values() for n in names or ()} - set(FACTORS))
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no factor")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: no line of labels as `stocktake score --out` writes them ({error})") from None
    return (agent, seed, repeat), (str(row.get("grader") or "not said"), labels)


def relabelled(runs: Sequence[Run], labels: Labels) -> tuple[Run, ...]:
    """Runs with the labels of a file in place of their own; unfinished runs and bare costs stay as they are.

    Raises:
        InputError: if a run with rationales has no labels there.
    """
    out = []
    for run in runs:
        if run.ledger is None or not any(run.ledger.rationales):
            out.append(run)
            continue
        key = (run.agent, run.seed, run.repeat)
        if key not in labels:
            raise InputError(
                f"there are no labels for agent {run.agent}, seed {run.seed}, repeat {run.repeat}; make them with "
                "`stocktake score JOURNALS --out FOLDER`"
            )
        grader, weeks = labels[key]
        probability = None if run.statements is None else run.statements.probability
        made = Statements.make(run.agent, run.seed, weeks, run.ledger.stockout, probability, run.repeat)
        out.append(dataclasses.replace(run, statements=made, notes=dict(run.notes) | {"grader": grader}))
    return tuple(out)
