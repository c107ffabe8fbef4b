"""Small real data for every figure: a tape, saved results, filters, a decision, scores and the documents of studies."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stocktake_jax.evaluation.benchmark import read_results
from stocktake_jax.evaluation.explain import Explained
from stocktake_jax.evaluation.scoring import ScoreBoard, published_runs, score_runs
from stocktake_jax.inference.sbc import Ranks
from stocktake_jax.models import FACTORS, Tape, World

HERE = Path(__file__).parent
DATA = HERE / "data"


def document(name: str) -> dict[str, Any]:
    return json.loads((DATA / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def world() -> World:
    return World.paper()


@pytest.fixture(scope="session")
def tape(world: World) -> Tape:
    return Tape.published(1, world)


@pytest.fixture(scope="session")
def filtered(world: World) -> dict[str, np.ndarray]:
    """factor -> (week, regime) posterior on the tape of seed 1, from the authors' filters."""
    with gzip.open(HERE.parent / "data" / "filters.jsonl.gz", "rt") as lines:
        row = next(r for r in map(json.loads, lines) if r["seed"] == 1 and r["policy"] == "idle")
    return {
        n: np.array([[week[n]["regime"][label] for label in world.factors[n].labels] for week in row["weeks"]])
        for n in FACTORS
    }


@pytest.fixture(scope="session")
def results() -> Any:
    return read_results(DATA / "results")


@pytest.fixture(scope="session")
def decided() -> Explained:
    """What `explain(12, 5)` found, on its first forty futures: kept, since compiling an oracle takes long."""
    row = document("decision.json")
    row["stress"] = {name: (p, true) for name, (p, true) in row["stress"].items()}
    return Explained(**row | {"labels": tuple(row["labels"]), "costs": np.array(row["costs"])})


@pytest.fixture(scope="session")
def board() -> ScoreBoard:
    few = [r for r in published_runs() if r.seed in (1, 24, 60) and r.agent in ("gpt-5.4", "grok-4.5")]
    return score_runs(few, resamples=50)


@pytest.fixture(scope="session")
def ranked() -> Ranks:
    """Ranks of two quantities: one flat, one not."""
    rng = np.random.default_rng(0)
    ranks = np.column_stack([rng.integers(0, 64, 80), rng.integers(0, 16, 80)])
    return Ranks("port", ("port.build_onset", "log likelihood"), ranks, 63, np.zeros(80, np.int64))


@pytest.fixture(scope="session")
def draws() -> dict[str, np.ndarray]:
    """(chain, draw) of two parameters of the port."""
    rng = np.random.default_rng(1)
    return {"port.build_onset": rng.beta(12, 188, (2, 300)), "port.wait_sd": 2 + 0.05 * rng.normal(size=(2, 300))}


COVERAGE = {
    "level": 0.9,
    "plan": {"repeats": 50, "tapes": 20},
    "pooled_identifiable_transitions": {"parameters": 1, "coverage": 0.92},
    "parameters": [
        {
            "name": name,
            "transition": True,
            "identifiable": known,
            "coverage": c,
            "chance_low": 0.82,
            "chance_high": 0.98,
        }
        for name, known, c in (("port.build_onset", True, 0.92), ("demand.decline_persist", False, 0.7))
    ],
}
