"""The law of what is shown: sums to one, and is the law of 400,000 readings drawn as tapes draw them."""

from __future__ import annotations

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from stocktake_jax.models import Discrete, Gamma, Gaussian, Index, World
from stocktake_jax.models.channels import gamma, log_interval

DRAWS = 400_000
HOST_DRAWS = 20_000
FACTORS = World.paper().factors


def band_states(name: str) -> list[int]:
    """One state for every visible band and every regime, frozen states left out: there nothing is drawn."""
    factor = FACTORS[name]
    kinds = {}
    for i, (regime, band) in enumerate(zip(factor.state_regimes, factor.state_bands, strict=True)):
        if not any(c.frozen and c.frozen[i] for c in factor.channels()):
            kinds.setdefault((regime.name, band), i)
    return list(kinds.values())


SHOWN = [(name, c.name) for name, factor in FACTORS.items() for c in factor.shown_channels()]
each_channel = pytest.mark.parametrize(("name", "channel"), SHOWN)


def channel_of(name, channel):
    return next(c for c in FACTORS[name].channels() if c.name == channel)


def support(channel) -> np.ndarray:
    """Every reading that can be shown, up to 40 standard deviations from any mean."""
    if isinstance(channel, Discrete):
        return np.unique(channel.values)
    far = 40 * float(channel.sd)
    if isinstance(channel, Index):
        top = min(np.max(channel.mean) + far, 100.0)
        return np.arange(round(100 * channel.low), np.ceil(100 * top))
    step = 10.0**-channel.decimals
    top = channel.high if np.isfinite(channel.high) else np.max(channel.mean) + far
    return np.round(np.arange(channel.low, top + step / 2, step), channel.decimals)


@functools.cache
def law(name, channel, likelihood, dtype) -> tuple[np.ndarray, np.ndarray]:
    """(reading,) and (reading, state): what can be shown, and its probability under this likelihood."""
    c, wide = channel_of(name, channel), dtype == "float64"
    with jax.enable_x64(wide):
        y = jnp.asarray(support(c), dtype)
        log_p = jax.jit(jax.vmap(lambda v: c.log_prob(v, likelihood) + c.log_scale(v, likelihood)))(y)
        assert log_p.dtype == dtype
        assert not np.isnan(log_p).any()
        return support(c), np.exp(np.asarray(log_p, np.float64))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
@each_channel
def test_exact_probabilities_sum_to_one(name, channel, dtype, tolerance):
    _, p = law(name, channel, "exact", dtype)
    states = band_states(name)
    np.testing.assert_allclose(p[:, states].sum(axis=0), 1.0, rtol=0, atol=tolerance)
    if isinstance(channel_of(name, channel), Discrete):  # there the published likelihood is a probability as well
        _, paper = law(name, channel, "paper", dtype)
        np.testing.assert_array_equal(p, paper)


def p_value(values: np.ndarray, readings: np.ndarray, p: np.ndarray) -> float:
    """Chi-square of drawn readings against their law; readings expected fewer than 10 times are pooled."""
    # Readings are looked up after rounding to 4 decimals: float32 draws miss the decimal by their own last digit.
    grid = np.round(values, 4)
    position = np.searchsorted(grid, np.round(readings, 4))
    assert (grid[np.minimum(position, len(grid) - 1)] == np.round(readings, 4)).all(), "a reading off its support"
    seen, expected = np.bincount(position, minlength=len(values)), p * len(readings)
    assert not seen[p == 0].any(), "an impossible reading was drawn"
    common = expected >= 10
    observed = np.append(seen[common], seen[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    if wanted[-1] < 1:
        assert observed[-1] < 12
        observed, wanted = observed[:-1], wanted[:-1]
    if len(observed) == 1:
        return 1.0
    return stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue


@pytest.mark.parametrize("name", FACTORS)
def test_readings_drawn_as_tapes_draw_them_have_the_exact_law(name):
    factor = FACTORS[name]
    draw = jax.jit(lambda states, key: factor.sample_emissions(states, key=key))
    for state in band_states(name):
        emitted = draw(jnp.full((DRAWS + 1,), state, jnp.int32), jax.random.key(100 + state))
        for c in factor.shown_channels():
            values, p = law(name, c.name, "exact", "float64")
            readings = np.asarray(c.reading(emitted[c.name]), np.float64)[1:]
            assert p_value(values, readings, p[:, state]) > 1e-4, (c.name, factor.states[state])


@each_channel
def test_readings_drawn_on_the_host_have_the_exact_law(name, channel):
    c, rng = channel_of(name, channel), random.Random(7)
    values, p = law(name, channel, "exact", "float64")
    draw = c.drawer()
    for state in band_states(name):
        emitted = np.array([draw(rng, state) for _ in range(HOST_DRAWS)])
        assert p_value(values, np.asarray(c.reading(emitted), np.float64), p[:, state]) > 1e-4, state
        assert not np.signbit(emitted[emitted == 0]).any(), "a negative zero"


def test_published_likelihoods_are_normal_densities_at_the_reading():
    for name, channel in SHOWN:
        c = channel_of(name, channel)
        if not isinstance(c, Gaussian):
            continue
        scale = 100.0 if isinstance(c, Index) else 1.0
        with jax.enable_x64(True):
            for y in (0.0, 0.3, 17.0, 123.0):
                got = c.log_prob(jnp.float64(y), "paper") + c.log_scale(jnp.float64(y), "paper")
                wanted = stats.norm.logpdf(y, scale * np.asarray(c.mean), scale * c.sd)
                np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_the_freight_index_is_the_rounding_of_the_binary_float():
    """Every multiplier of four decimals up to 20.0, in float64 on the host and in both types of jax."""
    multiplier = np.round(np.arange(1000, 200_001) / 1e4, 4)
    wanted = np.array([round(100 * round(x, 4)) for x in multiplier.tolist()], np.float64)
    assert (wanted != np.floor(100 * multiplier + 0.5)).any(), "no tie on the way, so this test shows little"
    index = FACTORS["freight"].channels()[0]
    np.testing.assert_array_equal(index.reading(multiplier), wanted)
    np.testing.assert_array_equal(jax.jit(lambda m: index.reading(m))(jnp.asarray(multiplier, jnp.float32)), wanted)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.jit(lambda m: index.reading(m))(jnp.asarray(multiplier, jnp.float64)), wanted)


def test_an_index_beyond_the_table_is_still_an_index():
    index = Index("rate", np.array([100.0]), np.array(1.0), decimals=4, low=0.1)
    assert index.reading(np.array([99.1234, 120.0])).tolist() == [9912.0, 12000.0]
    with jax.enable_x64(True):
        y = jnp.arange(9000.0, 11001.0)
        total = np.exp(jax.vmap(lambda v: index.log_prob(v, "exact"))(y)).sum()
    np.testing.assert_allclose(total, 1.0, atol=1e-9)


@each_channel
def test_what_cannot_be_shown_is_impossible_and_what_is_missing_says_nothing(name, channel):
    c = channel_of(name, channel)
    free = [s for s in range(len(FACTORS[name].states)) if not (c.frozen and c.frozen[s])]
    log_prob = jax.jit(lambda y, likelihood: c.log_prob(y, likelihood), static_argnums=1)
    for y in (0.123, -1.5, 1e6 + 0.5, np.inf, -np.inf):
        got = np.asarray(log_prob(jnp.float32(y), "exact"))[free]
        assert np.isneginf(got).all() or (y == 1e6 + 0.5 and (got < -100).all()), y
    for likelihood in ("paper", "exact"):
        assert not np.asarray(log_prob(jnp.float32(np.nan), likelihood)).any()
        assert float(c.log_scale(jnp.float32(np.nan), likelihood)) == 0.0


def test_frozen_values_say_nothing_under_the_exact_law_only():
    dead = FACTORS["supplier"].index("defunct", 1)
    for channel in ("realized_lead_slip", "realized_fill"):
        c = channel_of("supplier", channel)
        assert float(c.log_prob(jnp.float32(0.5), "exact")[dead]) == 0.0
        assert float(c.log_prob(jnp.float32(0.5), "paper")[dead]) != 0.0


def test_frozen_values_repeat_the_last_one_drawn():
    c = channel_of("supplier", "realized_lead_slip")
    supplier = FACTORS["supplier"]
    path = [supplier.index(*s) for s in [("reliable",), ("degraded",), ("defunct", 0), ("defunct", 1), ("defunct", 1)]]
    held = c.hold(jnp.array([0.0, 6.5, 1.2, 9.9, 9.8]), jnp.array(path))
    np.testing.assert_array_equal(held, np.float32([0.0, 6.5, 1.2, 1.2, 1.2]))


def test_the_published_filters_do_not_read_the_numbers_of_the_scorecard():
    speaking = [c.name for c in FACTORS["supplier"].channels() if c.speaks("paper")]
    assert speaking == ["band", "realized_lead_slip", "realized_fill"]
    assert all(c.speaks("exact") for factor in FACTORS.values() for c in factor.channels())


@pytest.mark.parametrize("shape", [0.3, 1.0, 2.0, 7.5])
def test_gamma_variates(shape):
    x = np.asarray(jax.jit(lambda k: gamma(k, jnp.float32(shape), (100_000,)))(jax.random.key(3)), np.float64)
    assert stats.kstest(x, stats.gamma(shape).cdf).pvalue > 1e-4


def test_defect_fractions():
    c = next(c for c in FACTORS["quality"].channels() if c.name == "defect_fraction")
    assert isinstance(c, Gamma)
    assert not c.shown
    assert not np.asarray(c.log_prob(jnp.float32(0.01), "exact")).any()
    draw, rng = c.drawer(), random.Random(5)
    for state, mean in ((0, 0.001), (1, 0.02), (26, 0.06)):
        jax_draws = np.asarray(c.sample(jax.random.key(state), jnp.full((100_000,), state)), np.float64)
        host_draws = np.array([draw(rng, state) for _ in range(20_000)])
        for x in (jax_draws, host_draws):
            np.testing.assert_array_equal(np.round(x, 5), np.round(c.snap(x), 5))
            # A uniform jitter undoes the rounding to 5 decimals, which is coarse for the smallest mean.
            spread = x + np.random.default_rng(0).uniform(-5e-6, 5e-6, x.size)
            assert stats.kstest(spread, stats.gamma(2.0, scale=mean / 2).cdf).pvalue > 1e-4


def test_log_interval_keeps_its_digits_in_both_tails():
    with jax.enable_x64(True):
        for low, high in ((-1.0, 1.0), (8.0, 8.5), (-8.5, -8.0), (30.0, 31.0), (-np.inf, -3.0), (3.0, np.inf)):
            got = float(log_interval(jnp.array([low]), jnp.array([high]))[0])
            a, b = (-high, -low) if low > 0 else (low, high)
            wanted = stats.norm.logcdf(b) + np.log1p(-np.exp(stats.norm.logcdf(a) - stats.norm.logcdf(b)))
            np.testing.assert_allclose(got, wanted, rtol=1e-12)
        assert float(log_interval(jnp.array([-np.inf]), jnp.array([np.inf]))[0]) == 0.0
        slopes = jax.grad(lambda a, b: log_interval(a, b).sum(), argnums=(0, 1))(
            jnp.array([-np.inf, 1.0, -np.inf]), jnp.array([np.inf, np.inf, -1.0])
        )
        assert all(np.isfinite(s).all() for s in slopes)


def test_values_are_drawn_in_the_type_of_the_parameters_even_if_jax_is_in_float64():
    with jax.enable_x64(True):
        world = World.paper().cast(jnp.float32)
        for factor in world.factors.values():
            states = jnp.zeros((3,), jnp.int32)
            for c in factor.channels():
                if not isinstance(c, Discrete):
                    assert c.sample(jax.random.key(0), states).dtype == jnp.float32
            assert factor.transition_matrix().dtype == jnp.float32


def test_rounding_never_reaches_a_value_of_probability_zero():
    """Two options of probability .9 and .1 fill the unit interval; the third must not appear."""
    c = Discrete("word", np.array([[0.0, 1.0, 2.0]]), np.array([[0.9, 0.1, 0.0]]))
    drawn = np.asarray(c.sample(jax.random.key(0), jnp.zeros((200_000,), jnp.int32)))
    assert set(drawn.tolist()) == {0.0, 1.0}


def test_snap_finds_the_listed_value():
    c = Discrete("count", np.array([[69.3, 12.1], [5.5, 7.7]]), np.full((2, 2), 0.5))
    assert c.snap(np.float32([69.3, 5.5, 12.1, 7.7])).tolist() == [69.3, 5.5, 12.1, 7.7]
    single = Discrete("count", np.array([[69.3]]), np.ones((1, 1)))
    assert single.snap(np.float32([69.3])).tolist() == [69.3]
    assert np.isnan(single.snap(np.array([np.nan]))).all()
