"""The oracle's menu against an enumeration in plain Python, and what it asks of a belief."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stocktake_jax.inference import Belief
from stocktake_jax.models import World
from stocktake_jax.policies.menu import MENU_WIDTH, Risks, compact, menu, risks

ROUTES, SUPPLIERS = {0: "suez", 1: "cape", -1: None}, {0: "qualified", 1: "spot", 2: "backup", -1: None}
CAP = 100
jitted = jax.jit(menu, static_argnames="cap")

# Eighths, so that multiples of them are exact in float32; and the thresholds themselves, which open nothing.
demand = st.integers(8 * 10, 8 * 32).map(lambda n: n / 8)
risk = st.sampled_from([0.0, 0.25, float(np.float32(0.3)), 0.3125, 0.5, 0.5625, 1.0])


def offered(
    expected: float, freight: float, port: float, quality: float, position: int, live: list[bool], lands_next: bool
) -> list[tuple]:
    r = Risks(*(jnp.float32(x) for x in (expected, freight, port, quality)))
    c, valid = jitted(r, jnp.float32(position), jnp.array(live), jnp.array(lands_next), cap=CAP)
    columns = (c.qty, c.route, c.supplier, c.sign, c.lock, c.air, c.inspect, valid)
    rows = zip(*(np.asarray(x).tolist() for x in columns), strict=True)
    return [
        (qty, ROUTES[route], SUPPLIERS[supplier], sign, *levers)
        for qty, route, supplier, sign, *levers, is_valid in rows
        if is_valid
    ]


@given(demand, risk, risk, risk, st.integers(0, 250), st.tuples(*[st.booleans()] * 3), st.booleans())
def test_against_plain_enumeration(plain, expected, freight, port, quality, position, live, lands_next):
    mine = offered(expected, freight, port, quality, position, list(live), lands_next)
    names = {name for name, is_live in zip(("qualified", "spot", "backup"), live, strict=True) if is_live}
    risks = (freight > np.float32(0.3), port > np.float32(0.3), quality > 0.5)
    wanted = plain.menu(expected, *map(bool, risks), position, names, lands_next)
    # The order counts: on a tie the first one wins.
    assert mine == [tuple(candidate.values()) for candidate in wanted]
    assert len(mine) == len(set(mine))


def test_a_full_and_an_empty_menu():
    full = offered(20.0, 1.0, 1.0, 1.0, 0, [True, True, True], True)
    # Both covers are cut to the cap or stand apart: 80 and 100 units.
    assert len(full) == MENU_WIDTH == 104
    assert {row[0] for row in full} == {0, 80, 100}
    assert offered(20.0, 0.0, 0.0, 0.0, 130, [False, True, False], False) == [(0, None, None, False, False, 0, False)]
    capped = offered(30.0, 0.0, 0.0, 0.0, 0, [True, False, False], False)
    assert [row[0] for row in capped] == [0, 100, 100]


def test_compact_keeps_the_order():
    valid = jnp.array([False, True, False, True, True])
    order, count = compact(valid)
    assert int(count) == 3 and order[:3].tolist() == [1, 3, 4] and sorted(order.tolist()) == list(range(5))


@pytest.mark.parametrize("key", range(3))
def test_risks_sum_the_posterior_over_names(key):
    world = World.paper()
    rng = np.random.default_rng(key)
    posteriors = {name: rng.dirichlet(np.ones(len(f.states))).astype(np.float32) for name, f in world.factors.items()}
    means = {"base": 20.0, "surge": 26.0, "lift": 30.0, "decline": 14.0, "normal": 20.0}

    def total(factor: str, regimes: set[str]) -> float:
        names = [state.regime for state in world.factors[factor].states]
        return sum(float(p) for p, name in zip(posteriors[factor], names, strict=True) if name in regimes)

    bands = world.demand.state_bands
    expected = sum(float(p) * means[band] for p, band in zip(posteriors["demand"], bands, strict=True))
    r = risks(world.cast(jnp.float32), Belief({n: jnp.asarray(p) for n, p in posteriors.items()}, {}))
    assert float(r.demand) == pytest.approx(expected, rel=1e-5)
    assert float(r.freight) == pytest.approx(total("freight", {"tightening", "spike"}), rel=1e-5)
    assert float(r.port) == pytest.approx(total("port", {"congested", "customs_hold"}), rel=1e-5)
    assert float(r.quality) == pytest.approx(total("quality", {"out_of_control"}), rel=1e-5)
