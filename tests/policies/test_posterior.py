"""Parameter uncertainty as a state that never moves: filters are averages over draws, futures keep their draw."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.inference import filter_factor
from stocktake_jax.models import FACTORS, Tape, World
from stocktake_jax.policies.ensemble import OracleEnsemble
from stocktake_jax.policies.futures import from_belief, move_table, sample_futures
from stocktake_jax.policies.menu import risks
from stocktake_jax.policies.posterior import by_state, draws_of, laws, marginal, worlds_of
from stocktake_jax.policies.rollout import believe, planner
from stocktake_jax.policies.surrogate import tables

WORLD = World.paper()
DRAWS = [
    WORLD,
    WORLD.replace({"port.congest_persist": 0.5, "port.wait_sd": 4.0, "demand.mean_normal": 22.0}),
    WORLD.replace(
        {"quality.defect_out": 0.1, "freight.rate_spike": 3.0, "port.wait_blocked": 12.0, "quality.drift_onset": 0.3}
    ),
]
POSTERIOR = jax.tree.map(lambda *x: np.stack(x), *DRAWS)


def _mixed(factor: str, readings: Any) -> tuple[np.ndarray, np.ndarray]:
    """By the filters of the draws one by one: (week, state) beliefs weighed by evidence, (week,) total evidence."""
    filtered = [filter_factor(w.factors[factor], readings) for w in DRAWS]
    evidence = np.cumsum([np.asarray(f.log_evidence, np.float64) for f in filtered], axis=1)
    weight = np.exp(evidence - evidence.max(axis=0))
    total = np.log(weight.mean(axis=0)) + evidence.max(axis=0)
    weight /= weight.sum(axis=0)
    return np.einsum("dt,dts->ts", weight, np.stack([np.asarray(f.belief) for f in filtered])), total


def test_filters_average_over_the_posterior() -> None:
    tape = Tape.published(12, WORLD)
    readings = jax.tree.map(lambda x: np.asarray(x, np.float32), tape.readings(WORLD))
    p = planner(POSTERIOR)

    @jax.jit
    def run(predicted: Any, series: Any) -> Any:
        def week(predicted: Any, now: Any) -> Any:
            belief, ahead = believe(p, predicted, now, "paper")
            return ahead, (marginal(p.world, belief), risks(p.world, belief))

        return jax.lax.scan(week, predicted, series)[1]

    belief, asked = run(p.initial, readings)
    for n in FACTORS:
        expected, evidence = _mixed(n, readings[n])
        np.testing.assert_allclose(belief.posteriors[n], expected, atol=2e-5, err_msg=n)
        np.testing.assert_allclose(np.cumsum(belief.log_evidence[n]), evidence, atol=2e-3, err_msg=n)
    blocked = belief.posteriors["port"] @ jnp.asarray(WORLD.port.stress_mask, jnp.float32)
    np.testing.assert_allclose(asked.port, blocked, atol=1e-5)
    # What demand is expected depends on the draw and not on the state alone.
    assert np.all(np.asarray(asked.demand)[3:] > 19.0) and np.ptp(np.asarray(asked.demand)) > 1.0


def test_a_future_keeps_its_draw_and_moves_as_the_draw_does() -> None:
    count, weeks = 1 << 14, 6
    start, moves = laws(POSTERIOR, "uniform")
    table = move_table(POSTERIOR, {n: jnp.asarray(m, jnp.float32) for n, m in moves.items()})
    belief = {n: jnp.asarray(b, jnp.float32) for n, b in start.items()}
    key = jax.random.key_data(jax.random.key(5))
    paths = jax.jit(lambda b: sample_futures(table, b, key, jnp.int32(weeks), count, weeks))(belief)
    for k, n in enumerate(FACTORS):
        states = moves[n].shape[-1]
        draw, state = np.divmod(np.asarray(paths[:, k], int), states)
        assert np.all(draw == draw[0]), n
        assert np.all(np.bincount(draw[0], minlength=3) > count / 3 - 5 * np.sqrt(count / 4)), n
        for d in range(3):
            mine = state[:, draw[0] == d]
            at = start[n].reshape(3, states)[d] * 3
            expected = at @ np.linalg.matrix_power(moves[n][d], weeks)
            share = np.bincount(mine[-1], minlength=states) / mine.shape[1]
            assert np.all(np.abs(share - expected) < 5 * np.sqrt(expected / mine.shape[1]) + 1e-3), (n, d)


def test_tables_have_an_entry_for_every_draw_and_state() -> None:
    world = POSTERIOR
    t, own = tables(world), [tables(w) for w in DRAWS]
    for name in ("demand", "rate", "fill", "closed", "blocked", "defect"):
        np.testing.assert_array_equal(getattr(t, name), np.concatenate([getattr(o, name) for o in own]), err_msg=name)
    np.testing.assert_array_equal(t.defect[t.regime], np.concatenate([o.defect[o.regime] for o in own]))
    np.testing.assert_array_equal(t.base, own[0].base)
    means = by_state(POSTERIOR, lambda w: w.demand.means)
    np.testing.assert_allclose(means, np.concatenate([w.demand.means for w in DRAWS]), rtol=1e-6)


def test_many_states_are_drawn_like_few() -> None:
    word = jax.random.bits(jax.random.key(3), (4096,), jnp.uint32)
    few = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(40)), jnp.float32).at[7].set(0.0)
    many = jnp.concatenate([few, jnp.zeros(60, jnp.float32)])
    np.testing.assert_array_equal(from_belief(many, word), from_belief(few, word))
    # Words that fall on a bound exactly: no state of probability zero, whichever side it is on.
    bounds = jnp.array([0, 1 << 31, (1 << 32) - 1], jnp.uint32)
    for states in (40, 100):
        halves = jnp.zeros(states, jnp.float32).at[jnp.array([1, 3])].set(0.5)
        assert from_belief(halves, bounds).tolist() == [1, 3, 3]


def test_what_a_posterior_is() -> None:
    assert draws_of(WORLD) is None and draws_of(POSTERIOR) == 3
    assert [float(w.port.wait_sd) for w in worlds_of(POSTERIOR)] == [2.0, 4.0, 2.0]
    with pytest.raises(InputError, match="one leading axis of draws"):
        draws_of(WORLD.__class__(port=POSTERIOR.port))
    pair = jax.tree.map(lambda *x: np.stack(x), *DRAWS[:2])
    with pytest.raises(InputError, match="one leading axis of draws"):
        draws_of(dataclasses.replace(pair, port=POSTERIOR.port))
    with pytest.raises(InputError, match="equally many draws"):
        OracleEnsemble([WORLD, POSTERIOR])
    with pytest.raises(InputError, match="cannot be combined with ignored"):
        OracleEnsemble([POSTERIOR], ignored=[frozenset({"port"})])
