"""Small pieces under pytest-benchmark, to compare two versions: `pytest benchmarks --benchmark-autosave`.

Not part of the tests (pyproject's `testpaths`), nor of the committed tables.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from stocktake_jax.evaluation.catalog import published_seeds
from stocktake_jax.evaluation.simulate import simulate
from stocktake_jax.inference.batch import filter_series
from stocktake_jax.models import Tape, World
from stocktake_jax.policies import BaseStock, Oracle, Runs

WORLD = World.paper()


def test_a_published_tape(benchmark: Any) -> None:
    """One tape from Python's generator."""
    benchmark(Tape.published, 1, WORLD)


def test_fifty_episodes(benchmark: Any) -> None:
    """The oracle on every seed once, warm."""
    seeds = published_seeds()
    tapes, runs = Tape.published_batch(seeds, WORLD), Runs(np.array(seeds), np.ones(len(seeds), np.int64))
    benchmark(lambda: simulate(Oracle(WORLD), tapes, runs, np.arange(len(seeds)), WORLD))


def test_fifty_floors(benchmark: Any) -> None:
    """Books and readings without a planner."""
    seeds = published_seeds()
    tapes, runs = Tape.published_batch(seeds, WORLD), Runs(np.array(seeds), np.ones(len(seeds), np.int64))
    benchmark(lambda: simulate(BaseStock(WORLD), tapes, runs, np.arange(len(seeds)), WORLD))


def test_a_filter_of_a_thousand_series(benchmark: Any) -> None:
    """The largest factor."""
    readings = Tape.published_batch(range(1000), WORLD).readings(WORLD)["quality"]
    by_week = jax.tree.map(lambda x: np.asarray(x, np.float32).T, readings)
    run = jax.jit(lambda r: filter_series(WORLD.quality, r))
    benchmark(lambda: jax.block_until_ready(run(by_week)))
