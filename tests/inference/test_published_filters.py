"""The filters against the reference file: regime posteriors and evidence of 12 seeds, idle and sourcing spot."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from stocktake_jax.inference import Belief, filter_world, spot_alive_before
from stocktake_jax.models import Tape, World

DATA = Path(__file__).parent.parent / "data" / "filters.jsonl.gz"


@pytest.fixture(scope="module")
def rows():
    with gzip.open(DATA, "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def world():
    return World.paper()


@pytest.fixture(scope="module")
def readings(rows, world):
    """factor -> channel -> (row, week): the readings under each row's policy."""
    tapes = Tape.published_batch([row["seed"] for row in rows], world)
    ordering = np.array([row["policy"] == "spot20" for row in rows])[:, None]
    return tapes.readings(world, spot_alive_before(world, tapes) & ordering)


def filter_batch(world, readings):
    return jax.jit(jax.vmap(lambda r: filter_world(world, r, "paper", "uniform")))(readings)


def compare(rows, world, results, posterior_atol, evidence_rtol):
    assert len(rows) == 24
    for name, factor in world.factors.items():
        filtered = results[name]
        pooled = np.asarray(factor.regime_probabilities(filtered.belief), np.float64)
        evidence = np.exp(np.asarray(filtered.log_evidence, np.float64))
        assert (np.asarray(filtered.status) == -1).all()
        for i, row in enumerate(rows):
            assert len(row["weeks"]) == pooled.shape[1] == 27
            wanted = np.array([[week[name]["regime"][label] for label in factor.labels] for week in row["weeks"]])
            assert all(len(week[name]["regime"]) == len(factor.labels) for week in row["weeks"])
            np.testing.assert_allclose(pooled[i], wanted, rtol=0, atol=posterior_atol)
            wanted = [week[name]["evidence"] for week in row["weeks"]]
            np.testing.assert_allclose(evidence[i], wanted, rtol=evidence_rtol)


def test_float32(rows, world, readings):
    results = filter_batch(world, readings)
    assert results["port"].belief.dtype == np.float32
    compare(rows, world, results, 1e-6, 1e-6)


def test_float64(rows, world, readings):
    with jax.enable_x64(True):
        results = filter_batch(world, readings)
        assert results["port"].belief.dtype == np.float64
        compare(rows, world, results, 1e-10, 1e-10)


@pytest.mark.parametrize(("likelihood", "initial"), [("paper", "uniform"), ("exact", "baseline")])
def test_the_joint_belief_week_by_week_equals_the_filters(world, readings, likelihood, initial):
    series = jax.tree.map(lambda x: np.asarray(x[1], np.float32), readings)

    @jax.jit
    def at_once(world, series):
        return filter_world(world, series, likelihood, initial)

    @jax.jit
    def week_by_week(world, series):
        first = Belief.first(world, jax.tree.map(lambda x: x[0], series), likelihood, initial)

        def step(belief, reading):
            belief = belief.update(world, reading, likelihood)
            return belief, belief

        _, later = jax.lax.scan(step, first, jax.tree.map(lambda x: x[1:], series))
        return first, later, later.regimes(world), later.stress(world)

    filtered = at_once(world, series)
    first, later, regimes, stress = week_by_week(world, series)
    for name, factor in world.factors.items():
        np.testing.assert_allclose(first.posteriors[name], filtered[name].belief[0], atol=1e-6)
        np.testing.assert_allclose(first.log_evidence[name], filtered[name].log_evidence[0], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(later.posteriors[name], filtered[name].belief[1:], atol=2e-6)
        np.testing.assert_allclose(later.log_evidence[name], filtered[name].log_evidence[1:], rtol=1e-5, atol=1e-5)
        pooled = np.asarray(later.posteriors[name])
        for label, p in zip(factor.labels, np.asarray(regimes[name]).T, strict=True):
            np.testing.assert_allclose(p, pooled[:, factor.mask(label=label)].sum(axis=1), atol=1e-6)
        np.testing.assert_allclose(stress[name], pooled[:, factor.stress_mask].sum(axis=1), atol=1e-6)
        if initial == "baseline":
            np.testing.assert_allclose(first.log_evidence[name], 0.0, atol=1e-6)
            assert first.posteriors[name][0] == 1.0
