"""The study of coverage: what it takes from the fits that it repeats."""

from __future__ import annotations

import numpy as np

from stocktake_jax.inference.coverage import Coverage, Plan, _about
from stocktake_jax.inference.fit import Problem
from stocktake_jax.inference.series import training_series
from stocktake_jax.models import World


def test_the_priors_width_is_that_of_the_fits():
    """Also of a level that is 0 in the world, whose prior is as wide as its neighbours are high."""
    world = World.paper()
    readings = training_series(world, 2, "spot20").readings
    priors = [Problem(world.factors[n], readings[n], learn="all").prior for n in ("supplier", "port")]
    names = [name for p in priors for name in p.names]
    moving, spread = _about(world, Plan(learn="all"), names)
    np.testing.assert_array_equal(spread, np.concatenate([p.standard_deviations for p in priors]))
    assert "supplier.slip_reliable" in names and spread[names.index("supplier.slip_reliable")] > 1
    assert "port.congest_persist" in moving and "port.wait_sd" not in moving


def test_an_interval_covers_if_the_truth_is_between_its_ends():
    """Two numbers, four fits by hand: an interval may miss on either side."""
    truth, estimate = np.array([0.5, 2.0]), np.array([[0.5, 2.0], [0.3, 2.0], [0.8, 2.0], [0.6, 5.0]])
    error = np.array([[0.1, 1.0]] * 4)
    found = Coverage(
        Plan(4, 1), World.paper(), ("port.build_onset", "port.wait_sd"), ("port.build_onset",), truth,
        np.array([0.3, 1.5]), estimate, error, estimate - 1.5 * error, estimate + error, np.ones((4, 2), bool),
    )  # fmt: skip
    assert found.covered.tolist() == [[True, True], [False, True], [False, True], [True, False]]
    assert found.covered_symmetric.tolist() == [[True, True], [False, True], [False, True], [True, False]]
    assert found.identifiable.tolist() == [True, False]
    assert [row["coverage"] for row in found.rows()] == [0.5, 0.75]
    pooled = found.pooled()
    assert (pooled["parameters"], pooled["coverage"], pooled["least"]) == (1, 0.5, 0.5)
    assert pooled["least_name"] == "port.build_onset"
