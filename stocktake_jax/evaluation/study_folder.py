"""A study's folder: what it is a study of, and every finished variant, so that an interrupted study can go on."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stocktake_jax import __version__
from stocktake_jax.errors import InputError
from stocktake_jax.models import FACTORS, World


@dataclasses.dataclass(frozen=True)
class Summary:
    """What is kept of a variant's runs.

    Attributes:
        cost: (run,) total cost in dollars.
        bill: item -> mean dollars per episode.
        changed: see `Outcome`.
        log_score, calibration: factor -> see `Outcome`; the log score itself, not a difference.
        decisions: (run, week, field) of the true model, which the others are compared with; empty for others.
    """

    cost: np.ndarray
    bill: dict[str, float]
    changed: float
    log_score: dict[str, float]
    calibration: dict[str, float]
    decisions: np.ndarray


def fingerprint(world: World) -> str:
    """A digest of a world's numbers, or of a posterior's."""
    digest = hashlib.sha256()
    leaves, structure = jax.tree.flatten(world)
    digest.update(str(structure).encode())
    for leaf in leaves:
        array = np.ascontiguousarray(leaf, np.float64)
        digest.update(str(array.shape).encode() + array.tobytes())
    return digest.hexdigest()


class StudyFolder:
    """A folder with `manifest.json` and `variants/N.npz`, one a finished variant.

    Args:
        out: made if it is not there; an existing one must be empty or hold the same study.
        study: what it is a study of, ready for JSON; everything that the results depend on.

    Raises:
        InputError: if the folder cannot be used, or holds something else.
    """

    def __init__(self, out: str | os.PathLike[str], study: Mapping[str, Any]) -> None:
        self.folder = Path(out)
        self.parts = self.folder / "variants"
        manifest = self.folder / "manifest.json"
        mine = {"package": __version__, **json.loads(json.dumps(study))}
        try:
            if manifest.exists():
                self._same(manifest, mine)
            elif self.parts.exists():
                raise InputError(f"{self.folder} has variants but no manifest.json; give another folder, or delete it")
            self.parts.mkdir(parents=True, exist_ok=True)
            if not manifest.exists():
                write(manifest, (json.dumps(mine, indent=1) + "\n").encode())
        except OSError as error:
            raise InputError(
                f"{self.folder} cannot be used for a study ({error.strerror}); give another folder"
            ) from None

    def _same(self, manifest: Path, mine: dict[str, Any]) -> None:
        try:
            theirs = json.loads(manifest.read_text(encoding="utf-8"))
            if not isinstance(theirs, dict):
                raise ValueError("no object")
        except ValueError as error:
            raise InputError(f"{manifest} is damaged ({error}); delete the folder, or give another") from None
        for name, value in mine.items():
            if theirs.get(name) != value:
                raise InputError(
                    f"{self.folder} holds another study (its {name} differ); give another folder, or delete this one"
                )

    def load(self, number: int, runs: int) -> Summary | None:
        """A variant's summary; None if it is not finished.

        Raises:
            InputError: if its file is damaged.
        """
        path = self._path(number)
        if not path.exists():
            return None
        try:
            with np.load(path) as file:
                words = json.loads(str(file["words"]))
                cost, decisions = file["cost"], file["decisions"]
            summary = Summary(cost=cost, decisions=decisions, **words)
            if cost.shape != (runs,) or set(summary.log_score) != set(FACTORS) or not np.all(np.isfinite(cost)):
                raise ValueError("it is of another study")
        except Exception as error:  # numpy, zip and JSON have many ways to say that a file is broken
            raise InputError(f"{path} is damaged ({error}); delete it to run that variant again") from None
        return summary

    def save(self, number: int, summary: Summary) -> None:
        """Keep a finished variant."""
        words = {k: v for k, v in vars(summary).items() if k not in ("cost", "decisions")}
        buffer = io.BytesIO()
        np.savez_compressed(buffer, words=np.array(json.dumps(words)), cost=summary.cost, decisions=summary.decisions)
        try:
            write(self._path(number), buffer.getvalue())
        except OSError as error:
            raise InputError(f"{self.folder} cannot be written ({error.strerror})") from None

    def _path(self, number: int) -> Path:
        return self.parts / f"{number}.npz"


def write(path: Path, content: bytes) -> None:
    """Write a file in one piece: whenever the process may be killed, it is there as a whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
