"""What can be learned, under which prior, and the change of variables that keeps rows and labels in order."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stocktake_jax.errors import InputError
from stocktake_jax.inference.priors import Prior, entries, ladders, read_law, roles, select
from stocktake_jax.models import FACTORS, Port, Quality, Supplier, World

IDLE = {
    "canal": ("suez_count", "bab_count", "cape_count"),
    "supplier": ("band", "otif", "lead_days", "realized_lead_slip"),
    "demand": ("pos_units", "demand_forecast"),
    "freight": ("freight_index", "freight_outlook"),
    "port": ("berth_wait", "wait_outlook"),
    "quality": ("aql_result",),
}


def make(name: str, learn="all", **kwargs) -> Prior:
    factor = kwargs.pop("factor", None) or World.paper().factors[name]
    channels = IDLE[name]
    return Prior(factor, select(factor, learn, roles(factor, channels)), ladders(factor, channels), **kwargs)


def test_parameters_are_sorted_by_what_they_do():
    port = roles(Port(), IDLE["port"])
    assert port.transitions == tuple(f"port.{n}" for n in (
        "build_onset", "customs_onset", "congest_onset", "disperse", "congest_persist", "customs_persist",
    ))  # fmt: skip
    assert port.emissions == tuple(f"port.{n}" for n in (
        "wait_clear", "wait_building", "wait_slow", "wait_blocked", "wait_sd", "outlook_sd",
    ))  # fmt: skip
    assert port.fixed == {}
    one_channel = roles(Port(), ("berth_wait",))
    assert list(one_channel.fixed) == ["port.outlook_sd"]
    assert "wait_outlook" in one_channel.fixed["port.outlook_sd"]


def test_what_no_reading_can_tell_is_fixed_and_says_why():
    canal = roles(World.paper().canal, IDLE["canal"])
    assert canal.emissions == ("canal.cape_local",)
    assert set(canal.fixed) == {
        *(f"canal.{c}[{i}]" for c in ("suez", "bab", "cape") for i in range(6)), "canal.cape_extra",
    }  # fmt: skip
    supplier = roles(Supplier(), IDLE["supplier"])
    fills = {f"supplier.fill_{n}" for n in ("reliable", "wobbling", "degraded", "defunct", "sd")}
    assert set(supplier.fixed) == fills
    assert all("realized_fill" in why for why in supplier.fixed.values())
    assert not roles(Supplier(), (*IDLE["supplier"], "realized_fill")).fixed
    quality = roles(Quality(), IDLE["quality"])
    assert all("nobody sees" in quality.fixed[f"quality.defect_{n}"] for n in ("control", "drifting", "out", "shape"))


def test_levels_are_ordered_as_in_the_base_world():
    assert ladders(Port(), IDLE["port"]) == (
        (("port.wait_blocked",), ("port.wait_slow",), ("port.wait_building",), ("port.wait_clear",)),
    )
    turned = dataclasses.replace(Port(), wait_clear=20.0)
    assert ladders(turned, IDLE["port"])[0][0] == ("port.wait_clear",)
    assert ladders(Supplier(), IDLE["supplier"]) == (
        (("supplier.slip_degraded",), ("supplier.slip_wobbling",), ("supplier.slip_reliable", "supplier.slip_defunct")),
    )
    assert ladders(Quality(), IDLE["quality"]) == (
        (("quality.accept_control",), ("quality.accept_drifting",), ("quality.accept_out",)),
    )


@pytest.mark.parametrize("name", FACTORS)
def test_values_survive_the_way_to_the_real_line_and_back(name):
    prior = make(name)
    base = prior.inside()
    u = prior.unconstrain(base)
    with jax.enable_x64(True):
        back, log_det = jax.jit(prior.constrain)(jnp.asarray(u))
        jacobian = jax.jit(jax.jacobian(lambda x: prior.constrain(x)[0]))(jnp.asarray(u))
    np.testing.assert_allclose(back, base, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(prior.values_at(u[None])[0], base, rtol=1e-9, atol=1e-12)
    sign, wanted = np.linalg.slogdet(jacobian)
    assert abs(sign) == 1
    np.testing.assert_allclose(log_det, wanted, rtol=1e-9)


EVERYTHING = functools.cache(make)


@settings(max_examples=30)
@given(st.lists(st.floats(-6, 6), min_size=12, max_size=12), st.sampled_from(FACTORS))
def test_no_point_of_the_real_line_breaks_a_row_or_switches_labels(u, name):
    prior = EVERYTHING(name)
    values = prior.values_at(np.array(u)[None, : len(prior.names)])
    assert prior.admits(values)[0]
    prior.build_host(values[0]).check()
    for ladder in prior.ladders:
        levels = [[values[0, prior.names.index(n)] for n in rung] for rung in ladder]
        for upper, lower in itertools.pairwise(levels):
            assert min(upper) >= max(lower)


def test_fixed_members_of_a_row_and_of_a_ladder_bound_the_learned_ones():
    prior = make("port", ("port.customs_onset", "port.wait_slow"))
    low, high = (prior.values_at(np.full((1, 2), x))[0] for x in (-40.0, 40.0))
    np.testing.assert_allclose(low, [0.0, 4.0], atol=1e-9)
    np.testing.assert_allclose(high, [1 - 0.06, 16.0], atol=1e-9)


def test_draws_from_the_prior_are_admitted_and_follow_its_laws():
    prior = make("port", "transitions")
    draws = prior.sample(20_000, key=jax.random.key(1))
    assert prior.admits(draws).all()
    k = {n: i for i, n in enumerate(prior.names)}
    # Uniform on the simplex of two events and the rest: means 1/3; a lone probability: mean 1/2.
    np.testing.assert_allclose(draws[:, [k["port.build_onset"], k["port.disperse"]]].mean(0), 1 / 3, atol=0.01)
    np.testing.assert_allclose(draws[:, k["port.congest_persist"]].mean(), 0.5, atol=0.01)


def test_a_prior_can_be_replaced_by_name(standard_promotion):
    law, names = dist.Beta(20.0, 5.0), ("port.congest_persist", "port.wait_sd")
    prior = make("port", names, priors={"congest_persist": law, "port.wait_sd": dist.Gamma(4.0, 2.0)})
    assert prior.laws["port.congest_persist"] is law
    values = jnp.array([0.7, 1.5], jnp.float32)
    wanted = law.log_prob(values[0]) + dist.Gamma(4.0, 2.0).log_prob(values[1])
    np.testing.assert_allclose(prior.log_density(values), wanted, rtol=1e-5)
    with pytest.raises(InputError, match="not learned"):
        make("port", "transitions", priors={"port.wait_sd": dist.Gamma(4.0, 2.0)})


def test_a_law_on_a_part_of_the_range_narrows_it():
    laws = {
        "congest_persist": dist.Uniform(0.5, 0.9),
        "wait_sd": dist.Uniform(1.0, 3.0),
        "wait_clear": dist.Normal(1, 1),
    }
    prior = make("port", priors=laws)
    values = prior.values_at(np.stack([np.full(12, x) for x in (-30.0, 30.0)]))
    k = {n: i for i, n in enumerate(prior.names)}
    np.testing.assert_allclose(values[:, k["port.congest_persist"]], [0.5, 0.9])
    np.testing.assert_allclose(values[:, k["port.wait_sd"]], [1.0, 3.0])
    assert values[:, k["port.wait_clear"]].min() >= 0
    assert prior.standard_deviations[k["port.wait_sd"]] == pytest.approx(2 / np.sqrt(12))
    with pytest.raises(InputError, match=r"lies outside of \[0, 1\]"):
        make("port", priors={"congest_persist": dist.Uniform(2.0, 3.0)})
    for law in (dist.Dirichlet(np.ones(3)), dist.Poisson(2.0), 0.5):
        with pytest.raises(InputError, match="continuous numpyro distribution of one number"):
            make("port", priors={"congest_persist": law})


def test_laws_are_read_from_text():
    law = read_law(" Beta(8, 2)")
    assert isinstance(law, dist.Beta)
    assert float(law.mean) == pytest.approx(0.8)
    for text in ("Beta", "Cauchy(0, 1)", "Beta(1)(2)"):
        with pytest.raises(InputError, match="a prior looks like"):
            read_law(text)
    for text in ("Beta(8)", "Beta(-1, 2)", "Normal(0, x)", "Uniform(1, 2, 3)"):
        with pytest.raises(InputError, match="cannot be used"):
            read_law(text)


def test_names_are_checked():
    found = roles(Port(), IDLE["port"])
    with pytest.raises(InputError, match=r"did you mean 'port\.congest_persist'"):
        select(Port(), ["port.congest_persists"], found)
    with pytest.raises(InputError, match="transitions, emissions, all"):
        select(Port(), "everything", found)
    with pytest.raises(InputError, match=r"supplier.fill_sd cannot be learned: it shapes realized_fill"):
        select(Supplier(), ["fill_sd"], roles(Supplier(), IDLE["supplier"]))
    assert select(Port(), ["wait_sd", "port.build_onset"], found) == ("port.build_onset", "port.wait_sd")


def test_every_number_has_a_name_and_lists_have_positions():
    names = entries(World.paper().canal)
    assert names["canal.suez[4]"].base == 14.0
    assert names["canal.suez[4]"].position == 4
    assert names["canal.watch_onset"].position is None
