"""The Gymnasium environments, on Gymnasium's own checker and against each other."""

from __future__ import annotations

import functools
import sys
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector.utils import batch_space

from stocktake_jax.agents import gym_env
from stocktake_jax.agents.gym_env import make_env, make_vector_env
from stocktake_jax.errors import InputError
from stocktake_jax.models import HORIZON, Tape
from tests.agents.test_functional import some_actions, stepping

COUNT = 3  # of every vector environment here, so that its step is compiled once


@functools.cache
def vector_env() -> Any:
    return make_vector_env(COUNT)


def test_the_checker_has_nothing_to_say() -> None:
    check_env(make_env().unwrapped, skip_render_check=True)
    check_env(make_env(rules="strict").unwrapped, skip_render_check=True)


class OneOf(gymnasium.Env):  # type: ignore[misc]
    """The first environment of a vector as a single one, for Gymnasium's checker."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    render_mode = None

    def __init__(self, vector: Any) -> None:
        self.vector = vector
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        shown, info = self.vector.reset(seed=seed, options=options)
        return {key: value[0] for key, value in shown.items()}, info

    def step(self, action: Any) -> Any:
        shown, reward, terminated, truncated, info = self.vector.step(np.stack([action] * self.vector.num_envs))
        first = {key: value[0] for key, value in shown.items()}
        return first, float(reward[0]), bool(terminated[0]), bool(truncated[0]), info


def test_the_checker_has_nothing_to_say_of_the_vector_environment() -> None:
    env = vector_env()
    check_env(OneOf(env), skip_render_check=True)
    shown, _ = env.reset(seed=1)
    assert env.observation_space.contains(shown) and env.action_space.contains(env.action_space.sample())
    assert env.observation_space == batch_space(env.single_observation_space, COUNT)
    shown, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    assert env.observation_space.contains(shown)
    assert reward.shape == terminated.shape == truncated.shape == (COUNT,)
    assert (reward.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)


class Functional(gymnasium.Env):  # type: ignore[misc]
    """The functional form as a Gymnasium environment, for Gymnasium's checker."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    render_mode = None

    def __init__(self) -> None:
        self.functional, self.step_jit = stepping("paper")
        template = make_env()
        self.observation_space, self.action_space = template.observation_space, template.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        with jax.enable_x64(True):
            shown, self.state = self.functional.reset_on(Tape.published(int(self.np_random.integers(2**20))))
        return {key: np.array(value) for key, value in shown.items()}, {}

    def step(self, action: Any) -> Any:
        with jax.enable_x64(True):
            out = self.step_jit(jax.random.key(0), self.state, np.asarray(action))
        self.state = out.state
        shown = {key: np.array(value) for key, value in out.observation.items()}
        return shown, float(out.reward), bool(out.terminated), bool(out.truncated), {}


def test_the_checker_has_nothing_to_say_of_the_functional_form() -> None:
    check_env(Functional(), skip_render_check=True)


@pytest.mark.parametrize("action", [np.zeros(8, int), np.zeros(9), np.full(9, -1), np.full(9, 500), "up", None])
def test_actions_outside_the_space_are_refused(action: Any) -> None:
    env = make_env()
    env.reset(seed=1)
    with pytest.raises(InputError, match="whole numbers"):
        env.step(action)
    assert env.unwrapped._episode.week == 0
    vector = vector_env()
    vector.reset(seed=1)
    with pytest.raises(InputError, match="whole numbers"):
        vector.step(action)


def test_bad_arguments_are_refused() -> None:
    for count in (0, True, "3", 2.0):
        with pytest.raises(InputError, match="number of environments"):
            make_vector_env(count)  # type: ignore[arg-type]
    for make in (lambda: make_env(rules="lax"), lambda: make_vector_env(2, rules="lax")):  # type: ignore[arg-type]
        with pytest.raises(InputError, match="rules"):
            make()
    with pytest.raises(InputError, match="as many seeds"):
        vector_env().reset(options={"tape_seeds": [1, 2]})
    with pytest.raises(InputError, match="as many seeds"):
        vector_env().reset(seed=[1, 2])
    for env in (make_env(), vector_env()):
        with pytest.raises(InputError, match="no option 'tape'"):
            env.reset(options={"tape": 1})


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    gym_env._classes.cache_clear()
    try:
        with pytest.raises(InputError, match=r"pip install 'stocktake-jax\[agents\]'"):
            make_env()
    finally:
        gym_env._classes.cache_clear()


def test_a_published_tape_gives_the_published_bills() -> None:
    env = make_env()
    env.reset(options={"tape_seed": 24})
    total, terminated, steps = 0.0, False, 0
    while not terminated:
        # Order-up-to 93 through qualified, as the floor: its total is published.
        position = env.unwrapped._episode.observe()["inventory_position"]
        action = [np.clip(93 - position, 0, 100), 0, 0, int(steps == 0), 0, 0, 0, 0, 0]
        _, reward, terminated, truncated, info = env.step(np.array(action))
        total, steps = total - reward, steps + 1
        assert not truncated and not info["refused"]
    from stocktake_jax.evaluation.published import published_references

    floor = next(r.floor for r in published_references() if r.seed == 24)
    assert steps == HORIZON and total == pytest.approx(floor, abs=0.05)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros(9, int))


def test_an_order_that_is_not_allowed_is_dropped_and_said() -> None:
    env = make_env()
    env.reset(seed=1)
    _, _, _, _, info = env.step(np.array([10, 0, 2, 0, 0, 0, 0, 0, 0]))
    assert info["refused"] and "backup has no live contract" in info["message"]
    assert info["cost_breakdown"]["shipping"] == 0


def test_the_vector_environment_is_many_single_ones() -> None:
    seeds = [0, 24, 157]
    vector, singles = vector_env(), [make_env() for _ in seeds]
    shown, _ = vector.reset(options={"tape_seeds": seeds})
    firsts = [env.reset(options={"tape_seed": seed})[0] for env, seed in zip(singles, seeds, strict=True)]
    assert vector.observation_space.contains(shown)
    actions = np.stack([some_actions(seed) for seed in seeds])
    for week in range(HORIZON):
        for key, value in shown.items():
            np.testing.assert_allclose(value, np.stack([f[key] for f in firsts]), rtol=1e-6, err_msg=f"{week} {key}")
        shown, rewards, terminated, truncated, info = vector.step(actions[:, week])
        outs = [env.step(action) for env, action in zip(singles, actions[:, week], strict=True)]
        firsts = [o[0] for o in outs]
        np.testing.assert_allclose(rewards, [o[1] for o in outs], atol=1e-6)
        assert terminated.tolist() == [o[2] for o in outs] and not truncated.any()
        assert info["refused"].tolist() == [o[4]["refused"] for o in outs]
    assert terminated.all()
    shown, rewards, terminated, _, _ = vector.step(actions[:, 0])
    assert not rewards.any() and not terminated.any() and (shown["week"] == 0).all()


def test_seeding_the_vector_environment_repeats_it() -> None:
    env, idle = vector_env(), np.zeros((COUNT, 9), int)

    def some(seed: Any) -> np.ndarray:
        env.reset(seed=seed)
        return np.stack([env.step(idle)[0]["pos_units"] for _ in range(3)], axis=1)

    np.testing.assert_array_equal(some(1), some(1))
    assert (some(1) != some(7)).any()
    # Environment i is the single one reset with seed + i, and a list gives each its own.
    np.testing.assert_array_equal(some([2, 3, 1]), np.roll(some(1), -1, axis=0))
    single = make_env()
    single.reset(seed=2)
    alone = [single.step(idle[0])[0]["pos_units"] for _ in range(3)]
    first = some(1)
    np.testing.assert_array_equal(first[1], alone)
    # Without a seed the generators go on, each as the single environment's does, and never over the same tape.
    later = some(None)
    single.reset()
    np.testing.assert_array_equal(later[1], [single.step(idle[0])[0]["pos_units"] for _ in range(3)])
    assert (later != first).any(axis=(1, 2)).all()
    some([1, 2, 3])
    np.testing.assert_array_equal(some(None), later)
