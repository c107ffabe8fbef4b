"""Misspecification studies: what is varied, that runs are paired, and what is said of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.studies import (
    PRESETS,
    Variant,
    calibration_error,
    grid_of,
    onset_parameters,
    presets,
    run_study,
    transition_parameters,
    variants_of,
)
from stocktake_jax.models import FACTORS, World

WORLD = World.paper()


def test_parameters_are_told_apart() -> None:
    assert transition_parameters(WORLD.supplier) == ("wobble_onset", "degrade", "steady", "death", "degraded_persist")
    assert onset_parameters(WORLD.port) == ("build_onset", "customs_onset")
    assert sum(len(transition_parameters(f)) for f in WORLD.factors.values()) == 35


def test_presets_change_what_they_say() -> None:
    tornado = presets(WORLD, "tornado")
    assert len(tornado) == 70 and len({v.label for v in tornado}) == 70
    doubled = next(v for v in tornado if v.label == "port.congest_onset x2").model
    assert float(doubled.port.congest_onset) == pytest.approx(0.6 / 1.3)
    # The competing way out of building makes room in proportion.
    assert float(doubled.port.disperse) == pytest.approx(0.3 * (1 - 0.6 / 1.3) / 0.7)
    noise = {v.parameter for v in presets(WORLD, "noise")}
    assert noise == {
        "supplier.slip_sd", "supplier.fill_sd", "demand.units_sd", "demand.forecast_sd",
        "freight.realized_sd", "freight.outlook_sd", "port.wait_sd", "port.outlook_sd",
    }  # fmt: skip
    frequent = next(v for v in presets(WORLD, "stress") if v.label == "stress of port x2").model
    assert float(frequent.port.build_onset) > 0.1 and float(frequent.port.congest_persist) == 0.85
    assert float(frequent.canal.watch_onset) == 0.08
    assert [v.ignored for v in presets(WORLD, "ignore")] == [frozenset({f}) for f in FACTORS]
    assert presets(WORLD, "likelihood")[0].likelihood == "exact"
    assert presets(WORLD, "initial")[0].initial == "baseline"
    assert all(presets(WORLD, name) for name in PRESETS)
    with pytest.raises(InputError, match="unknown preset 'storm'"):
        presets(WORLD, "storm")


def test_grids() -> None:
    grid = grid_of(WORLD, ("port.wait_sd", (0.5, 1.0)), ("port.outlook_sd", (1.0, 2.0)))
    assert [(float(v.model.port.wait_sd), float(v.model.port.outlook_sd)) for v in grid] == [
        (1.0, 3.0), (1.0, 6.0), (2.0, 3.0), (2.0, 6.0),
    ]  # fmt: skip
    with pytest.raises(InputError, match="two different"):
        grid_of(WORLD, ("port.wait_sd", (1.0,)), ("port.wait_sd", (2.0,)))


def test_calibration_error_by_hand() -> None:
    p, y = np.array([0.05, 0.05, 0.95, 0.95]), np.array([0, 1, 1, 1])
    assert calibration_error(p, y) == pytest.approx((abs(0.1 - 1) + abs(1.9 - 2)) / 4)
    assert calibration_error(np.ones(3), np.ones(3)) == 0.0


@pytest.fixture(scope="module")
def study() -> Any:
    variants = [Variant("again", WORLD), *variants_of(WORLD, "demand.mean_normal", (1.5,))]
    variants += [v for v in presets(WORLD, "ignore") if v.label == "demand ignored"]
    calls: list[tuple[int, int]] = []
    found = run_study(variants, seeds=(24, 12), replications=2, futures=12, progress=lambda a, b: calls.append((a, b)))
    return found, calls


def test_runs_are_paired(study: Any) -> None:
    found, calls = study
    truth, again, wrong, blind = found.outcomes
    assert truth.label == "true model"
    assert again.difference == 0.0 and again.changed == 0.0 and again.difference_se == 0.0
    assert set(again.log_score.values()) == {0.0}
    assert wrong.difference > 0 and wrong.changed > 0.3
    assert wrong.log_score["demand"] < -0.1 and wrong.log_score["port"] == 0.0
    assert wrong.difference == pytest.approx(wrong.cost - truth.cost)
    assert sum(wrong.components.values()) == pytest.approx(wrong.difference)
    assert np.isnan(blind.log_score["demand"]) and blind.calibration["demand"] != truth.calibration["demand"]
    assert found.costs.shape == (4, 2, 2) and found.costs[2].mean() == pytest.approx(wrong.cost)
    assert calls[-1] == (4 * 4 * 26, 4 * 4 * 26) and calls == sorted(calls)


def test_what_is_saved(study: Any, tmp_path: Path) -> None:
    found, _ = study
    found.save(tmp_path / "out")
    document = json.loads((tmp_path / "out" / "study.json").read_text())
    assert document["outcomes"][3]["log_score"]["demand"] is None
    assert document["outcomes"][2]["difference"] == found.outcomes[2].difference
    with (tmp_path / "out" / "runs.csv").open() as file:
        runs = list(csv.DictReader(file))
    assert len(runs) == 16
    mine = [float(r["cost"]) for r in runs if r["variant"] == "again" and r["seed"] == "12"]
    assert mine == found.costs[1, 1].tolist()
    with (tmp_path / "out" / "study.csv").open() as file:
        assert [row["label"] for row in csv.DictReader(file)] == [o.label for o in found.outcomes]


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="at least one variant"):
        run_study([])
    with pytest.raises(InputError, match="listed more than once"):
        run_study([Variant("a", WORLD), Variant("a", WORLD)])
    with pytest.raises(InputError, match="replications"):
        run_study([Variant("a", WORLD)], replications=0)
    with pytest.raises(InputError, match="at least one seed"):
        run_study([Variant("a", WORLD)], seeds=())
