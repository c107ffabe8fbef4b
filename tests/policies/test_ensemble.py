"""Many oracles at once do what each would do alone; devices share a batch and change nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation import simulate
from stocktake_jax.models import Tape, World
from stocktake_jax.policies import Oracle, Runs
from stocktake_jax.policies.ensemble import OracleEnsemble, long_run

SEEDS, FUTURES = (24, 12), 12


def _play(policy: Any, models: int = 1) -> Any:
    world = World.paper()
    runs = Runs(np.tile(np.array(SEEDS), models), np.ones(len(SEEDS) * models, int))
    return simulate(policy, Tape.published_batch(SEEDS, world), runs, np.tile(np.arange(len(SEEDS)), models))


@pytest.fixture(scope="module")
def ensemble() -> Any:
    world = World.paper()
    wrong = world.perturb("supplier.wobble_onset", 3.0)
    models = [wrong, world, world, world]
    ignored = [frozenset(), frozenset(), frozenset({"port"}), frozenset()]
    matrices: list[Any] = [{}, {}, {}, {"supplier": wrong.supplier.transition_matrix()}]
    return _play(OracleEnsemble(models, ignored=ignored, matrices=matrices, futures=FUTURES), 4)


@pytest.fixture(scope="module")
def alone() -> Any:
    return _play(Oracle(futures=FUTURES))


def test_each_model_decides_as_it_would_alone(ensemble: Any, alone: Any) -> None:
    np.testing.assert_array_equal(ensemble.cost[2:4], alone.cost)
    for field, value in alone.decision.items():
        np.testing.assert_array_equal(ensemble.decision[field][2:4], value, err_msg=field)
    # Another belief is another belief: its evidence differs.
    assert np.any(ensemble.notes["evidence.supplier"][:2] != ensemble.notes["evidence.supplier"][2:4])


def test_an_ignored_factor_stays_at_its_long_run_law(ensemble: Any) -> None:
    port = World.paper().port
    law = np.asarray(
        port.regime_probabilities(long_run(np.asarray(port.transition_matrix())).astype(np.float32)[None])
    )[0]
    blind, watching = ensemble.notes["belief.port"][4:6], ensemble.notes["belief.port"][2:4]
    np.testing.assert_allclose(blind, np.broadcast_to(law, blind.shape), atol=1e-6)
    assert np.abs(watching - law).max() > 0.1
    np.testing.assert_array_equal(ensemble.notes["evidence.port"][4:6], 0.0)


def test_a_matrix_takes_the_place_of_the_declared_one(ensemble: Any) -> None:
    # The world whose supplier has the matrix of another world is, but for what is shown, that world.
    np.testing.assert_array_equal(ensemble.cost[6:8], ensemble.cost[:2])
    np.testing.assert_array_equal(ensemble.notes["belief.supplier"][6:8], ensemble.notes["belief.supplier"][:2])
    world = World.paper()
    with pytest.raises(InputError, match=r"no factor 'port' with a transition matrix of shape \(3, 3\)"):
        OracleEnsemble([world], matrices=[{"port": np.eye(3)}])
    with pytest.raises(InputError, match="no factor 'weather'"):
        OracleEnsemble([world], matrices=[{"weather": np.eye(3)}])


def test_long_run_laws() -> None:
    for name, factor in World.paper().factors.items():
        matrix = np.asarray(factor.transition_matrix())
        law = long_run(matrix)
        assert law.sum() == pytest.approx(1.0) and law.min() >= 0
        if name == "supplier":
            assert 0 < law[-1] < 0.5  # defunct for some of the weeks, not for ever
        else:
            np.testing.assert_allclose(law @ matrix, law, atol=1e-10)


def test_what_is_refused() -> None:
    world = World.paper()
    with pytest.raises(InputError, match="at least one model"):
        OracleEnsemble([])
    with pytest.raises(InputError, match="unknown factor 'weather'"):
        OracleEnsemble([world], ignored=[frozenset({"weather"})])
    with pytest.raises(InputError, match="share lead times"):
        OracleEnsemble([world, World.from_toml("[logistics]\nlead_suez = 2\n")])
    with pytest.raises(InputError, match="shared evenly"):
        OracleEnsemble([world, world]).begin(Runs(np.arange(3), np.ones(3, int)))


SCRIPT = """
import json
import jax
jax.config.update("jax_num_cpu_devices", 8)
import numpy as np
from stocktake_jax.evaluation import simulate
from stocktake_jax.models import Tape, World
from stocktake_jax.policies import Oracle, Runs
from stocktake_jax.policies.ensemble import OracleEnsemble
world, seeds = World.paper(), (24, 12)
tapes, everywhere = Tape.published_batch(seeds, world), {"futures": 12, "devices": jax.devices()}
runs = Runs(np.tile(np.array(seeds), 4), np.repeat([1, 2, 3, 4], 2))
one = simulate(Oracle(**everywhere), tapes, runs, np.tile([0, 1], 4))
models = [world.perturb("supplier.wobble_onset", 3.0), world, world]
ignored = [frozenset(), frozenset(), frozenset({"port"})]
runs = Runs(np.tile(np.array(seeds), 3), np.ones(6, int))
many = simulate(OracleEnsemble(models, ignored=ignored, **everywhere), tapes, runs, np.tile([0, 1], 3))
print(json.dumps([jax.device_count(), one.cost.tolist(), many.cost.tolist()]))
"""


def test_eight_devices_change_nothing(ensemble: Any, alone: Any) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    devices, one, many = json.loads(done.stdout.splitlines()[-1])
    assert devices == 8
    assert many == ensemble.cost[: len(many)].tolist()
    assert one[:2] == alone.cost.tolist()
