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


def outcome(label: str, difference: float, **more: Any) -> dict[str, Any]:
    """What a study says of a model, with intervals of 60 and 20 dollars around its difference."""
    numbers = {"difference": difference, "difference_se": 10.0, "low": difference - 30, "high": difference + 30}
    return (
        {"label": label, "parameter": "", "factor": None, "changes": {}, "values": False, "believed": {}}
        | numbers
        | more
    )


def believed(parameters: dict[str, float], difference: float, values: bool = True) -> dict[str, Any]:
    """What a study says of a model that has these values, or factors on the true values, of parameters of the port."""
    label = ", ".join(f"{name} {'= ' if values else 'x'}{number:g}" for name, number in parameters.items())
    factor = None if values or len(parameters) > 1 else next(iter(parameters.values()))
    model = {name: number if values else TRUTH[name] * number for name, number in parameters.items()}
    said = {"parameter": ", ".join(parameters), "factor": factor, "changes": parameters, "values": values}
    return outcome(label, difference, **said, believed=model)


WAIT, OUTLOOK = "port.wait_sd", "port.outlook_sd"
TRUTH = {WAIT: 2.0, OUTLOOK: 3.0}
TRUE = outcome("true model", 0.0, believed=TRUTH, difference_se=0.0, low=0.0, high=0.0)
IGNORED = [outcome(f"{n} ignored", 20.0 * i - 45.0) for i, n in enumerate(FACTORS)]
FACTORS_ON = [believed({WAIT: k}, 10 * k, values=False) for k in (0.25, 0.5, 2.0, 4.0)]
VALUES_OF = [believed({OUTLOOK: v}, 8 - v) for v in (2.0, 6.0)]
PAIRS = [
    believed({WAIT: a, OUTLOOK: b}, 50 * (a - 1) - 40 * (b - 1), values=False)
    for a in (1.0, 2.0)
    for b in (0.5, 1.0, 2.0)
]
HALVED = [outcome(f"stress of {n} x0.5", 5.0, parameter=f"stress of {n}", factor=0.5) for n in ("port", "demand")]


def misspecified(*outcomes: dict[str, Any]) -> dict[str, Any]:
    """The document of a study with these outcomes."""
    return {"study": "misspecify", "outcomes": [TRUE, *outcomes]}
