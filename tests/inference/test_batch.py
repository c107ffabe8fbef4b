"""Filters of many series at once against the filter of each, and streams of fresh tapes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.inference import FINE, filter_factor
from stocktake_jax.inference.batch import Moves, filter_series, sample_and_filter
from stocktake_jax.models import FACTORS, HORIZON, Branch, Channel, Discrete, Tape, World
from stocktake_jax.models.factor import Factor, Regime, branch

SERIES, WEEKS = 5, 12
WORLD = World.paper()


def readings_of(name: str, seed: int = 3) -> dict[str, np.ndarray]:
    """(week, series) readings of a factor, some of them missing."""
    tapes = Tape.published_batch(range(seed, seed + SERIES), WORLD)
    sourced = np.random.default_rng(0).random((SERIES, HORIZON + 1)) < 0.6
    rng = np.random.default_rng(seed)
    out = {}
    for channel, series in tapes.readings(WORLD, sourced)[name].items():
        y = np.asarray(series, np.float64)[:, :WEEKS].T.copy()
        y[rng.random(y.shape) < 0.1] = np.nan
        out[channel] = y
    return out


def one_by_one(factor: Factor, readings: dict[str, np.ndarray], likelihood: Any, initial: Any) -> Any:
    """The filter that is the definition, of each series."""
    return jax.jit(jax.vmap(lambda r: filter_factor(factor, r, likelihood, initial), in_axes=-1, out_axes=-1))(readings)


@pytest.mark.parametrize(
    ("name", "likelihood", "initial"),
    [(name, "paper", "uniform") for name in FACTORS]
    # The exact law differs in kind for these: a row of discrete values, frozen values, a double rounding.
    + [(name, "exact", "baseline") for name in ("supplier", "freight")],
)
def test_the_same_as_series_by_series(name: str, likelihood: Any, initial: Any) -> None:
    factor, readings = WORLD.factors[name], readings_of(name)
    with jax.enable_x64(True):
        wanted = one_by_one(factor, readings, likelihood, initial)
        got = jax.jit(lambda r: filter_series(factor, r, likelihood, initial))(readings)
    assert got.belief.shape == (WEEKS, len(factor.states), SERIES) and got.belief.dtype == np.float64
    assert (got.status == wanted.status).all() and (got.status == FINE).all()
    for part in ("belief", "log_evidence"):
        np.testing.assert_allclose(getattr(got, part), getattr(wanted, part), rtol=1e-11, atol=1e-13, err_msg=part)


def test_single_precision() -> None:
    for name in ("quality", "freight"):
        factor = WORLD.factors[name]
        readings = {k: np.asarray(y, np.float32) for k, y in readings_of(name).items()}
        got = jax.jit(lambda r, f=factor: filter_series(f, r))(readings)
        wanted = one_by_one(factor, readings, "paper", "uniform")
        assert got.belief.dtype == np.float32
        np.testing.assert_allclose(got.belief, wanted.belief, atol=2e-6)
        np.testing.assert_allclose(got.log_evidence, wanted.log_evidence, atol=2e-5, rtol=2e-6)


@pytest.mark.parametrize("name", FACTORS)
def test_moves_are_the_transition_matrix(name: str) -> None:
    factor = WORLD.factors[name]
    with jax.enable_x64(True):
        moves, matrix = Moves.of(factor, np.float64), factor.transition_matrix()
        np.testing.assert_allclose(moves(jnp.eye(len(matrix))), matrix.T, atol=1e-15)
    entered = [factor.states[i] for i in moves.entered]
    # What can be entered is a regime's first age, or its last one where that stays.
    last = {r.name: r.ages - 1 for r in factor.regimes}
    assert all(s.age in (0, last[s.regime]) for s in entered)
    assert len(entered) < len(factor.states)


def test_moves_follow_the_declaration_where_a_probability_is_zero() -> None:
    world = WORLD.replace({"port.customs_onset": 0.0})
    assert Moves.of(world.port).entered == Moves.of(WORLD.port).entered


def test_worlds_can_be_vmapped() -> None:
    """Traced parameters: the filter of each world is that world's."""
    worlds = [WORLD.perturb("quality.drift_onset", by) for by in (0.5, 1.0, 2.0)]
    readings = readings_of("quality")
    with jax.enable_x64(True):
        stacked = jax.tree.map(lambda *x: np.stack(x), *[w.quality for w in worlds])
        got = jax.jit(jax.vmap(lambda f: filter_series(f, readings)))(stacked)
        for i, world in enumerate(worlds):
            wanted = filter_series(world.quality, readings)
            np.testing.assert_allclose(got.belief[i], wanted.belief, rtol=1e-9, atol=1e-12)
    assert not np.allclose(got.belief[0], got.belief[2], atol=1e-3)


def test_an_impossible_reading_is_flagged_and_changes_no_belief() -> None:
    readings = {"suez_count": np.full((4, 2), 70.0), "bab_count": np.full((4, 2), 70.0)}
    readings["suez_count"][2, 1] = 1.0
    with jax.enable_x64(True):
        got = filter_series(WORLD.canal, readings)
        ahead = Moves.of(WORLD.canal, np.float64)(got.belief[1])
    assert got.status.tolist() == [FINE, 2]
    assert np.isneginf(got.log_evidence).tolist() == [[False, False]] * 2 + [[False, True], [False, False]]
    np.testing.assert_allclose(got.belief[2, :, 1], ahead[:, 1], rtol=1e-12)
    assert not np.allclose(got.belief[2, :, 0], ahead[:, 0], atol=1e-3)
    assert np.isfinite(got.belief).all()


class Whisper(Discrete):
    """A kind of channel of a user's own."""

    def log_prob(self, reading: Any, likelihood: Any) -> Any:
        return 0.5 * super().log_prob(reading, likelihood)


class Coin(Factor):
    """Two regimes and a channel that the package does not know."""

    name = "coin"

    @property
    def regimes(self) -> tuple[Regime, ...]:
        return Regime("heads"), Regime("tails", 2)

    def moves(self, regime: str, age: int) -> Branch | str:
        return branch((0.3, "tails" if regime == "heads" else "heads"), otherwise="(stay)")

    def channels(self) -> tuple[Channel, ...]:
        values, probs = np.array([[0.0, 1.0]] * 3), np.array([[0.8, 0.2], [0.4, 0.6], [0.1, 0.9]])
        return (Whisper("side", values, probs),)


def test_a_factor_of_ones_own() -> None:
    readings = {"side": (np.random.default_rng(1).random((WEEKS, SERIES)) < 0.5).astype(np.float64)}
    with jax.enable_x64(True):
        wanted = one_by_one(Coin(), readings, "paper", "uniform")
        got = filter_series(Coin(), readings)
    np.testing.assert_allclose(got.belief, wanted.belief, rtol=1e-11)
    np.testing.assert_allclose(got.log_evidence, wanted.log_evidence, rtol=1e-11)


@pytest.mark.parametrize(
    ("readings", "says"),
    [
        ({"aql_result": np.zeros((0, 3))}, r"\(week, series\)"),
        ({"aql": np.zeros((3, 3))}, "aql_result"),
        ({}, "no readings"),
    ],
)
def test_what_are_no_readings(readings: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        filter_series(WORLD.quality, readings)


# ---- streams --------------------------------------------------------------------------------------------------------

KEY = jax.random.key(5)


@pytest.fixture(scope="module")
def tapes() -> Tape:
    """Seven tapes, sampled three at a time, as the streams below do."""
    parts = [Tape.sample_batch(WORLD, 3, key=KEY, start=start) for start in (0, 3, 6)]
    return jax.tree.map(lambda *x: np.concatenate(x)[:7], *parts)


def test_a_stream_is_its_tapes(tapes: Tape) -> None:
    """Seven tapes in chunks of three: the statistics of the filters of each, and nothing of the two beyond."""
    summary = sample_and_filter(WORLD, 7, key=KEY, chunk=3)
    assert (summary.tapes, summary.chunk) == (7, 3)
    readings = tapes.readings(WORLD)
    for name, factor in WORLD.factors.items():
        table, scale = (np.asarray(x, np.float64) for x in jax.vmap(factor.log_likelihood)(readings[name]))
        label = np.array([factor.labels.index(r.label) for r in factor.state_regimes])
        matrix, predicted = np.asarray(factor.transition_matrix()), np.asarray(factor.initial("uniform"))[None]
        evidence, truth = scale.sum(axis=1), np.zeros(7)
        for week in range(HORIZON + 1):
            joint = predicted * np.exp(table[:, week])
            evidence += np.log(joint.sum(axis=1))
            belief = joint / joint.sum(axis=1, keepdims=True)
            predicted = belief @ matrix
            if week:
                true = label == label[np.asarray(tapes.states[name])[:, week, None]]
                truth += (belief * true).sum(axis=1) / HORIZON
        assert summary.log_evidence[name] == pytest.approx(evidence.mean(), rel=1e-5)
        assert summary.log_evidence_se[name] == pytest.approx(evidence.std(ddof=1) / 7**0.5, rel=1e-3)
        assert summary.truth[name] == pytest.approx(truth.mean(), abs=1e-5)
        assert summary.truth_se[name] == pytest.approx(truth.std(ddof=1) / 7**0.5, rel=1e-3, abs=1e-7)
        assert summary.impossible[name] == 0


@pytest.mark.slow
def test_the_chunk_changes_no_statistic() -> None:
    """Slow for its compilations, one of every size."""
    whole, parts = (sample_and_filter(WORLD, 7, key=KEY, chunk=chunk) for chunk in (None, 2))
    assert (whole.chunk, parts.chunk) == (7, 2)
    for field in ("log_evidence", "log_evidence_se", "truth", "truth_se"):
        for name in FACTORS:
            assert getattr(whole, field)[name] == pytest.approx(getattr(parts, field)[name], rel=1e-5)


def test_a_wrong_model_has_less_evidence() -> None:
    model = WORLD.perturb("port.build_onset", 4.0)
    right, wrong = (sample_and_filter(WORLD, 60, key=jax.random.key(1), model=m, chunk=3) for m in (None, model))
    assert wrong.log_evidence["port"] < right.log_evidence["port"]
    assert wrong.log_evidence["canal"] == right.log_evidence["canal"]


def test_the_chunk_follows_from_the_memory() -> None:
    few = sample_and_filter(WORLD, 7, key=KEY, memory=140_000)
    assert few.chunk == 3 and few.tapes == 7
    for count, options in ((0, {}), (3, {"chunk": 0}), (3, {"memory": 10})):
        with pytest.raises(InputError, match="at least 1"):
            sample_and_filter(WORLD, count, key=KEY, **options)
