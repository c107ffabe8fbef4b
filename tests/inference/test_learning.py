"""Learning a world: what is saved, resumed, refused, and how the result is used."""

from __future__ import annotations

import dataclasses
import json
import shutil

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.inference import learning
from stocktake_jax.inference.learning import (
    Settings,
    WorldFit,
    fit_world,
    load_draws,
    load_transitions,
    posterior_worlds,
)
from stocktake_jax.inference.series import Series, training_series
from stocktake_jax.models import World

pytestmark = pytest.mark.usefixtures("standard_promotion")

SETTINGS = Settings(learn=("port.build_onset", "port.congest_persist", "quality.repair"), restarts=2)


@pytest.fixture(scope="module")
def series() -> Series:
    return training_series(World.paper(), 25)


@pytest.fixture(scope="module")
def fit(series, tmp_path_factory) -> tuple[WorldFit, object]:
    out = tmp_path_factory.mktemp("fit")
    with jax.numpy_dtype_promotion("standard"):
        return fit_world(World.paper(), series, SETTINGS, out=out), out


def test_the_learned_world_has_the_estimates_and_nothing_else(fit):
    result, _ = fit
    assert list(result.fits) == ["port", "quality"]
    base, world = World.paper(), result.world
    changed = {n for n, p in world.parameters.items() if not np.array_equal(p.value, base.get(n))}
    assert changed == set(SETTINGS.learn)
    for name, value in {**result.fits["port"].values, **result.fits["quality"].values}.items():
        assert float(world.get(name)) == value
    assert result.converged
    assert result.fixed["port.wait_sd"] == "was not asked for"


def test_what_is_saved_can_be_read_back(fit):
    import arviz_base  # noqa: F401
    import xarray as xr

    result, out = fit
    files = result.save(out, World.paper())
    names = {f.name for f in files}
    assert names == {"world.toml", "fit.json", "parameters.csv", "posterior.npz", "posterior.nc"}
    assert not list(out.rglob("*.part"))
    loaded = World.load(out / "world.toml")
    assert loaded.to_toml() == result.world.to_toml()
    draws = load_draws(out / "posterior.npz")
    assert set(draws) == set(SETTINGS.learn)
    assert draws["port.build_onset"].shape == (1, 1000)
    tree = xr.open_datatree(out / "posterior.nc", engine="h5netcdf")
    np.testing.assert_array_equal(tree["posterior"]["quality.repair"], draws["quality.repair"])
    assert tree["posterior"].attrs["method"] == "map"
    tree.close()
    document = json.loads((out / "fit.json").read_text(encoding="utf-8"))
    assert document["converged"] is True
    row = document["parameters"][0]
    assert row["name"] == "port.build_onset" and row["truth"] == 0.06 and row["r_hat"] is None
    assert "truth" not in result.rows()[0]


def test_an_interrupted_fit_goes_on_where_it_was(series, fit, tmp_path, monkeypatch):
    whole, _ = fit
    real = learning._fit

    def interrupted(factor, *arguments):
        if factor.name == "quality":
            raise KeyboardInterrupt
        return whole.fits[factor.name]

    monkeypatch.setattr(learning, "_fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit_world(World.paper(), series, SETTINGS, out=tmp_path)
    monkeypatch.setattr(learning, "_fit", real)
    events = []
    resumed = fit_world(World.paper(), series, SETTINGS, out=tmp_path, tell=lambda n, what: events.append((n, what)))
    assert events == [("port", "resumed"), ("quality", "starts"), ("quality", "done")]
    assert resumed.world.to_toml() == whole.world.to_toml()
    np.testing.assert_array_equal(resumed.fits["port"].draws, whole.fits["port"].draws)
    assert resumed.fits["port"].fixed == whole.fits["port"].fixed


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda s: {"settings": Settings(learn=SETTINGS.learn, restarts=2, seed=1)}, "settings"),
        (lambda s: {"series": training_series(World.paper(), 24)}, "readings"),
        (lambda s: {"base": World.paper().replace({"port.wait_sd": 2.5})}, "base world"),
        (lambda s: {"priors": {"port.build_onset": dist.Beta(2.0, 2.0)}}, "priors"),
    ],
)
def test_a_folder_with_another_fit_is_refused(fit, series, change, name):
    _, out = fit
    given = {"base": World.paper(), "series": series, "settings": SETTINGS, "priors": None} | change(series)
    with pytest.raises(InputError, match=f"holds a fit with other {name}"):
        fit_world(given["base"], given["series"], given["settings"], priors=given["priors"], out=out)


def test_a_damaged_result_is_named(series, fit, tmp_path):
    _, out = fit
    shutil.copytree(out, tmp_path / "copy")
    (tmp_path / "copy" / "factors" / "port.npz").write_bytes(b"half a fi")
    with pytest.raises(InputError, match=r"port\.npz is damaged"):
        fit_world(World.paper(), series, SETTINGS, out=tmp_path / "copy")


def test_factors_without_readings_keep_their_values_and_are_named(series, fit, monkeypatch):
    whole, _ = fit
    monkeypatch.setattr(learning, "_fit", lambda factor, *arguments: whole.fits[factor.name])
    only = Series({"port": series.readings["port"]}, series.names, series.lengths, ("week 3 was odd",))
    result = fit_world(World.paper(), only, Settings(learn="transitions"), factors=("port", "canal"))
    assert list(result.fits) == ["port"]
    assert result.notes == ("week 3 was odd", "canal: no readings; it keeps the base world's values")


def test_priors_of_factors_that_are_not_fitted_are_refused(series):
    with pytest.raises(InputError, match=r"canal\.watch_onset, whose factor is not fitted"):
        fit_world(World.paper(), series, SETTINGS, priors={"canal.watch_onset": dist.Beta(2.0, 2.0)})


def test_em_takes_no_priors(series):
    settings = Settings(method="em", learn="transitions")
    with pytest.raises(InputError, match="takes no priors"):
        fit_world(World.paper(), series, settings, factors=("port",), priors={"port.build_onset": dist.Beta(2.0, 2.0)})


def test_it_can_be_saved_where_nothing_is_yet(fit, tmp_path):
    result, _ = fit
    result.save(tmp_path / "deep" / "down")
    assert World.load(tmp_path / "deep" / "down" / "world.toml").to_toml() == result.world.to_toml()
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(InputError, match="cannot use the folder"):
        result.save(tmp_path / "file" / "below")


def test_contraction_is_the_share_of_prior_variance_that_went(fit):
    result, _ = fit
    for row in result.rows():
        assert row["contraction"] == pytest.approx(1 - 12 * row["standard_error"] ** 2)


def test_posterior_worlds_take_whole_draws_of_each_factor(fit):
    result, _ = fit
    draws = result.draws()
    worlds = posterior_worlds(World.paper(), draws, 40, key=jax.random.key(0))
    assert worlds.port.build_onset.shape == (40,)
    np.testing.assert_array_equal(worlds.demand.mean_normal, np.full(40, 20.0))
    a, b = draws["port.build_onset"].ravel(), draws["port.congest_persist"].ravel()
    taken = [int(np.flatnonzero(a == x)[0]) for x in worlds.port.build_onset]
    np.testing.assert_array_equal(worlds.port.congest_persist, b[taken])
    # Another factor takes draws of its own.
    assert not np.array_equal(worlds.quality.repair, draws["quality.repair"].ravel()[taken])
    with pytest.raises(InputError, match="no parameter of the world"):
        posterior_worlds(World.paper(), {"port.x": np.zeros((1, 2))}, 2, key=jax.random.key(0))


def test_several_workers_give_what_one_gives(fit, series):
    whole, _ = fit
    # A scope holds in its own thread alone; the workers see the session's setting.
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    try:
        shared = fit_world(World.paper(), series, SETTINGS, workers=2)
    finally:
        jax.config.update("jax_numpy_dtype_promotion", "strict")
    assert shared.world.to_toml() == whole.world.to_toml()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(method="mcmc"), "method must be one of map, nuts, svi, em"),
        (Settings(restarts=0), "restarts must be at least 1"),
        (Settings(seed=-1), "seed must be a whole number"),
        (Settings(method="em"), "em learns transitions"),
        (Settings(learn=("port.build_onse",)), "did you mean 'port.build_onset'"),
        (Settings(learn=("holding",)), "no parameter of a factor"),
        (Settings(learn=("quality.defect_out",)), "cannot be learned"),
    ],
)
def test_settings_that_cannot_be_run_are_refused(series, settings, message):
    with pytest.raises(InputError, match=message):
        fit_world(World.paper(), series, settings)


def test_unknown_factors_are_refused(series):
    with pytest.raises(InputError, match="unknown factor 'harbour'"):
        fit_world(World.paper(), series, factors=("harbour",))


def test_free_matrices_are_read_back(fit, tmp_path):
    result, _ = fit
    (tmp_path / "factors").mkdir()
    free = dataclasses.replace(result.fits["port"], transition=np.eye(3))
    for name, one in {"port": free, "quality": result.fits["quality"]}.items():
        learning._save_fit(tmp_path / "factors" / f"{name}.npz", one)
    found = load_transitions(tmp_path)
    assert list(found) == ["port"]
    np.testing.assert_array_equal(found["port"], np.eye(3))
