"""Calibration of filters: the true model is calibrated, a wrong one is not; scores by hand; chunks do not matter."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.inference import calibration, filter_factor
from stocktake_jax.inference.calibration import _stacked, _stated, calibrate, document_of, reliability_rows, rows
from stocktake_jax.models import FACTORS, Tape, World

KEY = jax.random.key(7)


@pytest.fixture(scope="module")
def found():
    true = World.paper()
    wrong = true.replace({"port.congest_persist": 0.2, "port.wait_sd": 6.0})
    return calibrate(
        {"true": true, "wrong": wrong}, 300, key=KEY, likelihoods=("exact",), initial="baseline", chunk=100
    )


def test_the_true_model_is_calibrated_and_scores_better(found):
    true, wrong = found["true", "exact"], found["wrong", "exact"]
    assert list(true) == list(FACTORS)
    for c in true.values():
        assert c.expected_calibration_error < 0.02
        for r in c.regimes:
            sure = r.count > 200
            assert np.all(np.abs(r.observed - r.stated)[sure] < 5 * r.standard_error[sure] + 1e-3)
    assert true["port"].log_score > wrong["port"].log_score + 3 * true["port"].log_score_se
    assert true["port"].brier < wrong["port"].brier
    assert wrong["port"].expected_calibration_error > 3 * true["port"].expected_calibration_error
    for n in set(FACTORS) - {"port"}:
        assert true[n].log_score == wrong[n].log_score


def test_scores_are_those_of_the_filter(found):
    world = World.paper()
    keys = [jax.random.fold_in(KEY, start) for start in (0, 100, 200)]
    chunks = [Tape.sample_batch(world, 100, key=k).snapped(world) for k in keys]
    tapes = jax.tree.map(lambda *x: np.concatenate(x), *chunks)
    readings = tapes.readings(world)["quality"]
    factor = world.quality
    log_scores, briers = [], []
    filtered = jax.jit(jax.vmap(lambda y: filter_factor(factor, y, "exact", "baseline").belief))(
        {c: np.asarray(y, np.float32) for c, y in readings.items()}
    )
    p = np.asarray(factor.regime_probabilities(filtered), np.float64)[:, 1:]
    labels = np.array([factor.labels.index(r.label) for r in factor.state_regimes])[tapes.states["quality"]][:, 1:]
    own = np.take_along_axis(p, labels[..., None], axis=2)[..., 0]
    log_scores, briers = np.log(own), ((p - np.eye(3)[labels]) ** 2).sum(2)
    c = found["true", "exact"]["quality"]
    assert c.impossible == 0
    np.testing.assert_allclose(c.log_score, log_scores.mean(), rtol=1e-5)
    np.testing.assert_allclose(c.log_score_se, log_scores.mean(1).std(ddof=1) / np.sqrt(300), rtol=1e-3)
    np.testing.assert_allclose(c.brier, briers.mean(), rtol=1e-5)
    drifting = c.regimes[1]
    bin_of = np.minimum((p[..., 1] * 10).astype(int), 9)
    for b in range(10):
        here = bin_of == b
        assert abs(drifting.count[b] - here.sum()) <= 1  # float32 may put an edge into the next bin
        if here.sum() > 20:
            np.testing.assert_allclose(drifting.observed[b], (labels == 1)[here].mean(), atol=0.02)


def test_tapes_are_counted_once_whatever_the_chunk():
    seen = []
    how = {"key": KEY, "likelihoods": ("exact",), "initial": "baseline", "chunk": 100}
    got = calibrate({"m": World.paper()}, 125, sourced=True, on_chunk=seen.append, **how)
    assert seen == [100, 125]
    for c in got["m", "exact"].values():
        for r in c.regimes:
            assert r.count.sum() == 125 * 26
    table = list(rows(got))
    assert [t["factor"] for t in table] == list(FACTORS)
    bins = list(reliability_rows(got))
    assert sum(b["weeks"] for b in bins if b["factor"] == "port" and b["regime"] == "clear") == 125 * 26
    assert document_of(got, 125) == {"study": "calibration", "tapes": 125, "scores": table, "reliability": bins}


def test_a_posterior_is_averaged_by_how_well_its_draws_explain_the_tape():
    worlds = [World.paper(), World.paper().replace({"port.congest_persist": 0.2, "port.wait_sd": 6.0})]
    tapes = Tape.sample_batch(worlds[0], 100, key=jax.random.fold_in(KEY, 0)).snapped(worlds[0])
    readings = {c: np.asarray(y, np.float32) for c, y in tapes.readings(worlds[0])["port"].items()}
    got = _stated(_stacked(worlds)["port"], {c: y.T for c, y in readings.items()}, "exact", "baseline")
    one = jax.jit(jax.vmap(lambda f, y: filter_factor(f, y, "exact", "baseline"), in_axes=(None, 0)))
    filtered = [one(w.port, readings) for w in worlds]
    evidence = np.cumsum([np.asarray(f.log_evidence, np.float64) for f in filtered], axis=-1)
    weight = np.exp(evidence - evidence.max(axis=0))
    p = np.array([w.port.regime_probabilities(f.belief) for w, f in zip(worlds, filtered, strict=True)])
    expected = (p * (weight / weight.sum(axis=0))[..., None]).sum(axis=0)
    np.testing.assert_allclose(got, np.moveaxis(expected, 0, -1), atol=1e-4)
    assert np.abs(expected - p.mean(axis=0)).max() > 0.1


def test_one_filter_serves_both_likelihoods_where_they_are_one_law(monkeypatch):
    asked = []

    def ignorant(draws, readings, likelihood, initial):
        asked.append((draws.name, likelihood))
        return np.full((27, len(draws.labels), 100), 1 / len(draws.labels), np.float32)

    monkeypatch.setattr(calibration, "_stated", ignorant)
    got = calibrate({"m": World.paper()}, 100, key=KEY, chunk=100)
    assert {n for n in FACTORS if asked.count((n, "exact")) == 0} == {"canal", "quality"}
    assert len(asked) == 6 + 4
    for by_factor in (got["m", "paper"], got["m", "exact"]):
        for c in by_factor.values():
            assert c.log_score == pytest.approx(-np.log(len(c.regimes)), rel=1e-6)
            assert [r.count.sum() for r in c.regimes] == [100 * 26] * len(c.regimes)


def test_sizes_are_checked():
    with pytest.raises(InputError, match="at least 2 tapes"):
        calibrate({"m": World.paper()}, 1, key=KEY)
    with pytest.raises(InputError, match="at least one draw"):
        calibrate({"m": []}, 10, key=KEY)
    with pytest.raises(InputError, match="needs a model"):
        calibrate({}, 10, key=KEY)
