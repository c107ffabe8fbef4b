"""The world as one object: files, errors, replaced and perturbed parameters, batches of worlds."""

from __future__ import annotations

import dataclasses
import tomllib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.models import FACTORS, Costs, World, parameters


@pytest.fixture(scope="module")
def world():
    return World.paper()


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert jax.tree.structure(a) == jax.tree.structure(b)


def error_of(call) -> str:
    with pytest.raises(InputError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message
    return message


# -- files


def test_the_file_of_a_world_reads_back_to_the_same_world(world, tmp_path):
    changed = world.replace(
        {"port.congest_persist": 1 / 3, "canal.suez": (70, 63, 28.5, 0, 1e-7, 56), "costs.air": 1e9}
    )
    changed = changed.replace({"logistics.order_cap": 50})
    for w in (world, changed):
        same(World.from_toml(w.to_toml()), w)
    path = tmp_path / "world.toml"
    changed.save(path)
    same(World.load(path), changed)
    assert World.load(str(path)).logistics.order_cap == 50
    document = tomllib.loads(world.to_toml())
    assert list(document) == [*FACTORS, "costs", "logistics"]
    for section, table in document.items():
        assert set(table) == {f.name for f in dataclasses.fields(getattr(world, section))}


def test_keys_that_are_left_out_keep_their_published_value(world):
    same(World.from_toml(""), world)
    changed = World.from_toml("port.wait_sd = 3\n[logistics]\nlead_suez = 5\n")
    assert float(changed.port.wait_sd) == 3.0
    assert changed.port.wait_sd.dtype == np.float64
    assert changed.logistics.lead_suez == 5
    same(changed.canal, world.canal)


BAD_FILES = [
    ("[prot]\nwait_sd = 1", ("unknown section 'prot'", "did you mean 'port'")),
    (
        "[zzz]\nwait_sd = 1",
        ("unknown section 'zzz'", "canal, supplier, demand, freight, port, quality, costs, logistics"),
    ),
    ("[port]\ncongest_presist = 0.8", ("'port.congest_presist'", "did you mean 'port.congest_persist'")),
    ("[logistics]\norder_capp = 8", ("'logistics.order_capp'", "did you mean 'logistics.order_cap'")),
    ("[port.inner]\na = 1", ("unknown parameter 'port.inner'",)),
    ('[port]\ncongest_persist = "0.8"', ("port.congest_persist", "'0.8'", "a number in [0, 1]", "P(congestion")),
    ("[port]\ncongest_persist = true", ("port.congest_persist", "True", "a number in [0, 1]")),
    ("[port]\ncongest_persist = [0.8]", ("port.congest_persist", "[0.8]", "a number in [0, 1]")),
    ("[port]\ncongest_persist = 1979-05-27", ("port.congest_persist", "1979", "a number in [0, 1]")),
    ("[port]\ncongest_persist = nan", ("port.congest_persist", "nan", "[0, 1]")),
    ("[port]\ncongest_persist = 1.01", ("port.congest_persist", "1.01", "[0, 1]")),
    ("[port]\ncongest_persist = -0.1", ("port.congest_persist", "-0.1", "[0, 1]")),
    ("[port]\nwait_sd = 0", ("port.wait_sd", "is 0;", "(0, inf)")),
    ("[port]\nwait_sd = inf", ("port.wait_sd", "inf", "(0, inf)")),
    ("[costs]\nair = -1", ("costs.air", "-1", "[0, inf)")),
    ("[costs]\ndelta_spot = nan", ("costs.delta_spot", "nan", "any finite number")),
    (f"[costs]\nair = 1{'0' * 400}", ("costs.air", "a number in [0, inf)")),
    ("[logistics]\ndefects_passed = 2", ("logistics.defects_passed", "[0, 1]")),
    ("[canal]\nsuez = [1, 2]", ("canal.suez", "[1, 2]", "a list of 6 numbers in [0, inf)")),
    ("[canal]\nsuez = 70", ("canal.suez", "70", "a list of 6 numbers")),
    ("[canal]\nsuez = [1, 2, 3, 4, 5, true]", ("canal.suez", "True", "a list of 6 numbers")),
    ("[canal]\nsuez = [1, 2, 3, 4, 5, nan]", ("canal.suez", "nan", "[0, inf)")),
    ("[canal]\nsuez = [[1, 2], [3, 4], [5, 6]]", ("canal.suez", "a list of 6 numbers")),
    ("[canal]\nsuez = [[1, 2], [3]]", ("canal.suez", "a list of 6 numbers")),
    (
        "[port]\ncongest_onset = 0.8",
        ("port.congest_onset (0.8)", "port.disperse (0.3)", "1.1", "'building'", "at most 1"),
    ),
    ("[quality]\naccept_out = 0.9", ("quality.accept_out (0.9)", "quality.marginal_out (0.25)", "at most 1")),
    ("port = 3", ("port must be a table like [port]", "3")),
    ("[[port]]\nwait_sd = 3", ("port must be a table like [port]",)),
    ("[logistics]\norder_cap = 0", ("logistics.order_cap", "is 0;", "a whole number in [1, 1000000]")),
    ("[logistics]\norder_cap = 2.0", ("logistics.order_cap", "2.0", "a whole number in [1, 1000000]")),
    ("[logistics]\norder_cap = true", ("logistics.order_cap", "True", "a whole number")),
    ("[logistics]\nlead_suez = 27", ("logistics.lead_suez", "27", "[1, 26]")),
    ("[port\n", ("not a TOML document", "line 1")),
    ("[port]\nwait_sd = 1\nwait_sd = 2", ("not a TOML document", "overwrite")),
]


@pytest.mark.parametrize(("text", "parts"), BAD_FILES)
def test_errors_in_files_name_the_key_the_value_and_the_range(text, parts, tmp_path):
    path = tmp_path / "world.toml"
    path.write_text(text)
    message = error_of(lambda: World.load(path))
    assert str(path) in message
    for part in parts:
        assert part in message


def test_files_that_cannot_be_read_are_named(tmp_path):
    assert "missing.toml" in error_of(lambda: World.load(tmp_path / "missing.toml"))
    assert str(tmp_path) in error_of(lambda: World.load(tmp_path))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "binary.toml" in error_of(lambda: World.load(tmp_path / "binary.toml"))


# -- parameters by name


def test_every_parameter_has_a_name_a_meaning_and_a_value_in_its_range(world):
    assert world.parameters.keys() >= {"port.congest_persist", "costs.air", "logistics.mean_demand"}
    for name, p in world.parameters.items():
        assert p.doc
        assert p.constraint.contains(p.value), name
        assert np.asarray(p.value).dtype == np.float64
        np.testing.assert_array_equal(world.get(name), p.value)
    world.check()


def test_replace_changes_what_is_named_and_nothing_else(world):
    other = world.replace({"port.congest_persist": 0.5, "costs.air": 3})
    assert float(other.get("port.congest_persist")) == 0.5
    assert float(other.costs.air) == 3.0
    changed = {k for k in world.parameters if not np.array_equal(world.get(k), other.get(k))}
    assert changed == {"port.congest_persist", "costs.air"}
    assert float(world.port.congest_persist) == 0.85
    assert other.port.transition_matrix()[2, 3] == 0.5


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"port.congest_persit": 0.5}, ("port.congest_persit", "port.congest_persist")),
        ({"port": 0.5}, ("unknown parameter 'port'",)),
        ({"": 0.5}, ("unknown parameter ''",)),
        ({"port.congest_persist": "high"}, ("port.congest_persist", "'high'", "a number in [0, 1]")),
        ({"port.congest_persist": None}, ("port.congest_persist", "None", "a number")),
        ({"port.congest_persist": True}, ("port.congest_persist", "True")),
        ({"port.congest_persist": np.bool_(True)}, ("port.congest_persist", "a number")),
        ({"port.congest_persist": [0.5, 0.5]}, ("port.congest_persist", "a number in [0, 1]")),
        ({"port.congest_persist": 1.5}, ("port.congest_persist", "1.5", "[0, 1]")),
        ({"port.congest_persist": jnp.float32(1.5)}, ("port.congest_persist", "1.5", "[0, 1]")),
        ({"port.build_onset": 0.7, "port.customs_onset": 0.7}, ("1.4", "'clear'", "at most 1")),
        ({"logistics.air_cap": -1}, ("logistics.air_cap", "-1", "a whole number")),
    ],
)
def test_replace_refuses(world, values, parts):
    message = error_of(lambda: world.replace(values))
    for part in parts:
        assert part in message


def test_replaced_rows_are_judged_together(world):
    """Two values that would each break the row with the other's old one are fine together."""
    other = world.replace({"freight.spike_onset": 0.9, "freight.ease": 0.1})
    np.testing.assert_allclose(other.freight.transition_matrix().sum(axis=1), 1.0, atol=1e-15)


# -- misspecified worlds


def test_perturbing_a_probability_multiplies_its_odds_and_shrinks_its_rivals(world):
    for factor in (0.25, 4.0):
        other = world.perturb("canal.disruption_onset", factor)
        old, new = 0.5, float(other.canal.disruption_onset)
        np.testing.assert_allclose(new / (1 - new), factor * old / (1 - old))
        room = (1 - new) / (1 - old)
        np.testing.assert_allclose(other.canal.false_alarm, 0.2 * room)
        np.testing.assert_allclose(other.canal.stand_down, 0.15 * room)
        stay = other.canal.transition_matrix()[1, 1]
        np.testing.assert_allclose(stay, 0.15 * room)
        assert float(other.canal.watch_onset) == 0.08


def test_no_perturbation_leaves_the_range_or_overfills_a_row(world):
    for name, p in world.parameters.items():
        for factor in (1e-3, 1e3):
            other = world.perturb(name, factor)
            assert p.constraint.contains(other.get(name))
            if p.row:
                rows = other.factors[name.split(".")[0]].transition_matrix().sum(axis=1)
                np.testing.assert_allclose(rows, 1.0, atol=1e-9)


def test_perturbing_anything_else_scales_it(world):
    assert float(world.perturb("port.wait_sd", 2.0).port.wait_sd) == 4.0
    assert float(world.perturb("costs.delta_spot", 2.0).costs.delta_spot) == -3.0
    np.testing.assert_allclose(world.perturb("canal.suez", 0.5).canal.suez, np.asarray(world.canal.suez) / 2)
    same(world.perturb("port.wait_sd", 1.0), world)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_perturb_refuses_factors(world, factor):
    assert "port.wait_sd" in error_of(lambda: world.perturb("port.wait_sd", factor))
    assert "did you mean 'port.wait_sd'" in error_of(lambda: world.perturb("port.wait_sdd", 2.0))


# -- worlds under jax


def test_worlds_can_be_vmapped(world):
    values = [0.1, 0.5, 0.9]
    stacked = jax.tree.map(lambda *x: np.stack(x), *[world.replace({"port.congest_persist": v}) for v in values])
    stacked.check()
    matrices = jax.jit(jax.vmap(lambda w: w.port.transition_matrix()))(stacked)
    for v, matrix in zip(values, matrices, strict=True):
        np.testing.assert_allclose(
            matrix, world.replace({"port.congest_persist": v}).port.transition_matrix(), rtol=1e-6
        )
    broken = jax.tree.map(lambda *x: np.stack(x), world, dataclasses.replace(world, costs=Costs(air=-1.0)))
    assert "costs.air" in error_of(broken.check)


def test_traced_values_can_replace_parameters_and_are_not_checked(world):
    def stay(value):
        return world.replace({"port.congest_persist": value, "costs.air": 2.0}).port.transition_matrix()[2, 3]

    assert float(jax.jit(stay)(0.25)) == 0.25
    assert float(jax.grad(stay)(0.25)) == 1.0
    assert float(jax.jit(stay)(7.0)) == 7.0

    def inside(w):  # the world itself is traced, the new value is not
        return w.replace({"port.congest_persist": 0.25}).port.transition_matrix()[2, 3]

    assert float(jax.jit(inside)(world)) == 0.25


def test_whole_numbers_of_the_logistics_are_static(world):
    leaves = jax.tree.leaves(world)
    assert len(leaves) == len(world.parameters)
    other = world.replace({"logistics.lead_cape": 6})
    assert other.logistics.lead_cape == 6
    assert jax.tree.structure(other) != jax.tree.structure(world)
    assert jax.jit(lambda w: jnp.zeros((w.logistics.lead_cape,)))(other).shape == (6,)


def test_cast_gives_jax_arrays_of_one_type(world):
    assert {leaf.dtype for leaf in jax.tree.leaves(world.cast(jnp.float32))} == {np.dtype("float32")}


def test_factors_are_six_in_their_order(world):
    assert tuple(world.factors) == FACTORS == ("canal", "supplier", "demand", "freight", "port", "quality")
    assert all(factor.name == name for name, factor in world.factors.items())
    assert parameters(world.port)["congest_persist"].unit == "1"
