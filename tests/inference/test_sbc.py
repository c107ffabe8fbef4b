"""Simulation-based calibration: a right posterior passes, a wrong one fails."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.inference import sbc
from stocktake_jax.inference.sbc import LOG_LIKELIHOOD, Ranks, document_of, rank_rows, simulation_based_calibration
from stocktake_jax.models import Port

SIZES = {"series": 5, "weeks": 16, "warmup": 80, "draws": 19, "thin": 2}
LEARN = ("port.build_onset", "port.congest_persist")


@pytest.mark.usefixtures("standard_promotion")
def test_the_posterior_is_right_on_a_small_problem():
    ranks = simulation_based_calibration(Port(), key=jax.random.key(4), replicates=40, learn=LEARN, **SIZES)
    assert ranks.quantities == (*LEARN, LOG_LIKELIHOOD)
    assert ranks.ranks.shape == (40, 3)
    assert ranks.ranks.min() >= 0 and ranks.ranks.max() <= 19
    assert ranks.failures() == ()


def test_an_interrupted_run_goes_on_and_counts_nothing_twice(tmp_path, monkeypatch):
    def cheap(*problem):
        return lambda u, key_data, key_chain: (jax.random.randint(key_data, (3,), 0, 20), jnp.int32(0))

    monkeypatch.setattr(sbc, "_replicate", cheap)
    seen = []
    how = {"key": jax.random.key(4), "replicates": 40, "learn": LEARN, "out": tmp_path, **SIZES}

    def interrupt(done):
        seen.append(done)
        if done == 15:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulation_based_calibration(Port(), on_replicate=interrupt, **how)
    log = tmp_path / "sbc" / "port.jsonl"
    with log.open("a", encoding="utf-8") as file:
        file.write('{"ranks": [1, 2')  # a kill in the middle of a line
    ranks = simulation_based_calibration(Port(), on_replicate=seen.append, **how)
    # The finished data sets are there, each once, and a third call has nothing to do.
    assert len(log.read_text(encoding="utf-8").splitlines()) == 41
    np.testing.assert_array_equal(simulation_based_calibration(Port(), **how).ranks, ranks.ranks)
    with pytest.raises(InputError, match="is of another run"):
        simulation_based_calibration(Port(), **{**how, "key": jax.random.key(5)})
    assert seen == list(range(1, 41))
    fresh = simulation_based_calibration(Port(), **{**how, "out": None})
    np.testing.assert_array_equal(fresh.ranks, ranks.ranks)


@pytest.mark.usefixtures("standard_promotion")
def test_a_likelihood_that_is_not_the_datas_is_noticed(monkeypatch):
    # Posteriors of other series than those drawn: they are about other parameters.
    real = sbc._simulated

    def wrong(problem, values, series, weeks, key):
        return real(problem, values * 0.3, series, weeks, key)

    monkeypatch.setattr(sbc, "_simulated", wrong)
    ranks = simulation_based_calibration(Port(), key=jax.random.key(4), replicates=40, learn=LEARN, **SIZES)
    assert "port.build_onset" in ranks.failures()


def test_tests_of_uniformity():
    rng = np.random.default_rng(0)
    flat = rng.integers(0, 20, (200, 3))
    assert Ranks("port", ("a", "b", "c"), flat, 19, np.zeros(200)).failures() == ()
    skewed = flat.copy()
    skewed[:, 1] = rng.binomial(19, 0.5, 200)
    found = Ranks("port", ("a", "b", "c"), skewed, 19, np.zeros(200))
    assert found.failures() == ("b",)
    assert found.histogram().sum() == 600
    assert found.histogram().shape == (3, 8)
    assert found.document()["not_uniform"] == ["b"]
    few = Ranks("port", ("a",), flat[:3, :1], 19, np.zeros(3))
    assert few.bins == 1 and few.failures() == ()
    assert document_of([found])["factors"] == [found.document()]
    rows = list(rank_rows([found]))
    assert len(rows) == 600 and rows[4] == {
        "factor": "port", "replicate": 1, "quantity": "b", "rank": int(skewed[1, 1]), "draws": 19,
    }  # fmt: skip


def test_ranks_of_whole_numbers_allow_for_bins_of_unequal_size():
    every = np.tile(np.arange(10), 40)[:, None]  # ten ranks in eight bins: two bins hold two
    assert Ranks("port", ("a",), every, 9, np.zeros(400)).p_values()[0] > 0.99


def test_sizes_are_checked():
    with pytest.raises(InputError, match="replicates must be at least 1"):
        simulation_based_calibration(Port(), key=jax.random.key(0), replicates=0)
