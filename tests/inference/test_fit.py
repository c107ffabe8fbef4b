"""Fitting one factor: the mode and its intervals, NUTS, SVI and EM; what is kept fixed; what is refused."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.inference import fit as fit_module
from stocktake_jax.inference.em import fit_em
from stocktake_jax.inference.fit import (
    Mode,
    Problem,
    find_mode,
    fit_map,
    fit_nuts,
    fit_svi,
    laplace_interval,
)
from stocktake_jax.inference.series import training_series
from stocktake_jax.models import Canal, Port, Quality, Supplier, World

pytestmark = pytest.mark.usefixtures("standard_promotion")


@pytest.fixture(scope="module")
def sixty() -> dict[str, dict[str, np.ndarray]]:
    """Readings of sixty published tapes."""
    return training_series(World.paper(), 60).readings


@pytest.fixture(scope="module")
def port(sixty) -> Problem:
    return Problem(Port(), sixty["port"], learn="transitions")


@pytest.fixture(scope="module")
def mode(port) -> Mode:
    with jax.numpy_dtype_promotion("standard"):
        return find_mode(port, key=jax.random.key(0), restarts=3)


def test_the_mode_is_a_maximum_that_every_restart_reaches(port, mode):
    assert mode.problems == ()
    assert mode.reached == (3, 3)
    with jax.enable_x64(True):
        (value, evidence), slope = port.negative(jnp.asarray(mode.u), port.data)
    np.testing.assert_allclose(value, -mode.value, rtol=1e-12)
    np.testing.assert_allclose(evidence, mode.log_evidence)
    assert np.abs(slope).max() < 1e-2
    for k in range(mode.u.size):
        for step in (-0.3, 0.3):
            with jax.enable_x64(True):
                (worse, _), _ = port.negative(jnp.asarray(mode.u + step * np.eye(mode.u.size)[k]), port.data)
            assert worse > value


def test_the_curvature_is_that_of_the_density(port, mode):
    # Along a line, the second difference of the density itself, not of its gradient.
    direction = np.ones(mode.u.size) / np.sqrt(mode.u.size)
    h = 1e-3
    with jax.enable_x64(True):
        at = [float(port.negative(jnp.asarray(mode.u + s * direction), port.data)[0][0]) for s in (-h, 0.0, h)]
    second = (at[0] - 2 * at[1] + at[2]) / h**2
    np.testing.assert_allclose(direction @ mode.precision @ direction, second, rtol=1e-3)


def test_map_recovers_what_made_the_series(port, mode):
    fit = fit_map(port, key=jax.random.key(1), mode=mode)
    assert fit.converged
    rows = {r["name"]: r for r in fit.recovery(Port())}
    assert all(abs(r["z"]) < 3 for r in rows.values())
    assert sum(r["covered"] for r in rows.values()) >= len(rows) - 2
    assert all(r["standard_error"] < 0.3 * max(r["truth"], 0.3) for r in rows.values())
    assert fit.draws.shape == (1, 1000, len(port.names))
    np.testing.assert_allclose(fit.draws[0].std(0), fit.standard_error, rtol=0.15)
    assert fit.log_evidence == pytest.approx(port.evidence_at(fit.estimate).sum(), rel=1e-9)


def test_labels_do_not_switch_whatever_the_start(sixty):
    # Levels start far off and close together; the ladder keeps their order all the way to the truth.
    far = dataclasses.replace(Port(), wait_clear=5.0, wait_building=6.0, wait_slow=7.0, wait_blocked=8.0, wait_sd=4.0)
    problem = Problem(far, sixty["port"], learn=[f"wait_{n}" for n in ("clear", "building", "slow", "blocked", "sd")])
    fit = fit_map(problem, key=jax.random.key(0), restarts=2)
    v = fit.values
    assert abs(v["port.wait_sd"] - 2) < 0.2
    assert v["port.wait_clear"] < v["port.wait_building"] < v["port.wait_slow"] < v["port.wait_blocked"]
    found = np.array([v[f"port.wait_{n}"] for n in ("clear", "building", "slow", "blocked")])
    np.testing.assert_allclose(found, [1, 4, 14, 16], atol=1.0)
    levels = fit.draws[0][:, [fit.names.index(f"port.wait_{n}") for n in ("clear", "building", "slow", "blocked")]]
    assert np.all(np.diff(levels, axis=1) > 0)


def test_only_what_was_asked_for_moves(sixty):
    problem = Problem(Quality(), sixty["quality"], learn=["hazard_slope", "quality.repair"])
    assert problem.names == ("quality.hazard_slope", "quality.repair")
    built = problem.prior.build_host(np.array([0.01, 0.5]))
    assert float(built.hazard_slope) == 0.01
    assert float(built.repair) == 0.5
    assert float(built.drift_onset) == 0.04
    assert problem.fixed["quality.drift_onset"] == "was not asked for"
    assert "nobody sees" in problem.fixed["quality.defect_out"]


def test_missing_weeks_and_channels_say_nothing(sixty):
    whole = {c: y[:, :20] for c, y in sixty["port"].items()}
    ragged = {c: np.concatenate([y, np.full((60, 9), np.nan)], axis=1) for c, y in whole.items()}
    a, b = (Problem(Port(), r, learn="transitions") for r in (whole, ragged))
    values = a.prior.inside()
    np.testing.assert_allclose(a.evidence_at(values), b.evidence_at(values), rtol=1e-12)
    one = Problem(Port(), {"berth_wait": whole["berth_wait"]}, learn="all")
    assert "port.outlook_sd" in one.fixed
    assert "port.wait_sd" in one.names


def test_a_prior_pulls_and_one_on_a_part_of_the_range_confines(sixty):
    few = {c: y[:3] for c, y in sixty["port"].items()}
    priors = {"customs_persist": dist.Beta(90.0, 10.0), "port.build_onset": dist.Uniform(0.2, 0.3)}
    problem = Problem(Port(), few, learn=["customs_persist", "build_onset"], priors=priors)
    fit = fit_map(problem, key=jax.random.key(0), restarts=2)
    assert fit.values["port.customs_persist"] > 0.8
    assert 0.2 < fit.low[0] < fit.estimate[0] < fit.high[0] < 0.3
    assert np.all((fit.draws[0, :, 0] > 0.2) & (fit.draws[0, :, 0] < 0.3))
    np.testing.assert_allclose(fit.diagnostics["prior_sd"], [0.1 / np.sqrt(12), np.sqrt(0.09 / 101)], rtol=1e-5)


def test_with_the_default_prior_the_mode_is_one_more_success_in_two_more_trials():
    # Counts are exact, so all transitions are seen: a probability's evidence is binomial.
    suez = np.array([[70.0, 70.0, 63.0, 70.0, 70.0]])
    fit = fit_map(Problem(Canal(), {"suez_count": suez}, learn=["watch_onset"]), key=jax.random.key(0), restarts=1)
    assert fit.estimate[0] == pytest.approx((1 + 1) / (3 + 2), rel=1e-4)


def test_impossible_series_are_refused_by_number_and_week():
    band = np.array([[0.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
    with pytest.raises(InputError, match=r"supplier: series 1 in week 1 .*1 of 2 series"):
        find_mode(Problem(Supplier(), {"band": band}, learn="transitions"), key=jax.random.key(0))


def test_nothing_to_learn_and_no_restart_are_refused(sixty, port):
    with pytest.raises(InputError, match="no parameter of 'transitions' can be learned"):
        Problem(_Still(), {"berth_wait": sixty["port"]["berth_wait"]}, learn="transitions")
    with pytest.raises(InputError, match="restarts"):
        find_mode(port, key=jax.random.key(0), restarts=0)


class _Still(Port):
    """A port whose chain has no parameters."""

    def moves(self, regime, age):
        return "clear"


def test_intervals_stay_inside_and_are_symmetric_on_their_scale(sixty):
    problem = Problem(Port(), sixty["port"], learn=["customs_onset", "wait_sd"])
    low, high = laplace_interval(problem, np.array([0.02, 2.0]), np.array([0.015, 0.1]))
    assert 0 < low[0] < 0.02 < high[0] < 1
    assert 0.02 - low[0] < high[0] - 0.02
    np.testing.assert_allclose(np.log(2.0 / low[1]), np.log(high[1] / 2.0))
    np.testing.assert_allclose(np.log(high[1] / 2.0), 1.6449 * 0.1 / 2.0, rtol=1e-4)


def test_nuts_finds_the_posterior_that_laplace_approximates(port, mode):
    laplace = fit_map(port, key=jax.random.key(1), mode=mode, draws=4000)
    fit = fit_nuts(port, key=jax.random.key(2), chains=2, warmup=120, samples=200, mode=mode)
    assert fit.draws.shape == (2, 200, len(port.names))
    scale = laplace.standard_error
    np.testing.assert_allclose(fit.estimate, laplace.draws[0].mean(0), atol=0.35 * scale.max())
    assert np.all(np.abs(fit.estimate - laplace.draws[0].mean(0)) < 0.4 * scale)
    np.testing.assert_allclose(fit.standard_error, scale, rtol=0.35)
    assert fit.diagnostics["divergences"] <= 5
    assert len(fit.diagnostics["r_hat"]) == len(port.names)
    assert np.all(np.array(fit.diagnostics["r_hat"]) < 1.1)


@pytest.mark.slow
def test_svi_finds_it_too(port, mode):
    laplace = fit_map(port, key=jax.random.key(1), mode=mode)
    fit = fit_svi(port, key=jax.random.key(2), steps=500, draws=400, mode=mode)
    assert np.all(np.abs(fit.estimate - laplace.draws[0].mean(0)) < 0.5 * laplace.standard_error)
    assert fit.diagnostics["importance_efficiency"] > 0.2
    assert set(fit.diagnostics) == {"elbo", "elbo_gain", "importance_efficiency", "prior_sd"}


def test_em_learns_free_rows_and_the_nearest_parameters(sixty, port, mode):
    fit = fit_em(Port(), sixty["port"])
    assert fit.converged
    assert fit.transition.shape == (12, 12)
    np.testing.assert_allclose(fit.transition.sum(1), 1.0)
    assert np.all(fit.transition[~Port().support()] == 0)
    # Rows that have one parameter each at most agree with the maximum-likelihood fit; EM has no penalty.
    values = dict(zip(port.names, port.prior.values_at(mode.u[None])[0], strict=True))
    free = fit.transition
    np.testing.assert_allclose(free[0, 1], values["port.build_onset"], atol=0.01)
    np.testing.assert_allclose(fit.values["port.congest_persist"], values["port.congest_persist"], atol=0.03)
    assert np.isnan(fit.low).all()


def test_em_that_is_stopped_early_says_so(sixty):
    short = fit_em(Port(), {c: y[:5] for c, y in sixty["port"].items()}, iterations=2)
    assert not short.converged
    assert "still gained" in short.problems[0]


def test_more_starts_are_tried_until_two_agree(port, monkeypatch):
    ends = iter([5.0, 3.0, 1.0, 1.2, 0.0])
    monkeypatch.setattr(fit_module, "_lbfgs", lambda objective, u, iterations: (u, next(ends)))
    monkeypatch.setattr(fit_module, "_newton", lambda objective, u: (u, 1.0, np.eye(u.size), 0.0))
    found = find_mode(port, key=jax.random.key(0), restarts=2)
    assert found.reached == (2, 4)
    assert found.problems == ()
    ends = iter([5.0, 3.0, 1.0, 2.0, 4.0, 6.0])
    lonely = find_mode(port, key=jax.random.key(0), restarts=2)
    assert lonely.reached == (1, 6)
    assert "only 1 of 6 restarts" in lonely.problems[0]
