"""What the exact law of the readings is worth to a filter, against the published normal densities."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.inference import compare_likelihoods, filter_factor, log_score, spot_alive_before
from stocktake_jax.models import Tape, World

KEY = 2024


@pytest.fixture(scope="module")
def world():
    return World.paper()


@pytest.fixture(scope="module")
def tapes(world):
    return Tape.sample_batch(world, 2000, key=jax.random.key(KEY)).snapped(world)


def first(tapes, count):
    return jax.tree.map(lambda x: x[:count], tapes)


def check(results, tapes):
    for name, r in results.items():
        assert r.tapes == tapes
        np.testing.assert_allclose(r.exact - r.paper, r.difference, atol=1e-12)
        if name in ("canal", "quality"):  # nothing is rounded there, and the two laws are one
            assert r.difference == r.standard_error == 0.0
        elif name in ("supplier", "port"):
            assert r.difference > 2 * r.standard_error > 0
        else:
            assert r.difference > -2 * r.standard_error
            assert 0 < r.standard_error < 1e-4
    assert 0.02 < results["supplier"].difference < 0.4
    assert 0.001 < results["port"].difference < 0.006


CHUNK = 400  # one shape for all tests of this file, so that the two laws of six factors are compiled once


def test_exact_knows_more(world, tapes):
    results = compare_likelihoods(world, tapes, initial="baseline", chunk=CHUNK)
    check(results, 2000)
    assert abs(results["supplier"].difference - 0.28) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("sourced", [False, True])
@pytest.mark.parametrize("initial", ["uniform", "baseline"])
def test_exact_knows_more_from_both_starts_and_with_fill(world, tapes, initial, sourced):
    results = compare_likelihoods(world, tapes, initial=initial, sourced=sourced, chunk=CHUNK)
    check(results, 2000)
    if not sourced:
        assert abs(results["supplier"].difference - 0.28) < 0.01


def test_the_comparison_is_the_mean_of_the_scores(world, tapes):
    """By hand for one factor: log posterior of the true regime, weeks 1 .. 26; the last chunk is not a full one."""
    count = CHUNK + 7
    few = first(tapes, count)
    results = compare_likelihoods(world, few, initial="baseline", sourced=True, chunk=CHUNK)
    supplier, readings = world.supplier, few.readings(world, spot_alive_before(world, few))["supplier"]
    labels = [[supplier.state_regimes[s].label for s in path] for path in few.states["supplier"]]
    pool = np.array([[supplier.mask(label=label) for label in path] for path in labels])
    scores = {}
    with jax.enable_x64(True):
        for kind in ("paper", "exact"):
            read = jax.vmap(lambda y, kind=kind: filter_factor(supplier, y, kind, "baseline").belief)
            belief = np.asarray(jax.jit(read)(readings))
            scores[kind] = np.log((belief * pool).sum(axis=2)[:, 1:]).mean(axis=1)
    difference = scores["exact"] - scores["paper"]
    assert results["supplier"].tapes == count
    np.testing.assert_allclose(results["supplier"].paper, scores["paper"].mean(), rtol=1e-10)
    np.testing.assert_allclose(results["supplier"].difference, difference.mean(), rtol=1e-8)
    np.testing.assert_allclose(results["supplier"].standard_error, difference.std(ddof=1) / np.sqrt(count), rtol=1e-8)


def test_log_score_of_one_series(world, tapes):
    readings = jax.tree.map(lambda x: np.asarray(x[0], np.float32), tapes.readings(world)["port"])
    states = tapes.states["port"][0]
    scores = np.asarray(log_score(world.port, readings, states, "exact", "baseline"))
    assert scores.shape == (27,)
    assert scores[0] == 0.0
    assert (scores <= 1e-6).all()


def test_spot_is_sourced_until_the_week_of_its_death(world):
    supplier = world.supplier
    path = [supplier.index(*s) for s in [("reliable",), ("degraded",), ("defunct", 0), ("defunct", 1), ("defunct", 1)]]
    tape = Tape({"supplier": np.array(path)}, {}, {})
    assert spot_alive_before(world, tape).tolist() == [False, True, True, False, False]


def test_too_few_tapes_are_refused(world, tapes):
    with pytest.raises(InputError, match="at least 2"):
        compare_likelihoods(world, first(tapes, 1))
    with pytest.raises(InputError, match="leading axis"):
        compare_likelihoods(world, jax.tree.map(lambda x: x[0], tapes))
    with pytest.raises(InputError, match="chunk must be at least 1, not 0"):
        compare_likelihoods(world, first(tapes, 3), chunk=0)
