"""Tapes: the published ones value by value, fresh ones by their law."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from stocktake_jax.errors import InputError
from stocktake_jax.models import FACTORS, HORIZON, Tape, World

DATA = Path(__file__).parent.parent / "data" / "tapes.jsonl.gz"
FRESH = 100_000
HOST = 400
KEY = 12


@pytest.fixture(scope="module")
def world():
    return World.paper()


@pytest.fixture(scope="module")
def fresh(world):
    """100,000 tapes from one jitted call."""
    return Tape.sample_batch(world, FRESH, key=jax.random.key(KEY))


@pytest.fixture(scope="module")
def host(world):
    """Tapes of seeds beyond the published ones, from Python's generator."""
    return Tape.published_batch(range(1000, 1000 + HOST), world)


def test_all_50_published_tapes_equal_the_reference(world):
    with gzip.open(DATA, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    assert len({row["seed"] for row in rows}) == 50
    for row in rows:
        # Compared as text, so that 0 is not 0.0, and 0.0 not -0.0.
        ours = Tape.published(row["seed"], world).to_json(row["seed"], world)
        assert json.dumps(ours, sort_keys=True) == json.dumps(row, sort_keys=True)


def test_a_batch_is_its_tapes(world):
    batch = Tape.published_batch([3, 170], world)
    for i, seed in enumerate((3, 170)):
        alone = Tape.published(seed, world)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_array_equal(a[i], b), batch, alone)
        assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(alone.values))


@pytest.mark.parametrize("seed", [-1, True])
def test_seeds_are_whole_numbers(seed):
    with pytest.raises(InputError, match=f"not {seed}"):
        Tape.published(seed)


# -- the law of the hidden chains


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """The p-value; cells expected fewer than 8 times are pooled, impossible ones must be empty."""
    assert not observed[expected == 0].any(), "an impossible state was visited"
    common = expected >= 8
    pooled = np.append(observed[common], observed[~common].sum()), np.append(expected[common], expected[~common].sum())
    if pooled[1][-1] < 1:
        pooled = pooled[0][:-1], pooled[1][:-1]
    if len(pooled[0]) < 2:
        return 1.0
    return stats.chisquare(pooled[0], pooled[1] * pooled[0].sum() / pooled[1].sum()).pvalue


@pytest.mark.parametrize("source", ["fresh", "host"])
@pytest.mark.parametrize("name", FACTORS)
def test_states_have_the_marginals_of_the_chain(world, name, source, request):
    states = np.asarray(request.getfixturevalue(source).states[name])
    matrix, n = world.factors[name].transition_matrix(), len(world.factors[name].states)
    assert states.shape[1] == HORIZON + 1
    assert not states[:, 0].any()
    for week in (1, 2, 6, 13, 26):
        expected = np.linalg.matrix_power(matrix, week)[0] * len(states)
        assert chi_square(np.bincount(states[:, week], minlength=n), expected) > 1e-4, week


@pytest.mark.parametrize("source", ["fresh", "host"])
@pytest.mark.parametrize("name", FACTORS)
def test_moves_have_the_probabilities_of_the_matrix(world, name, source, request):
    states = np.asarray(request.getfixturevalue(source).states[name])[:2000]
    matrix, n = world.factors[name].transition_matrix(), len(world.factors[name].states)
    for i in range(n):
        after = states[:, 1:][states[:, :-1] == i]
        assert chi_square(np.bincount(after, minlength=n), matrix[i] * after.size) > 1e-4, world.factors[name].states[i]


@pytest.mark.parametrize("source", ["fresh", "host"])
@pytest.mark.parametrize("name", FACTORS)
def test_ages_count_the_weeks_of_a_regime(world, name, source, request):
    tapes, factor = request.getfixturevalue(source), world.factors[name]
    states, ages = np.asarray(tapes.states[name]), np.asarray(tapes.ages[name])
    regime = np.array([factor.regimes.index(r) for r in factor.state_regimes])[states]
    ageless = np.array([r.ageless for r in factor.regimes])
    capped = np.array([s.age for s in factor.states])[states]
    last = np.array([r.ages - 1 for r in factor.regimes])[regime]
    wanted = np.zeros_like(ages)
    for t in range(1, states.shape[1]):
        wanted[:, t] = np.where(regime[:, t] == regime[:, t - 1], wanted[:, t - 1] + 1, 0)
    np.testing.assert_array_equal(ages, np.where(ageless[regime], 0, wanted))
    told_apart = ~ageless[regime]
    np.testing.assert_array_equal(capped[told_apart], np.minimum(wanted, last)[told_apart])


def test_ages_of_regimes_that_end_by_a_coin_are_geometric(world, fresh):
    """Long disruptions and out-of-control weeks last by one coin a week, and their tapes keep the uncapped age."""
    for name, regime, end in (("canal", "long", 0.08), ("quality", "out_of_control", 0.25), ("demand", "normal", 0.05)):
        factor = world.factors[name]
        states, ages = np.asarray(fresh.states[name]), np.asarray(fresh.ages[name])
        inside = np.array([r.name == regime for r in factor.state_regimes])[states]
        # Spells that begin in weeks 1 .. 6, followed for 20 weeks: all that are alive at an age, and those that end.
        begun = [(i, t) for i, t in zip(*np.nonzero(inside[:, 1:7] & (ages[:, 1:7] == 0)), strict=True)]
        begun = np.array(begun)[:20_000] + np.array([0, 1])
        length = np.array([np.argmin(np.append(inside[i, t : t + 20], False)) for i, t in begun])
        alive = len(length)
        observed = np.bincount(length, minlength=21)[1:]
        expected = alive * np.append(end * (1 - end) ** np.arange(19), (1 - end) ** 19)
        assert chi_square(observed, expected) > 1e-4, name


# -- what is emitted


def test_emissions_given_the_band_agree_between_the_generators(world, fresh, host):
    """Two-sample chi-square per channel and band (tests/models/test_channels.py has each against its exact law)."""
    few = jax.tree.map(lambda x: x[:4000], fresh).snapped(world)
    for name, factor in world.factors.items():
        bands = np.array(factor.state_bands)
        for c in factor.channels():
            for band in set(factor.state_bands) - {"defunct"}:
                ours, theirs = (
                    np.asarray(c.reading(tapes.values[name][c.name]))[:, 1:][bands[tapes.states[name]][:, 1:] == band]
                    for tapes in (few, host)
                )
                if len(theirs) < 100:
                    continue
                values = np.unique(np.concatenate([ours, theirs]))
                edges = np.unique(np.quantile(np.concatenate([ours, theirs]), np.linspace(0, 1, 13)))
                if len(values) > 12:
                    ours, theirs = (np.searchsorted(edges[1:-1], x, side="right") for x in (ours, theirs))
                    values = np.arange(len(edges) - 1)
                table = np.array([[(x == v).sum() for v in values] for x in (ours, theirs)])
                table = table[:, table.sum(axis=0) >= 20]
                if table.shape[1] > 1:
                    assert stats.chi2_contingency(table).pvalue > 1e-4, (c.name, band)


def test_a_dead_supplier_freezes_its_last_slip_and_fill(world, fresh, host):
    supplier = world.supplier
    for tapes in (jax.tree.map(lambda x: np.asarray(x[:5000]), fresh), host):
        states = tapes.states["supplier"]
        dead = np.array([r.name == "defunct" for r in supplier.state_regimes])[states]
        later = np.array([s == ("defunct", 1) for s in supplier.states])[states]
        assert dead.any(axis=1).sum() > 20
        np.testing.assert_array_equal(later[:, 1:], dead[:, :-1])
        assert not tapes.ages["supplier"][dead].any()
        for channel in ("realized_lead_slip", "realized_fill"):
            values = tapes.values["supplier"][channel]
            np.testing.assert_array_equal(values[:, 1:][later[:, 1:]], values[:, :-1][later[:, 1:]])
            of_death = values[dead & ~later]
            assert len(set(of_death.tolist())) > 5, "the week of death draws values of its own"


def test_week_0_is_constant(world, fresh):
    for tapes in (fresh, Tape.published_batch([1, 2], world)):
        for name, factor in world.factors.items():
            for c in factor.channels():
                first = np.asarray(tapes.values[name][c.name])[:, 0]
                np.testing.assert_array_equal(first, np.full_like(first, c.start))
            assert not np.asarray(tapes.ages[name])[:, 0].any()


# -- keys, types, readings


def test_a_fresh_tape_depends_on_the_key_and_its_number_alone(world, fresh):
    few = Tape.sample_batch(world, 3, key=jax.random.key(KEY))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:3], b), fresh, few)
    last = Tape.sample_batch(world, 3, key=jax.random.key(KEY), start=FRESH - 3)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[-3:], b), fresh, last)
    states = np.asarray(fresh.states["quality"])[:1000]
    assert len(np.unique(states, axis=0)) > 500, "tapes repeat"
    units = np.asarray(fresh.values["demand"]["pos_units"])[:2, 1:]
    assert (units[0] != units[1]).any()
    assert (
        np.corrcoef(np.asarray(fresh.states["port"] > 0)[:, 13], np.asarray(fresh.states["canal"] > 0)[:, 13])[0, 1]
        < 0.02
    )


def test_snapped_values_are_exact_decimals(world, fresh):
    few = jax.tree.map(lambda x: x[:500], fresh)
    snapped = few.snapped(world)
    decimals = {
        "realized_lead_slip": 1,
        "realized_fill": 2,
        "freight_index": 4,
        "freight_outlook": 4,
        "defect_fraction": 5,
    }
    for name, channels in snapped.values.items():
        for channel, values in channels.items():
            assert values.dtype == np.float64
            original = np.asarray(few.values[name][channel])
            np.testing.assert_array_max_ulp(values.astype(np.float32), original, maxulp=1)
            shown = values[~np.isnan(values)].ravel().tolist()
            assert all(v == round(v, decimals.get(channel, 0)) for v in shown), channel
            assert not np.signbit(values[values == 0]).any()
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(snapped))


def test_snapped_values_of_another_world_are_its_own_numbers():
    world = World.paper().perturb("canal.suez", 0.99)
    tape = jax.tree.map(lambda x: x[None], Tape.published(1, world))
    single = Tape(tape.states, tape.ages, jax.tree.map(np.float32, tape.values))
    np.testing.assert_array_equal(
        single.snapped(world).values["canal"]["suez_count"], tape.values["canal"]["suez_count"]
    )


def test_readings_show_no_hidden_channel_and_fill_only_where_sourced(world):
    tape = Tape.published(7, world)
    readings = tape.readings(world)
    assert "defect_fraction" not in readings["quality"]
    assert np.isnan(readings["supplier"]["realized_fill"]).all()
    multiplier = tape.values["freight"]["freight_index"]
    assert readings["freight"]["freight_index"].tolist() == [round(100 * m) for m in multiplier.tolist()]
    sourced = np.arange(27) % 2 == 1
    fill = tape.readings(world, sourced)["supplier"]["realized_fill"]
    np.testing.assert_array_equal(fill[sourced], tape.values["supplier"]["realized_fill"][sourced])
    assert np.isnan(fill[~sourced]).all()
    traced = jax.jit(lambda t, s: t.readings(world, s))(jax.tree.map(jnp.asarray, tape), sourced)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), traced, tape.readings(world, sourced))


def test_a_world_with_other_numbers_has_other_tapes(world):
    other = world.replace({"port.build_onset": 0.9, "demand.mean_normal": 60.0})
    tape = Tape.published(5, other)
    assert other.port.mask(bands=("building",))[tape.states["port"]].any()
    assert (tape.values["demand"]["pos_units"][1:6] > 40).all()
    # The supplier consumes its draws in the same order, whatever the port's parameters.
    np.testing.assert_array_equal(tape.states["canal"][:2], Tape.published(5, world).states["canal"][:2])
