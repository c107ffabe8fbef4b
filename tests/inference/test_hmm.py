"""Random chains of 2 to 50 states against plain numpy, and the corners: impossible readings, extremes, shapes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from stocktake_jax.errors import InputError
from stocktake_jax.inference import (
    FINE,
    Chain,
    forecast,
    forward,
    log_evidence,
    most_probable_path,
    require_possible,
    sample_path,
    smooth,
)

WEEKS = 20


def random_chain(states: int, seed: int, weeks: int = WEEKS, sparse: float = 0.4, spread: float = 3.0) -> Chain:
    """A chain with structural zeros (in the start as well) and some missing weeks; everything stays possible."""
    rng = np.random.default_rng(seed)
    matrix = rng.exponential(size=(states, states)) * (rng.random((states, states)) > sparse)
    matrix[np.arange(states), rng.permutation(states)] += 0.5
    law = rng.exponential(size=states) * (rng.random(states) > sparse)
    law[rng.integers(states)] += 0.5
    table = spread * rng.normal(size=(weeks, states))
    table[rng.random(weeks) < 0.2] = 0.0
    return Chain(law / law.sum(), matrix / matrix.sum(axis=1, keepdims=True), table, rng.normal(size=weeks))


def numpy_inference(c: Chain) -> dict[str, np.ndarray]:
    """Filter, smoother and Viterbi in the log domain, with loops."""
    with np.errstate(divide="ignore"):
        law, matrix = np.log(c.initial), np.log(c.transition)
    weeks, n = c.log_likelihood.shape
    alpha = [law + c.log_likelihood[0]]
    delta, origins = [law + c.log_likelihood[0]], []
    for t in range(1, weeks):
        alpha.append(special.logsumexp(alpha[-1][:, None] + matrix, axis=0) + c.log_likelihood[t])
        candidates = delta[-1][:, None] + matrix
        origins.append(candidates.argmax(axis=0))
        delta.append(candidates.max(axis=0) + c.log_likelihood[t])
    beta = [np.zeros(n)]
    for t in range(weeks - 1, 0, -1):
        beta.append(special.logsumexp(matrix + c.log_likelihood[t] + beta[-1], axis=1))
    totals = np.array([special.logsumexp(a) for a in alpha])
    joint = np.array(alpha) + np.array(beta[::-1])
    path = [int(delta[-1].argmax())]
    for back in reversed(origins):
        path.append(int(back[path[-1]]))
    return {
        "belief": np.exp(np.array(alpha) - totals[:, None]),
        "log_evidence": np.diff([0.0, *totals]) + c.log_scale,
        "smoothed": np.exp(joint - totals[-1]),
        "path": np.array(path[::-1]),
        "log_probability": delta[-1].max() + c.log_scale.sum(),
    }


def single(c: Chain) -> Chain:
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), c)


infer = jax.jit(lambda c: (forward(c), smooth(c), most_probable_path(c), log_evidence(c)))


@pytest.mark.parametrize("states", [2, 7, 50])
def test_random_chains_agree_with_numpy(states):
    for seed in range(10):
        c = random_chain(states, seed)
        wanted = numpy_inference(c)
        with jax.enable_x64(True):
            filtered, smoothed, path, total = infer(c)
        np.testing.assert_allclose(filtered.belief, wanted["belief"], rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(filtered.log_evidence, wanted["log_evidence"], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(smoothed.belief, wanted["smoothed"], rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(total, wanted["log_evidence"].sum(), rtol=1e-11)
        np.testing.assert_array_equal(path.states, wanted["path"])
        np.testing.assert_allclose(path.log_probability, wanted["log_probability"], rtol=1e-11)
        np.testing.assert_allclose(filtered.predicted[0], c.initial)
        np.testing.assert_allclose(filtered.predicted[1:], wanted["belief"][:-1] @ c.transition, rtol=1e-9, atol=1e-14)

        filtered, smoothed, path, total = infer(single(c))
        np.testing.assert_allclose(filtered.belief, wanted["belief"], atol=2e-5)
        np.testing.assert_allclose(smoothed.belief, wanted["smoothed"], atol=2e-5)
        np.testing.assert_allclose(total, wanted["log_evidence"].sum(), rtol=1e-5)
        np.testing.assert_allclose(path.log_probability, wanted["log_probability"], rtol=1e-5)


def test_strong_readings_keep_float32_right():
    """Weekly likelihood ratios of e^40, more than the sharpest channel of the six factors has."""
    for seed in range(20):
        c = random_chain(7, seed, sparse=0.6, spread=15.0)
        wanted = numpy_inference(c)
        filtered, smoothed, path, total = infer(single(c))
        np.testing.assert_allclose(filtered.belief, wanted["belief"], atol=5e-5)
        np.testing.assert_allclose(smoothed.belief, wanted["smoothed"], atol=5e-5)
        np.testing.assert_allclose(total, wanted["log_evidence"].sum(), rtol=1e-5)
        np.testing.assert_array_equal(path.states, wanted["path"])


def test_absurd_readings_give_no_nan():
    """Ratios of e^1000: float32 forgets states below 1e-38, and still every belief is a law and nothing is flagged."""
    for seed in range(20):
        filtered, smoothed, path, _ = infer(single(random_chain(7, seed, sparse=0.6, spread=500.0)))
        assert int(filtered.status) == int(smoothed.status) == int(path.status) == FINE
        assert np.isfinite(filtered.log_evidence).all()
        assert np.isfinite(smoothed.belief).all()
        np.testing.assert_allclose(np.sum(filtered.belief, axis=1), 1.0, atol=1e-5)


def test_forecast_is_the_power_of_the_matrix():
    c = random_chain(7, 3)
    ahead = forecast(jnp.asarray(c.initial, jnp.float32), jnp.asarray(c.transition, jnp.float32), 5)
    assert ahead.shape == (5, 7)
    for k in range(5):
        wanted = c.initial @ np.linalg.matrix_power(c.transition, k + 1)
        np.testing.assert_allclose(ahead[k], wanted, atol=1e-6)


def test_an_impossible_reading_is_flagged_and_not_smoothed_over():
    c = random_chain(4, 1, weeks=6, sparse=0.0)
    c.log_likelihood[3] = -np.inf
    filtered, smoothed, path, total = infer(single(c))
    assert int(filtered.status) == int(smoothed.status) == int(path.status) == 3
    assert np.isneginf(filtered.log_evidence).tolist() == [False, False, False, True, False, False]
    assert np.isneginf(total)
    assert np.isneginf(path.log_probability)
    np.testing.assert_array_equal(filtered.belief[3], filtered.predicted[3])
    for result in (filtered, smoothed, path):
        assert not any(np.isnan(np.asarray(leaf)).any() for leaf in jax.tree.leaves(result))
        with pytest.raises(InputError, match="the port: the reading of week 3 has probability zero"):
            require_possible(result, "the port")
    batch = jax.tree.map(lambda *x: np.stack(x), infer(single(random_chain(4, 1, weeks=6)))[0], filtered)
    with pytest.raises(InputError, match="week 3"):
        require_possible(batch)
    require_possible(infer(single(random_chain(4, 1, weeks=6)))[0])


def test_a_reading_that_only_unreachable_states_can_give_is_impossible():
    matrix = np.array([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]])
    table = np.array([[0.0, 0.0, 5.0], [-np.inf, -np.inf, 0.0]])
    filtered = forward(single(Chain(np.array([0.5, 0.5, 0.0]), matrix, table, np.zeros(2))))
    assert int(filtered.status) == 1
    np.testing.assert_allclose(filtered.log_evidence[0], 0.0, atol=1e-6)


def test_gradients_stay_finite_where_probabilities_are_zero():
    matrix = np.array([[0.7, 0.3, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    table = np.array([[0.0, -np.inf, -1.0], [-1.0, 0.5, -np.inf], [0.0, -2.0, 1.0]])
    c = Chain(np.array([1.0, 0.0, 0.0]), matrix, table, np.zeros(3))

    def scores(c):
        return log_evidence(c), jnp.sum(smooth(c).belief ** 2), most_probable_path(c).log_probability

    with jax.enable_x64(True):
        gradients = jax.jit(jax.jacrev(scores))(c)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
        gradient = gradients[0]
        evidence = jax.jit(log_evidence)

        def evidence_with(step):
            moved = matrix.copy()
            moved[0, 1] += step
            return float(evidence(Chain(c.initial, moved, table, c.log_scale)))

        slope = (evidence_with(1e-6) - evidence_with(-1e-6)) / 2e-6
        np.testing.assert_allclose(gradient.transition[0, 1], slope, rtol=1e-6)


def test_sampled_paths_depend_on_the_key_alone_and_start_to_end_cohere():
    c = single(random_chain(5, 2, weeks=8))
    draw = jax.jit(jax.vmap(lambda k: sample_path(c, key=k)))
    keys = jax.random.split(jax.random.key(0), 20_000)
    paths = np.asarray(draw(keys))
    np.testing.assert_array_equal(paths, draw(keys))
    wanted = numpy_inference(random_chain(5, 2, weeks=8))["smoothed"]
    for t in range(8):
        np.testing.assert_allclose(np.bincount(paths[:, t], minlength=5) / len(paths), wanted[t], atol=0.015)
    steps = np.stack([paths[:, :-1].ravel(), paths[:, 1:].ravel()])
    assert (np.asarray(c.transition)[steps[0], steps[1]] > 0).all()


def test_one_week_is_a_series():
    c = single(random_chain(4, 6, weeks=1))
    filtered, smoothed, path, _ = infer(c)
    np.testing.assert_array_equal(filtered.belief, smoothed.belief)
    assert int(path.states[0]) == int(np.argmax(filtered.belief[0]))
    assert sample_path(c, key=jax.random.key(0)).shape == (1,)
