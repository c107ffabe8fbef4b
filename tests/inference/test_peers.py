"""Filters, smoothers, most probable paths and EM against two independent libraries, on random models."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hmmlearn.hmm import CategoricalHMM

from stocktake_jax.inference import Chain, forward, most_probable_path, smooth
from stocktake_jax.inference.em import baum_welch
from stocktake_jax.inference.evidence import batch_evidence, membership

with warnings.catch_warnings():
    # 2026-11: dynamax imports TensorFlow Probability's JAX half, which uses names that JAX has deprecated.
    warnings.simplefilter("ignore")
    from dynamax.hidden_markov_model import hmm_filter, hmm_posterior_mode, hmm_smoother

# (states, whether the matrix has structural zeros): a few in every run, the whole range with `-m slow`.
MODELS = [
    (2, False),
    (7, True),
    (50, False),
    *[pytest.param(k, zeros, marks=pytest.mark.slow) for k in (3, 5, 10, 20, 50) for zeros in (False, True)],
]
SYMBOLS = 7


@pytest.fixture
def float64_as_others_write_it() -> Iterator[None]:
    """Double precision, and JAX's ordinary promotion, which the other libraries rely on."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def random_model(states: int, weeks: int, sparse: bool = False) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(states)
    initial = rng.dirichlet(np.ones(states))
    transition = rng.dirichlet(np.full(states, 0.5), states)
    if sparse:  # structural zeros, as ages make them; a state can always stay, so every row has something left
        keep = rng.uniform(size=transition.shape) < 0.4
        np.fill_diagonal(keep, True)
        transition = np.where(keep, transition, 0.0)
        transition /= transition.sum(axis=1, keepdims=True)
    emission = rng.dirichlet(np.ones(SYMBOLS), states)
    symbols = rng.integers(SYMBOLS, size=weeks)
    return initial, transition, emission, symbols


def our_chain(initial, transition, emission, symbols) -> Chain:
    table = jnp.asarray(np.log(emission[:, symbols]).T)
    return Chain(jnp.asarray(initial), jnp.asarray(transition), table, jnp.zeros(len(symbols)))


@pytest.mark.parametrize(("states", "sparse"), MODELS)
def test_both_libraries_agree_on_evidence_filter_smoother_and_path(float64_as_others_write_it, states, sparse):
    initial, transition, emission, symbols = random_model(states, 40, sparse)
    ours = our_chain(initial, transition, emission, symbols)
    filtered, smoothed, best = jax.jit(lambda c: (forward(c), smooth(c), most_probable_path(c)))(ours)
    model = jnp.asarray(initial), jnp.asarray(transition), ours.log_likelihood
    dynamax = jax.jit(lambda *m: (hmm_filter(*m), hmm_smoother(*m), hmm_posterior_mode(*m)))(*model)
    np.testing.assert_allclose(filtered.belief, dynamax[0].filtered_probs, atol=1e-5)
    np.testing.assert_allclose(filtered.log_evidence.sum(), dynamax[0].marginal_loglik, rtol=1e-9)
    np.testing.assert_allclose(smoothed.belief, dynamax[1].smoothed_probs, atol=1e-5)
    np.testing.assert_array_equal(best.states, dynamax[2])
    theirs = hmmlearns(initial, transition, emission)
    score, posterior = theirs.score_samples(symbols[:, None])
    log_probability, path = theirs.decode(symbols[:, None])
    np.testing.assert_allclose(smoothed.log_evidence.sum(), score, rtol=1e-9)
    np.testing.assert_allclose(smoothed.belief, posterior, atol=1e-5)
    np.testing.assert_array_equal(best.states, path)
    np.testing.assert_allclose(best.log_probability, log_probability, rtol=1e-9)


def hmmlearns(initial, transition, emission, **settings) -> CategoricalHMM:
    model = CategoricalHMM(len(initial), init_params="", **settings)
    model.startprob_, model.transmat_, model.emissionprob_ = initial, transition.copy(), emission
    model.n_features = SYMBOLS
    return model


def test_the_batched_evidence_agrees(float64_as_others_write_it):
    states = 12
    initial, transition, emission, _ = random_model(states, 1)
    symbols = np.random.default_rng(0).integers(SYMBOLS, size=(4, 30))
    table = jnp.asarray(np.log(emission[:, symbols]).transpose(2, 0, 1))  # week, state, series
    ours = batch_evidence(
        jnp.asarray(initial), jnp.asarray(transition), table, membership(tuple(range(states)), jnp.float64)
    )
    theirs = hmmlearns(initial, transition, emission)
    for got, row in zip(ours, symbols, strict=True):
        np.testing.assert_allclose(got, theirs.score(row[:, None]), rtol=1e-9)


@pytest.mark.parametrize("steps", [1, 30])
def test_em_takes_the_steps_that_hmmlearn_takes(float64_as_others_write_it, steps):
    states, series, weeks = 4, 12, 25
    initial, truth, emission, _ = random_model(states, 1)
    rng = np.random.default_rng(9)
    symbols = np.zeros((series, weeks), np.int64)
    for row in symbols:
        state = rng.choice(states, p=initial)
        for t in range(weeks):
            row[t] = rng.choice(SYMBOLS, p=emission[state])
            state = rng.choice(states, p=truth[state])
    start = np.random.default_rng(1).dirichlet(np.ones(states), states)
    theirs = hmmlearns(initial, start, emission, params="t", n_iter=steps, tol=-np.inf)
    theirs.fit(symbols.reshape(-1, 1), [weeks] * series)
    table = jnp.asarray(np.log(emission[:, symbols]).transpose(2, 0, 1))
    ours = baum_welch(
        jnp.asarray(initial),
        jnp.asarray(start),
        table,
        membership(tuple(range(states)), jnp.float64),
        iterations=steps,
        tolerance=-np.inf,
    )
    np.testing.assert_allclose(ours.transition, theirs.transmat_, atol=1e-8)
    np.testing.assert_allclose(ours.log_evidence, list(theirs.monitor_.history), rtol=1e-9)
    assert np.all(np.diff(ours.log_evidence) >= -1e-9)
