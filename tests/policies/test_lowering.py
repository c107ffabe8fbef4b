"""What runs on a GPU can be compiled for one: lowering for CUDA, which needs no device."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

from stocktake_jax.desk import Books, Decision, shocks, step
from stocktake_jax.inference.batch import filter_series
from stocktake_jax.models import HORIZON, Tape, World
from stocktake_jax.policies import Layout, Runs, Shown
from stocktake_jax.policies.oracle import decide_batch
from stocktake_jax.policies.rollout import assemble, planner

EPISODES, SHIPS, FUTURES = 3, 27, 5
WORLD = World.paper()


def lowered(function: Any, *arguments: Any) -> str:
    """The program that a CUDA device would be given."""
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def decision(layout: Layout) -> tuple[Any, tuple[Any, ...]]:
    """The oracle's week, and arguments of the right shapes."""
    p = planner(WORLD)
    predicted = {n: np.tile(np.asarray(x)[None], (EPISODES, 1)) for n, x in p.initial.items()}
    tapes = Tape.published_batch(range(EPISODES), WORLD)
    readings = jax.tree.map(lambda x: np.asarray(x[:, 1], np.float32), tapes.readings(WORLD))
    none = np.zeros((EPISODES, SHIPS), np.int32)
    live = np.tile(np.array([True, True, False]), (EPISODES, 1))
    shown = Shown(np.full(EPISODES, 80, np.int32), none, none, live, np.zeros(EPISODES, bool))
    runs = Runs(np.arange(EPISODES), np.ones(EPISODES, np.int64))
    week = functools.partial(decide_batch, most_futures=FUTURES, layout=layout, likelihood="paper")
    return week, (p, predicted, readings, shown, np.int32(1), runs.keys, np.full(EPISODES, FUTURES, np.int32))


@pytest.mark.parametrize("platform", ["gpu", "cpu"])
def test_the_decision_in_either_layout(platform: str) -> None:
    week, arguments = decision(Layout.choose(platform))
    text = lowered(week, *arguments)
    assert "module @jit" in text and f"tensor<{EPISODES}x104xf32>" in text


def test_planning_tables_of_many_worlds() -> None:
    worlds = [WORLD, WORLD.perturb("port.wait_sd", 2.0)]
    parts = [
        (
            w,
            {n: np.asarray(f.initial("uniform")) for n, f in w.factors.items()},
            {n: np.asarray(f.transition_matrix()) for n, f in w.factors.items()},
        )
        for w in worlds
    ]
    stacked = jax.tree.map(lambda *x: np.stack(x), *[(w, start, moves, moves) for w, start, moves in parts])
    assert "module @jit" in lowered(jax.vmap(assemble), *stacked)


def test_tapes_and_filters() -> None:
    keys = jax.random.split(jax.random.key(0), EPISODES)
    tapes = lowered(jax.vmap(lambda k: Tape.sample(WORLD, key=k)), keys)
    assert f"tensor<{EPISODES}x{HORIZON + 1}xf32>" in tapes
    readings = {"aql_result": np.zeros((HORIZON, EPISODES), np.float32)}
    filtered = lowered(lambda r: filter_series(WORLD.quality, r), readings)
    assert f"tensor<{HORIZON}x{len(WORLD.quality.states)}x{EPISODES}xf32>" in filtered


def test_books_in_double_precision() -> None:
    tapes = Tape.published_batch(range(EPISODES), WORLD)
    books = jax.tree.map(lambda x: np.broadcast_to(x, (EPISODES, *np.shape(x))), Books.start(WORLD))
    decisions = Decision.make(qty=np.full(EPISODES, 20), route=0, supplier=1)
    with jax.enable_x64(True):
        text = lowered(jax.vmap(lambda b, d, s: step(WORLD, b, d, s)), books, decisions, shocks(WORLD, tapes).week(1))
    assert f"tensor<{EPISODES}xf64>" in text
