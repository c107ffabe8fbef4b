"""The functional environment against the agent's own desk, and under JAX's transformations."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stocktake_jax.agents.functional import ACTION_SIZES, FIELDS, SHOWN, Stocktake, action_sizes, encode
from stocktake_jax.desk import ROUTES, SUPPLIERS, TERMS, Episode, Refusal
from stocktake_jax.desk.contracts import ACTIONS
from stocktake_jax.models import HORIZON, Tape, World


def some_actions(seed: int) -> np.ndarray:
    """26 random actions, mostly such that orders can go through."""
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, ACTION_SIZES, (HORIZON, len(ACTION_SIZES)))
    actions[:, FIELDS.index("qty")] = rng.integers(0, 50, HORIZON)
    actions[:, FIELDS.index("action")] *= rng.integers(0, 4, HORIZON) == 0
    actions[:, FIELDS.index("lock_weeks")] *= rng.integers(0, 5, HORIZON) == 0
    return actions


def on_the_desk(episode: Episode, action: np.ndarray) -> tuple[dict[str, Any], bool]:
    """An action through the agent's tools; whether its order had to be dropped."""
    entry = dict(zip(FIELDS, action.tolist(), strict=True))
    if entry["lock_weeks"]:
        episode.lock_freight(entry["lock_weeks"])
    if entry["air"]:
        episode.expedite_air(entry["air"])
    if entry["inspect"]:
        episode.inspect_batch()
    contract: dict[str, Any] = {}
    if entry["action"]:
        contract = {
            "contract_action": ACTIONS[entry["action"] - 1],
            "contract_supplier": SUPPLIERS[entry["contract_supplier"]],
        }
        if entry["terms"] and contract["contract_action"] != "lapse":
            contract["contract_terms"] = TERMS[entry["terms"] - 1]
    order = (ROUTES[entry["route"]], SUPPLIERS[entry["supplier"]]) if entry["qty"] else (None, None)
    try:
        return episode.place_order("x", entry["qty"], *order, **contract), False
    except Refusal:
        return episode.place_order("x", 0, **contract), True


@functools.cache
def stepping(rules: str) -> tuple[Stocktake, Any]:
    """An environment and its compiled step."""
    env = Stocktake.paper(rules)
    return env, jax.jit(env.step)


@functools.cache
def batch_of_fresh() -> tuple[Any, Any]:
    """Reset and step of `COUNT` episodes, compiled."""
    env = Stocktake.paper()
    return jax.jit(jax.vmap(env.reset)), jax.jit(jax.vmap(env.step))


COUNT = 16


@pytest.mark.parametrize("rules", ["paper", "strict"])
@pytest.mark.parametrize("seed", [0, 24, 157])
def test_it_is_the_same_episode_as_the_agents(seed: int, rules: str) -> None:
    episode = Episode(seed, rules=rules)
    refusals = 0
    with jax.enable_x64(True):
        env, step = stepping(rules)
        shown, state = env.reset_on(Tape.published(seed))
        for week, action in enumerate(some_actions(seed)):
            for key, value in encode(episode.observe()).items():
                np.testing.assert_allclose(np.asarray(shown[key]), value, rtol=1e-6, err_msg=f"week {week} {key}")
            before = episode.cost
            _, refused = on_the_desk(episode, action)
            out = step(jax.random.key(week), state, jnp.asarray(action))
            shown, state = out.observation, out.state
            assert bool(out.info["refused"]) == refused
            assert float(out.reward) == pytest.approx(before - episode.cost, abs=1e-6)
            assert bool(out.terminated) == episode.done and not bool(out.truncated)
            refusals += refused
    assert 0 < refusals < HORIZON


def test_a_batch_of_fresh_episodes_under_jit_and_vmap() -> None:
    reset, step = batch_of_fresh()
    keys = jax.random.split(jax.random.key(1), COUNT)
    shown, state = reset(keys)
    action = jnp.zeros((COUNT, len(ACTION_SIZES)), jnp.int32).at[:, 0].set(20).at[:, 2].set(1)
    total = jnp.zeros(COUNT)
    for _ in range(HORIZON):
        out = step(keys, state, action)
        state, total = out.state, total + out.reward
    assert bool(out.terminated.all()) and len(set(np.asarray(total).tolist())) == COUNT
    again = step(keys, state, action)  # after the end nothing changes any more
    assert not np.asarray(again.reward).any()
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), again.state.books, state.books))
    assert set(shown) == set(SHOWN)
    assert all(value.dtype == jnp.float32 and value.shape == (COUNT, SHOWN[key][0]) for key, value in shown.items())


def test_an_episode_does_not_depend_on_its_batch() -> None:
    reset, step = batch_of_fresh()
    keys = jax.random.split(jax.random.key(3), COUNT)
    turned = jnp.roll(keys, 1, axis=0)
    actions = jnp.asarray(np.stack([some_actions(i)[0] for i in range(COUNT)]))
    one = step(keys, reset(keys)[1], actions)
    other = step(turned, reset(turned)[1], jnp.roll(actions, 1, axis=0))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.roll(a, 1, axis=0), b)


@pytest.mark.slow
def test_one_episode_and_a_batch_of_one_agree() -> None:
    env, key = Stocktake.paper(), jax.random.key(3)
    _, state = jax.jit(env.reset)(key)
    _, states = jax.jit(jax.vmap(env.reset))(key[None])
    action = jnp.asarray(some_actions(1)[0])
    one = jax.jit(env.step)(key, state, action)
    many = jax.jit(jax.vmap(env.step))(key[None], states, action[None])
    assert float(one.reward) == pytest.approx(float(many.reward[0]), rel=1e-6)


def test_observations_stay_within_their_bounds() -> None:
    reset, step = batch_of_fresh()
    for batch in range(3):
        keys = jax.random.split(jax.random.key(batch), COUNT)
        shown, state = reset(keys)
        actions = np.stack([some_actions(COUNT * batch + i) for i in range(COUNT)])
        for week in range(HORIZON):
            for key, (_, low, high) in SHOWN.items():
                assert bool(((shown[key] >= low) & (shown[key] <= high)).all()), (week, key)
            out = step(keys, state, jnp.asarray(actions[:, week]))
            shown, state = out.observation, out.state


def test_sizes_follow_the_world() -> None:
    small = World.paper().replace({"logistics.order_cap": 30, "logistics.air_cap": 5})
    assert action_sizes(small)[0] == 31 and action_sizes(small)[FIELDS.index("air")] == 6
    assert action_sizes() == ACTION_SIZES
