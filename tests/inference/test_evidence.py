"""The fast evidence against the filter that it must agree with, and its gradient."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.inference import chain, log_evidence, spot_alive_before
from stocktake_jax.inference.evidence import SeriesEvidence, batch_evidence, emission_groups, membership
from stocktake_jax.models import FACTORS, Demand, Factor, Port, Quality, Supplier, Tape, World

SERIES = 6
LOOK = jax.jit(lambda evidence, factor: evidence(factor))


@pytest.fixture(scope="module")
def readings() -> dict[str, dict[str, np.ndarray]]:
    """Readings of a few tapes with holes: a missing week, a missing channel, series of several lengths."""
    world = World.paper()
    tapes = Tape.published_batch(range(5000, 5000 + SERIES), world)
    out = tapes.readings(world, spot_alive_before(world, tapes))
    for channels in out.values():
        for i, name in enumerate(channels):
            y = np.array(channels[name], np.float64)
            y[1, 5] = np.nan
            y[2, 20:] = np.nan
            if i == 0 and len(channels) > 1:
                y[3] = np.nan
            channels[name] = y
    return out


LAWS = [("exact", "baseline"), ("paper", "uniform"), ("paper", "baseline"), ("exact", "uniform")]
EVERY_RUN = {
    *((name, "exact", "baseline") for name in FACTORS),
    ("supplier", "paper", "uniform"),
    ("port", "paper", "uniform"),
}


@pytest.mark.parametrize(
    ("name", "likelihood", "initial"),
    [pytest.param(n, *law, marks=[] if (n, *law) in EVERY_RUN else pytest.mark.slow) for n in FACTORS for law in LAWS],
)
def test_the_evidence_is_the_filters(readings, name, likelihood, initial):
    factor = World.paper().factors[name]
    fast = SeriesEvidence.of(factor, readings[name], likelihood, initial)

    def both(evidence, f, series):
        return evidence(f), jax.vmap(lambda y: log_evidence(chain(f, y, likelihood, initial)))(series)

    with jax.enable_x64(True):
        host = jax.tree.map(jnp.asarray, factor)
        got, wanted = jax.jit(both)(fast, host, {c: jnp.asarray(y) for c, y in readings[name].items()})
    assert np.all(np.isfinite(wanted))
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-10)
    assert len(set(fast.groups)) < len(factor.states)


def test_emissions_worked_out_beforehand_change_nothing(readings):
    factor = Port()
    fast = SeriesEvidence.of(factor, readings["port"])
    with jax.enable_x64(True):
        host = jax.tree.map(jnp.asarray, dataclasses.replace(factor, congest_persist=0.7))
        np.testing.assert_allclose(LOOK(fast.tabulated(factor), host), LOOK(fast, host), rtol=1e-12)


def test_float32_and_repeated_values_change_nothing_that_matters(readings):
    factor = Port()
    cast = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), factor)
    with jax.enable_x64(True):
        exactly = LOOK(SeriesEvidence.of(factor, readings["port"]), jax.tree.map(jnp.asarray, factor))
    for distinct in (True, False):
        got = LOOK(SeriesEvidence.of(factor, readings["port"], distinct=distinct), cast)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, exactly, rtol=1e-5)


def test_states_that_show_the_same_by_declaration_are_grouped_and_others_are_not():
    # At the published values a reliable and a long-dead supplier have one mean slip; by declaration they do not.
    supplier = Supplier()
    groups = emission_groups(supplier, ("realized_lead_slip",))
    assert groups[supplier.index("reliable")] != groups[supplier.index("defunct")]
    assert groups[supplier.index("defunct", 0)] != groups[supplier.index("defunct", 1)]
    assert groups[supplier.index("degraded", 0)] == groups[supplier.index("degraded", 3)]
    demand = Demand()
    both = emission_groups(demand, ("pos_units", "demand_forecast"))
    assert both[demand.index("promo_spike", 2)] == both[demand.index("seasonal_lift", 0)]
    assert len(set(both)) == 4
    equal = dataclasses.replace(Port(), wait_slow=16.0)
    assert len(set(emission_groups(equal, ("berth_wait",)))) == 4


def test_it_is_the_sum_over_all_paths():
    rng = np.random.default_rng(3)
    K, G, W = 3, 2, 4
    initial, transition = rng.dirichlet(np.ones(K)), rng.dirichlet(np.ones(K), K)
    groups = (0, 1, 0)
    table = rng.normal(size=(W, G, 1))
    total = 0.0
    for path in itertools.product(range(K), repeat=W):
        p = initial[path[0]] * np.prod([transition[a, b] for a, b in itertools.pairwise(path)])
        total += p * np.exp(sum(table[t, groups[s], 0] for t, s in enumerate(path)))
    with jax.enable_x64(True):
        got = batch_evidence(
            jnp.asarray(initial), jnp.asarray(transition), jnp.asarray(table), membership(groups, jnp.float64)
        )
    np.testing.assert_allclose(got, np.log(total), rtol=1e-12)


def _as_vector(factor: Factor, names: list[str]):
    def build(x):
        typed = jax.tree.map(jnp.asarray, factor)
        return dataclasses.replace(typed, **{n: x[i] for i, n in enumerate(names)})

    return build, np.array([float(getattr(factor, n)) for n in names])


SMOOTH = {
    "canal": ["watch_onset", "disruption_onset", "false_alarm", "short_share", "long_end", "cape_local"],
    "supplier": ["wobble_onset", "degrade", "death", "slip_wobbling", "slip_sd", "fill_wobbling", "fill_sd"],
    "demand": ["promo_onset", "decline_persist", "mean_normal", "mean_lift", "units_sd"],
    "freight": ["tighten_onset", "ease", "spike_persist", "rate_tight", "realized_sd"],
    "port": ["build_onset", "congest_persist", "customs_persist", "wait_clear", "wait_sd"],
    "quality": ["drift_onset", "hazard_base", "hazard_slope", "repair", "accept_drifting"],
}

ZEROS = {
    "canal": {"false_alarm": 0.0, "short_share": 1.0, "cape_local": 0.0},
    "supplier": {"death": 0.0, "steady": 0.0, "degraded_persist": 1.0},
    "demand": {"decline_onset": 0.0, "decline_persist": 1.0, "lift_onset": 0.0},
    "freight": {"slack_onset": 0.0, "spike_onset": 0.0, "slack_persist": 1.0},
    "port": {"customs_onset": 0.0, "customs_persist": 0.0, "congest_persist": 1.0},
    "quality": {"hazard_base": 0.0, "hazard_slope": 0.0, "repair": 1.0, "drift_repair": 0.0},
}


@pytest.mark.parametrize("name", FACTORS)
def test_gradients_equal_finite_differences_and_are_finite_at_structural_zeros(readings, name):
    factor = World.paper().factors[name]
    names = list(dict.fromkeys([*SMOOTH[name], *ZEROS[name]]))
    build, x = _as_vector(factor, names)
    with jax.enable_x64(True):
        evidence = SeriesEvidence.of(factor, readings[name], "exact", "uniform")
        look = jax.jit(jax.value_and_grad(lambda v, e: jnp.sum(e(build(v)))))
        _, got = look(jnp.asarray(x), evidence)
        step = 1e-5 * np.maximum(np.abs(x), 0.01)
        wanted = [
            (float(look(jnp.asarray(x + h), evidence)[0]) - float(look(jnp.asarray(x - h), evidence)[0])) / (2 * h[i])
            for i, h in enumerate(np.diag(step))
        ]
        zeros = np.array([ZEROS[name].get(n, v) for n, v in zip(names, x, strict=True)])
        value, slope = look(jnp.asarray(zeros), evidence)
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=1e-4)
    assert not np.isnan(value)
    assert np.all(np.isfinite(slope))


@pytest.mark.slow
def test_second_derivatives_equal_differences_of_the_gradient(readings):
    factor = Quality()
    build, x = _as_vector(factor, ["drift_onset", "hazard_slope", "repair"])
    with jax.enable_x64(True):
        evidence = SeriesEvidence.of(factor, readings["quality"])
        slope = jax.jit(jax.grad(lambda v, e: jnp.sum(e(build(v)))))
        hessian = jax.jit(jax.jacrev(jax.grad(lambda v, e: jnp.sum(e(build(v))))))(jnp.asarray(x), evidence)
        for i, h in enumerate(1e-6 * np.eye(3)):
            change = (slope(jnp.asarray(x + h), evidence) - slope(jnp.asarray(x - h), evidence)) / 2e-6
            np.testing.assert_allclose(hessian[i], change, rtol=1e-4, atol=1e-3)


def test_gradients_are_finite_at_structural_zeros_in_float32(readings):
    factor = dataclasses.replace(Port(), **ZEROS["port"])
    evidence = SeriesEvidence.of(factor, readings["port"])
    cast = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), factor)
    value, slope = jax.jit(jax.value_and_grad(lambda f, e: jnp.sum(e(f))))(cast, evidence)
    assert not np.isnan(value)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(slope))


def test_the_derivative_towards_a_probability_that_is_zero_is_one_sided(readings):
    factor = dataclasses.replace(Port(), customs_onset=0.0)
    build, x = _as_vector(factor, ["customs_onset"])
    with jax.enable_x64(True):
        evidence = SeriesEvidence.of(factor, readings["port"])
        f = jax.jit(jax.value_and_grad(lambda v, e: jnp.sum(e(build(v)))))
        now, slope = f(jnp.asarray(x), evidence)
        h = 1e-7
        ahead = (f(jnp.asarray(x + h), evidence)[0] - now) / h
    assert float(slope[0]) > 0
    np.testing.assert_allclose(slope[0], ahead, rtol=1e-3)


def test_an_impossible_reading_is_minus_infinity_and_leaves_other_series_alone():
    factor = Supplier()
    band = np.array([[0.0, 3.0, 0.0], [0.0, 0.0, 0.0]])  # defunct, and on time again
    evidence = SeriesEvidence.of(factor, {"band": band})
    cast = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), factor)
    got, back = jax.vjp(lambda f: LOOK(evidence, f), cast)
    assert np.isneginf(got[0])
    assert np.isfinite(got[1])
    (slope,) = back(jnp.array([0.0, 1.0], jnp.float32))
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(slope))


def test_nothing_underflows_that_matters():
    # In float32 exp(-5000) is zero: the scale must come from the states that can be reached, not from the best ones.
    factor = dataclasses.replace(Port(), build_onset=0.0, customs_onset=0.0)
    evidence = SeriesEvidence.of(factor, {"berth_wait": np.full((1, 3), 200.0)}, "paper", "baseline")
    got = float(LOOK(evidence, jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), factor))[0])
    wanted = 2 * (-((200.0 - 1.0) ** 2) / 8 - np.log(2 * np.sqrt(2 * np.pi)))
    assert got == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"berth": np.zeros((2, 3))}, "unknown channel"),
        ({}, "no readings"),
        ({"berth_wait": np.zeros((2, 3)), "wait_outlook": np.zeros((2, 4))}, "one shape"),
    ],
)
def test_readings_that_make_no_sense_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        SeriesEvidence.of(Port(), given)


def test_no_reading_at_all_is_refused():
    with pytest.raises(InputError, match="no channel has a reading"):
        SeriesEvidence.of(Port(), {"berth_wait": np.full((2, 3), np.nan)}).table(Port())
