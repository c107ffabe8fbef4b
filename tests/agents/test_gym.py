"""The Gymnasium environments, on Gymnasium's own checker and against each other."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from stocktake_jax.agents.gym_env import make_env, make_vector_env
from stocktake_jax.models import HORIZON
from tests.agents.test_functional import some_actions


def test_the_checker_has_nothing_to_say() -> None:
    check_env(make_env().unwrapped, skip_render_check=True)


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
    vector, singles = make_vector_env(3), [make_env() for _ in seeds]
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
    def some(seed: int | None) -> np.ndarray:
        env = make_vector_env(4)
        env.reset(seed=seed)
        out = [env.step(env.action_space.sample() * 0)[0]["pos_units"] for _ in range(3)]
        return np.stack(out)

    np.testing.assert_array_equal(some(1), some(1))
    assert (some(1) != some(2)).any()
