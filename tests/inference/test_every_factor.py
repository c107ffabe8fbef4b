"""Every declared factor, one row each, against independent numpy: filter, smoother, paths, forecast, gradients."""

from __future__ import annotations

import dataclasses
import functools
import random
import subprocess
import sys
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from scipy import special, stats

from stocktake_jax.errors import InputError
from stocktake_jax.inference import (
    FINE,
    Chain,
    chain,
    filter_factor,
    forecast,
    forward,
    log_evidence,
    most_probable_path,
    sample_path,
    smooth,
)
from stocktake_jax.models import (
    STAY,
    Canal,
    Channel,
    Demand,
    Discrete,
    Factor,
    Freight,
    Gaussian,
    Index,
    Port,
    Quality,
    Regime,
    Supplier,
    branch,
    param,
    parameters,
    positive,
    unit_interval,
)


class Labour(Factor):
    """A factor that a user might add: dock workers' talks, some of which end in a strike of at most four weeks."""

    name: ClassVar[str] = "labour"
    talks: Float[Array, ""] = param(0.10, unit_interval, "P(quiet -> talks)")
    strike: Float[Array, ""] = param(0.25, unit_interval, "P(talks -> strike)", row="talks")
    settled: Float[Array, ""] = param(0.35, unit_interval, "P(talks -> quiet)", row="talks")
    persist: Float[Array, ""] = param(0.70, unit_interval, "P(a strike lasts another week)")
    absent_sd: Float[Array, ""] = param(2.0, positive, "sd of the absent crews", unit="crews")

    @property
    def regimes(self):
        return Regime("quiet"), Regime("talks", brewing=True), Regime("strike", 4, stress=True)

    def moves(self, regime, age):
        match regime:
            case "quiet":
                return branch((self.talks, "talks"), otherwise=STAY)
            case "talks":
                return branch((self.strike, "strike"), (self.settled, "quiet"), otherwise=STAY)
            case _:
                return "quiet" if age >= 3 else branch((self.persist, STAY), otherwise="quiet")

    def channels(self):
        absent = self.by_band(quiet=1.0, talks=2.0, strike=9.0)
        return (Gaussian("crews_absent", absent, self.absent_sd, low=0.0),)


class Case(NamedTuple):
    """A factor, and its parameters on which a reading depends by equality alone, so that derivatives are zero."""

    factor: type[Factor]
    exact_values: tuple[str, ...] = ()


CASES = {
    "canal": Case(Canal, ("suez", "bab", "cape", "cape_extra")),
    "supplier": Case(Supplier),
    "demand": Case(Demand),
    "freight": Case(Freight),
    "port": Case(Port),
    "quality": Case(Quality),
    "labour": Case(Labour),
}
WEEKS = 6

each_factor = pytest.mark.parametrize("name", CASES)
each_likelihood = pytest.mark.parametrize("likelihood", ["paper", "exact"])
each_start = pytest.mark.parametrize("start", ["uniform", "baseline"])


# -- an independent account of the same model, in numpy


def reading_log_prob(channel: Channel, state: int, y: float, likelihood: str) -> float:
    """log P(reading | state) from scipy's normal distribution, by cases that are spelled out."""
    if isinstance(channel, Discrete):
        hit = np.asarray(channel.values)[state] == y
        p = np.asarray(channel.probs)[state][hit].sum()
        return np.log(p) if p > 0 else -np.inf
    assert isinstance(channel, Gaussian)
    scale = 100.0 if isinstance(channel, Index) else 1.0
    mean, sd = float(channel.mean[state]), float(channel.sd)
    if likelihood == "paper":
        return stats.norm.logpdf(y, scale * mean, scale * sd)
    if isinstance(channel, Index):
        shown_so = [k for k in range(int(100 * y) - 60, int(100 * y) + 61) if round(100 * round(k / 1e4, 4)) == y]
        low, high = (shown_so[0] - 0.5) / 1e4, (shown_so[-1] + 0.5) / 1e4
    else:
        half = 0.5 * 10.0**-channel.decimals
        low, high = y - half, y + half
    low = -np.inf if y <= scale * channel.low else low
    high = np.inf if y >= scale * channel.high else high
    a, b = (low - mean) / sd, (high - mean) / sd
    if a > 0:
        a, b = -b, -a
    upper, lower = special.log_ndtr(b), special.log_ndtr(a)
    return upper + np.log1p(-np.exp(lower - upper))


def simulate_states(law: np.ndarray, matrix: np.ndarray, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    states = [int(np.searchsorted(np.cumsum(law), rng.random()))]
    while len(states) < WEEKS:
        states.append(int(np.searchsorted(np.cumsum(matrix[states[-1]]), rng.random())))
    return states


def lively_series(factor: Factor, start: str) -> dict[str, np.ndarray]:
    """The readings of a path that visits many states (frozen ones above all), from the host drawers, with gaps."""
    law, matrix, channels = np.asarray(factor.initial(start)), factor.transition_matrix(), factor.shown_channels()
    freezing = {s for c in channels for s in range(len(law)) if c.frozen and c.frozen[s]}

    def liveliness(states: list[int]) -> int:
        return len(set(states)) + 10 * len(freezing & set(states))

    states = max((simulate_states(law, matrix, seed) for seed in range(300)), key=liveliness)
    draws, readings = random.Random(1), {}
    for c in channels:
        draw, values = c.drawer(), []
        for t, s in enumerate(states):
            values.append(values[-1] if t and c.frozen and c.frozen[s] else draw(draws, s))
        readings[c.name] = np.asarray(c.reading(np.array(values)), np.float64)
    frozen = [*(s in freezing for s in states), False]
    quiet = [t for t in range(1, WEEKS) if not frozen[t] and not frozen[t + 1]]
    for channel, values in readings.items():
        if channel == "realized_fill":  # shown in weeks with an order, and none is placed with the dead
            values[[t for t in range(WEEKS) if t % 2 == 0 or frozen[t]]] = np.nan
        values[quiet[:1]] = np.nan
    if len(quiet) > 1:
        next(iter(readings.values()))[quiet[1]] = np.nan
    return readings


class Enumeration(NamedTuple):
    belief: np.ndarray
    log_evidence: np.ndarray
    smoothed: np.ndarray
    paths: np.ndarray
    log_joint: np.ndarray


def enumerate_paths(factor: Factor, readings: dict[str, np.ndarray], likelihood: str, start: str) -> Enumeration:
    """Sum over every hidden path that is possible; a frozen value is, literally, the value of the week before."""
    law, matrix = np.asarray(factor.initial(start)), np.asarray(factor.transition_matrix())
    n = len(law)
    speaking = [c for c in factor.shown_channels() if c.name in readings and likelihood in c.likelihoods]

    def scores(t: int) -> np.ndarray:
        out = np.zeros(n)
        for c in speaking:
            y = readings[c.name][t]
            if np.isnan(y) or (t == 0 and start == "baseline" and c.start is not None):
                continue
            for s in range(n):
                if likelihood == "exact" and c.frozen and c.frozen[s]:
                    before = readings[c.name][t - 1] if t else np.nan
                    out[s] += 0.0 if np.isnan(before) or y == before else -np.inf
                else:
                    out[s] += reading_log_prob(c, s, y, likelihood)
        return out

    paths = np.flatnonzero(law)[:, None]
    with np.errstate(divide="ignore"):
        log_law, log_matrix = np.log(law), np.log(matrix)
    log_joint = log_law[paths[:, 0]] + scores(0)[paths[:, 0]]
    beliefs, totals = [], []
    for t in range(WEEKS):
        if t:
            rows, after = np.nonzero(matrix[paths[:, -1]])
            log_joint = log_joint[rows] + log_matrix[paths[rows, -1], after] + scores(t)[after]
            paths = np.concatenate([paths[rows], after[:, None]], axis=1)
        totals.append(special.logsumexp(log_joint))
        beliefs.append(np.bincount(paths[:, -1], np.exp(log_joint - totals[-1]), minlength=n))
    weights = np.exp(log_joint - totals[-1])
    smoothed = np.stack([np.bincount(paths[:, t], weights, minlength=n) for t in range(WEEKS)])
    return Enumeration(np.stack(beliefs), np.diff([0.0, *totals]), smoothed, paths, log_joint)


@functools.cache
def setting(name: str, likelihood: str, start: str) -> tuple[dict[str, np.ndarray], Enumeration, Chain]:
    factor = CASES[name].factor()
    readings = lively_series(factor, start)
    with jax.enable_x64(True):
        c = jax.jit(lambda r: chain(factor, r, likelihood, start))(readings)
    return readings, enumerate_paths(factor, readings, likelihood, start), c


@eqx.filter_jit
def infer(c: Chain) -> dict[str, object]:
    filtered = forward(c)
    ahead = forecast(filtered.belief[-1], c.transition, 4)
    return {"filter": filtered, "smooth": smooth(c), "path": most_probable_path(c), "ahead": ahead}


@each_start
@each_likelihood
@each_factor
def test_inference_equals_the_sum_over_all_hidden_paths(name, likelihood, start):
    _, wanted, c = setting(name, likelihood, start)
    with jax.enable_x64(True):
        got = infer(c)
    np.testing.assert_allclose(got["filter"].belief, wanted.belief, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(got["filter"].log_evidence, wanted.log_evidence, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(got["smooth"].belief, wanted.smoothed, rtol=1e-9, atol=1e-12)
    assert int(got["filter"].status) == int(got["smooth"].status) == int(got["path"].status) == FINE

    path = np.asarray(got["path"].states)
    row = np.flatnonzero((wanted.paths == path).all(axis=1))
    assert row.size == 1, "the most probable path is not a possible one"
    np.testing.assert_allclose(wanted.log_joint[row[0]], wanted.log_joint.max(), rtol=1e-12)
    np.testing.assert_allclose(got["path"].log_probability, wanted.log_joint.max(), rtol=1e-10)

    matrix, law = np.asarray(CASES[name].factor().transition_matrix()), wanted.belief[-1]
    for row in np.asarray(got["ahead"]):
        law = law @ matrix
        np.testing.assert_allclose(row, law, rtol=1e-9, atol=1e-12)


@each_factor
def test_float32_is_close_to_the_sum_over_all_hidden_paths(name):
    _, wanted, c = setting(name, "exact", "uniform")
    got = infer(jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float32), c))
    assert got["filter"].belief.dtype == jnp.float32
    np.testing.assert_allclose(got["filter"].belief, wanted.belief, atol=5e-6)
    np.testing.assert_allclose(got["smooth"].belief, wanted.smoothed, atol=5e-6)
    np.testing.assert_allclose(got["filter"].log_evidence, wanted.log_evidence, rtol=2e-6, atol=2e-6)


DRAW = jax.jit(jax.vmap(lambda c, key: sample_path(c, key=key), in_axes=(None, 0)))


@each_factor
def test_sampled_paths_have_the_posterior_law(name):
    _, wanted, c = setting(name, "exact", "uniform")
    c = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float32), c)
    draws = 20_000
    keys = jax.random.split(jax.random.key(5), draws)
    sampled = np.asarray(DRAW(c, keys))
    base = len(CASES[name].factor().states) ** np.arange(WEEKS)
    codes, counts = np.unique(sampled @ base, return_counts=True)
    seen = dict(zip(codes.tolist(), counts.tolist(), strict=True))
    possible = np.exp(wanted.log_joint - special.logsumexp(wanted.log_joint))
    expected = dict(zip((wanted.paths @ base).tolist(), (draws * possible).tolist(), strict=True))
    assert all(expected.get(code, 0.0) > 0 for code in seen), "an impossible path was drawn"
    common = [code for code, e in expected.items() if e >= 10]
    observed = [seen.get(code, 0) for code in common]
    wanted_counts = [expected[code] for code in common]
    rest = draws - sum(wanted_counts)
    if rest >= 1:
        observed, wanted_counts = [*observed, draws - sum(observed)], [*wanted_counts, rest]
    if len(observed) == 1:  # the readings leave but one path
        assert observed[0] == draws
        return
    wanted_counts = np.array(wanted_counts) * sum(observed) / sum(wanted_counts)
    assert stats.chisquare(observed, wanted_counts).pvalue > 1e-4


# -- jit, vmap, traces


@each_factor
def test_jit_and_vmap_change_nothing(name):
    factor = CASES[name].factor()
    series = [lively_series(factor, start) for start in ("uniform", "baseline", "uniform")]
    series[2] = {k: v[::-1].copy() for k, v in series[2].items()}
    batch = jax.tree.map(lambda *x: jnp.asarray(np.stack(x), jnp.float32), *series)
    traces = []

    @jax.jit
    def batched(factor, batch):
        traces.append(None)
        return jax.vmap(lambda r: filter_factor(factor, r, "exact", "uniform"))(batch)

    together = batched(factor, batch)
    with jax.disable_jit():
        for i in range(3):
            alone = filter_factor(factor, {k: v[i] for k, v in batch.items()}, "exact", "uniform")
            for field in ("belief", "predicted", "log_evidence", "status"):
                a, b = np.asarray(getattr(together, field)[i]), np.asarray(getattr(alone, field))
                np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6, err_msg=field)

    changed = with_parameters(factor, lambda p: p.value * 0.9)
    again = batched(changed, batch)
    assert len(traces) == 1, "another parameter value was traced anew"
    assert not np.allclose(again.predicted, together.predicted)


# -- gradients


def with_parameters(factor: Factor, value_of: Callable) -> Factor:
    return dataclasses.replace(factor, **{k: value_of(p) for k, p in parameters(factor).items()})


@functools.cache
def graded(name: str) -> tuple[Factor, Callable]:
    """value_and_grad of a mix of the log evidences of two likelihoods, as a function of the factor, jitted once.

    Where all readings are exact values both likelihoods are the same, and the second would be compiled for nothing.
    """
    factor = CASES[name].factor()
    readings = lively_series(factor, "uniform")
    exact_values = all(isinstance(c, Discrete) and len(c.likelihoods) == 2 for c in factor.shown_channels())

    def score(f: Factor) -> Array:
        if exact_values:
            return log_evidence(chain(f, readings, "exact", "uniform"))
        paper = log_evidence(chain(f, readings, "paper", "baseline" if name == "port" else "uniform"))
        return paper + 0.7 * log_evidence(chain(f, readings, "exact", "uniform"))

    return factor, jax.jit(jax.value_and_grad(score))


@each_factor
def test_gradients_equal_finite_differences(name):
    factor, score = graded(name)
    with jax.enable_x64(True):
        _, gradient = score(factor)
        for key, p in parameters(factor).items():
            slope = np.asarray(getattr(gradient, key))
            assert np.isfinite(slope).all(), key
            if key in CASES[name].exact_values:
                assert not slope.any(), key
                continue
            step = 1e-5 * max(1.0, abs(float(p.value)))
            if p.value - step < p.constraint.low:
                continue  # at the edge of its range there is no central difference
            up, down = (
                float(score(dataclasses.replace(factor, **{key: p.value + sign * step}))[0]) for sign in (1, -1)
            )
            np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=1e-5, atol=1e-7, err_msg=key)


@each_factor
def test_gradients_are_finite_at_structural_zeros(name):
    factor, score = graded(name)
    with jax.enable_x64(True):
        for key, p in parameters(factor).items():
            if p.constraint is not unit_interval:
                continue
            for value in (0.0, 1.0):
                at_the_edge = dataclasses.replace(factor, **{key: np.float64(value)})
                level, gradient = score(at_the_edge)
                assert not np.isnan(level)
                for other, q in parameters(gradient).items():
                    assert np.isfinite(q.value).all(), f"d/d{other} at {key} = {value}"


# -- the declaration itself


@each_factor
def test_the_chain_of_a_factor_is_a_law(name):
    factor = CASES[name].factor()
    factor.check()
    matrix = factor.transition_matrix()
    assert isinstance(matrix, np.ndarray)
    assert matrix.dtype == np.float64
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(axis=1), 1.0, atol=1e-15)
    assert ((matrix > 0) <= factor.support()).all()
    for start in ("uniform", "baseline"):
        np.testing.assert_allclose(np.sum(factor.initial(start)), 1.0, atol=1e-15)
    assert factor.initial("baseline")[0] == 1.0
    np.testing.assert_allclose(jax.jit(lambda f: f.transition_matrix())(factor), matrix, atol=1e-7)


@each_factor
def test_impossible_readings_are_flagged_under_the_exact_law(name):
    factor = CASES[name].factor()
    readings = {k: v.copy() for k, v in lively_series(factor, "uniform").items()}
    read = jax.jit(lambda r: filter_factor(factor, r, "exact", "uniform"))
    for channel in factor.shown_channels():
        for impossible in (0.1234, -5.0, np.inf, -np.inf):
            if channel.name == "realized_fill" and impossible == 0.1234:
                impossible = 0.505
            broken = {k: v.copy() for k, v in readings.items()}
            broken[channel.name][3] = impossible
            if name == "supplier":  # in weeks after its death lead slip and fill say nothing, whatever they are
                broken["band"][3], broken["otif"][3], broken["lead_days"][3] = 0.0, 98.0, 14.0
                broken["band"][2], broken["otif"][2], broken["lead_days"][2] = np.nan, np.nan, np.nan
                broken["band"][1], broken["otif"][1], broken["lead_days"][1] = np.nan, np.nan, np.nan
                broken["band"][0], broken["otif"][0], broken["lead_days"][0] = np.nan, np.nan, np.nan
                broken[channel.name][3] = impossible
            result = read(broken)
            assert int(result.status) == 3, (channel.name, impossible)
            assert np.isneginf(result.log_evidence[3])
            assert not np.isnan(result.log_evidence).any()
            np.testing.assert_array_equal(result.belief[3], result.predicted[3])
            np.testing.assert_allclose(np.sum(result.belief, axis=1), 1.0, atol=1e-5)


def test_a_user_declared_factor_is_sampled_and_filtered_at_once():
    labour = Labour()

    @jax.jit
    def run(factor, key):
        path_key, reading_key = jax.random.split(key)
        states, ages = factor.sample_states(200, key=path_key)
        readings = factor.sample_emissions(states, key=reading_key)
        return states, ages, readings, filter_factor(factor, readings, "exact", "baseline")

    states, ages, readings, filtered = run(labour, jax.random.key(11))
    assert readings.keys() == {"crews_absent"}
    assert int(filtered.status) == FINE
    strikes = np.asarray(labour.mask(label="strike"))
    assert strikes.tolist() == [False, False, True, True, True, True]
    p_strike = np.asarray(labour.regime_probabilities(filtered.belief))[:, labour.labels.index("strike")]
    on_strike = strikes[np.asarray(states)]
    assert 3 < on_strike.sum() < 150
    assert p_strike[on_strike].mean() > 0.8 > 0.2 > p_strike[~on_strike].mean()
    assert np.asarray(ages)[on_strike].max() == 3


# -- errors of declarations and of calls


class Misnamed(Labour):
    """Moves to a regime that it does not have."""

    def moves(self, regime, age):
        return branch((self.talks, "tlaks"), otherwise=STAY)


class Bandless(Labour):
    """Leaves a band without a mean."""

    def channels(self):
        return (Gaussian("crews_absent", self.by_band(quiet=1.0, talks=2.0), self.absent_sd, low=0.0),)


class Overbanded(Labour):
    """Gives a mean to a band that it does not have."""

    def channels(self):
        means = self.by_band(quiet=1.0, talks=2.0, strike=9.0, lockout=3.0)
        return (Gaussian("crews_absent", means, self.absent_sd, low=0.0),)


class Regimeless(Labour):
    """Leaves a regime without a mean."""

    def channels(self):
        return (Gaussian("crews_absent", self.by_regime(quiet=1.0, talks=2.0), self.absent_sd, low=0.0),)


SERIES = {"crews_absent": np.array([1.0, 2.0, 8.0])}


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: Misnamed().transition_matrix(), ("labour", "tlaks", "quiet, talks, strike")),
        (lambda: chain(Bandless(), SERIES), ("labour", "band", "strike")),
        (lambda: chain(Overbanded(), SERIES), ("labour", "band", "lockout", "quiet, talks, strike")),
        (lambda: chain(Regimeless(), SERIES), ("labour", "regime", "strike")),
        (lambda: Labour().index("lockout"), ("labour", "lockout", "quiet, talks, strike")),
        (lambda: Labour().mask(label="lockout"), ("labour", "lockout", "quiet, talks, strike")),
        (lambda: Labour().mask(bands=("talks", "lockout")), ("labour", "band", "lockout", "quiet, talks, strike")),
        (lambda: Labour(strike=0.7, settled=0.6).check(), ("labour.strike (0.7)", "labour.settled (0.6)", "1.3")),
        (lambda: Labour(talks=1.5).check(), ("labour.talks", "1.5", "[0, 1]", "P(quiet -> talks)")),
        (lambda: Labour(absent_sd=0.0).check(), ("labour.absent_sd", "(0, inf)")),
        (lambda: chain(Labour(), {"crews": SERIES["crews_absent"]}), ("labour", "crews", "crews_absent")),
        (lambda: chain(Labour(), {}), ("labour", "no readings", "crews_absent")),
        (lambda: chain(Labour(), {"crews_absent": np.zeros(0)}), ("labour", "(0,)")),
        (
            lambda: chain(Port(), {"berth_wait": np.zeros(3), "wait_outlook": np.zeros(4)}),
            ("port", "(3,)", "(4,)", "common length"),
        ),
    ],
)
def test_mistakes_are_named(call, parts):
    with pytest.raises(InputError) as error:
        call()
    for part in parts:
        assert part in str(error.value)


BAD_CALLS = """
import numpy as np
from stocktake_jax.errors import InputError
from stocktake_jax.inference import chain
from stocktake_jax.models import Port

port, series = Port(), {"berth_wait": np.ones(3), "wait_outlook": np.ones(3)}
calls = (
    lambda: port.initial("flat"),
    lambda: chain(port, series, "paper", "flat"),
    lambda: chain(port, series, "normal"),
    lambda: chain(port, {"berth_wait": np.ones((2, 3))}),
)
for call in calls:
    try:
        call()
    except InputError as error:
        print(error)
"""


def test_mistakes_that_the_type_checks_of_the_tests_would_catch_first():
    """In a process of its own, as a user without the import hook would see them."""
    done = subprocess.run([sys.executable, "-c", BAD_CALLS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "initial must be 'uniform' or 'baseline', not 'flat'",
        "initial must be 'uniform' or 'baseline', not 'flat'",
        "likelihood must be 'paper' or 'exact', not 'normal'",
        "port: readings must be series of one common length >= 1, not of shapes {'berth_wait': (2, 3)}",
    ]
