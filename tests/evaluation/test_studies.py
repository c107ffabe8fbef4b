"""Misspecification studies: what is varied, that runs are paired, and what is said of them."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from stocktake_jax.cli import app
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation import studies
from stocktake_jax.evaluation.studies import (
    Variant,
    calibration_error,
    duration_parameters,
    grid_of,
    noise_parameters,
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
    assert duration_parameters(WORLD.port) == ("congest_onset", "disperse", "congest_persist", "customs_persist")
    assert sum(len(transition_parameters(f)) for f in WORLD.factors.values()) == 35
    assert noise_parameters(WORLD.demand) == ("units_sd", "forecast_sd") and noise_parameters(WORLD.canal) == ()


def test_presets_change_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    frequent = next(v for v in presets(WORLD, "stress") if v.label == "stress of port x2").model
    assert float(frequent.port.build_onset) > 0.1 and float(frequent.port.congest_persist) == 0.85
    assert float(frequent.canal.watch_onset) == 0.08
    assert [v.ignored for v in presets(WORLD, "ignore")] == [frozenset({f}) for f in FACTORS]
    assert presets(WORLD, "likelihood")[0].likelihood == "exact"
    assert presets(WORLD, "initial")[0].initial == "baseline"
    with pytest.raises(InputError, match="unknown preset 'storm'"):
        presets(WORLD, "storm")
    # The rest on two factors alone, since worlds are slow to build while every shape is checked.
    monkeypatch.setattr(World, "factors", property(lambda self: {"supplier": self.supplier, "port": self.port}))
    monkeypatch.setattr(studies, "FACTORS", ("supplier", "port"))
    transitions = presets(WORLD, "transitions")
    assert len(transitions) == 22 and len({v.label for v in transitions}) == 22
    doubled = next(v for v in transitions if v.label == "port.congest_onset x2").model
    assert float(doubled.port.congest_onset) == pytest.approx(0.6 / 1.3)
    # The competing way out of building makes room in proportion.
    assert float(doubled.port.disperse) == pytest.approx(0.3 * (1 - 0.6 / 1.3) / 0.7)
    tornado = presets(WORLD, "tornado")
    named = {v.parameter for v in tornado}
    assert {v.parameter for v in transitions} < named and {"port.wait_sd", "supplier.fill_reliable"} < named
    assert "supplier.slip_reliable" not in named  # zero stays zero
    assert {v.factor for v in tornado} == {0.5, 2.0}
    assert [v.parameter for v in presets(WORLD, "noise")][::2] == [
        "supplier.slip_sd", "supplier.fill_sd", "port.wait_sd", "port.outlook_sd",
    ]  # fmt: skip
    longer = next(v for v in presets(WORLD, "duration") if v.label == "duration of port x2")
    assert float(longer.model.port.congest_persist) > 0.9 and dict(longer.changes)["port.congest_persist"] == 2.0
    assert "port.build_onset" not in dict(longer.changes)


def test_values_and_grids() -> None:
    value = variants_of(WORLD, "port.wait_sd", (3.0,), values=True)[0]
    assert value.label == "port.wait_sd = 3" and float(value.model.port.wait_sd) == 3.0 and np.isnan(value.factor)
    grid = grid_of(WORLD, ("port.wait_sd", (0.5, 1.0)), ("port.outlook_sd", (1.0, 2.0)))
    assert [(float(v.model.port.wait_sd), float(v.model.port.outlook_sd)) for v in grid] == [
        (1.0, 3.0), (1.0, 6.0), (2.0, 3.0), (2.0, 6.0),
    ]  # fmt: skip
    assert grid[1].changes == (("port.wait_sd", 0.5), ("port.outlook_sd", 2.0))
    with pytest.raises(InputError, match="two different"):
        grid_of(WORLD, ("port.wait_sd", (1.0,)), ("port.wait_sd", (2.0,)))
    with pytest.raises(InputError, match=r"order_cap .* shapes arrays.*--true-world"):
        variants_of(WORLD, "logistics.order_cap", (2.0,))
    with pytest.raises(InputError, match=r"did you mean 'port\.wait_sd'"):
        variants_of(WORLD, "port.wait_s", (2.0,))


def test_calibration_error_by_hand() -> None:
    p, y = np.array([0.05, 0.05, 0.95, 0.95]), np.array([0, 1, 1, 1])
    assert calibration_error(p, y) == pytest.approx((abs(0.1 - 1) + abs(1.9 - 2)) / 4)
    assert calibration_error(np.ones(3), np.ones(3)) == 0.0


CHANGES = ("demand.mean_normal=1,1.5", "port.wait_sd=0.5")
ARGUMENTS = ("study", "misspecify", *CHANGES, "--seeds", "24,12", "--replications", "2", "--futures", "12")
SIZES: Any = {"seeds": (24, 12), "replications": 2, "futures": 12, "budget": 8}  # two models at a time


def _variants() -> list[Variant]:
    return [*variants_of(WORLD, "demand.mean_normal", (1.0, 1.5)), *variants_of(WORLD, "port.wait_sd", (0.5,))]


@pytest.fixture(scope="module")
def whole() -> Any:
    calls: list[tuple[int, int]] = []
    return run_study(_variants(), progress=lambda a, b: calls.append((a, b)), **SIZES), calls


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """In a folder, interrupted in the second part, and taken up again."""
    out = tmp_path_factory.mktemp("study") / "out"

    def interrupt(done: int, total: int) -> None:
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(_variants(), out=out, progress=interrupt, **SIZES)
    kept = sorted(p.name for p in (out / "variants").iterdir())
    calls: list[int] = []
    found = run_study(_variants(), out=out, progress=lambda a, b: calls.append(a), **SIZES)
    found.save(out)
    return found, kept, calls, out


def test_runs_are_paired(whole: Any) -> None:
    found, calls = whole
    truth, again, wrong, port = found.outcomes
    assert truth.label == "true model"
    assert again.difference == 0.0 and again.changed == 0.0 and again.difference_se == 0.0
    assert set(again.log_score.values()) == {0.0} and again.p_value == 1.0 and (again.low, again.high) == (0.0, 0.0)
    assert wrong.difference > 0 and wrong.changed > 0.3
    assert wrong.log_score["demand"] < -0.1 and wrong.log_score["port"] == 0.0
    assert wrong.calibration["demand"] != truth.calibration["demand"]
    assert port.log_score["port"] < 0 and port.log_score["demand"] == 0.0
    assert wrong.difference == pytest.approx(wrong.cost - truth.cost) == pytest.approx(np.mean(wrong.by_seed))
    assert wrong.low <= wrong.difference <= wrong.high
    assert sum(wrong.components.values()) == pytest.approx(wrong.difference)
    by_seed = found.costs[2].mean(axis=1) - found.costs[0].mean(axis=1)
    worst = int(np.argmax(by_seed / found.costs[0].mean(axis=1)))
    assert wrong.worst_seed == (24, 12)[worst] and wrong.by_seed == pytest.approx(tuple(by_seed))
    paired = (found.costs[2] - found.costs[0])[worst]
    assert wrong.worst_se == pytest.approx(paired.std(ddof=1) / np.sqrt(2) / found.costs[0, worst].mean())
    assert truth.believed == {"demand.mean_normal": 20.0, "port.wait_sd": 2.0}
    assert (wrong.believed, port.believed) == ({"demand.mean_normal": 30.0}, {"port.wait_sd": 1.0})
    assert found.costs.shape == (4, 2, 2) and found.costs[2].mean() == pytest.approx(wrong.cost)
    assert calls[0][0] == 0 and calls[-1] == (4 * 4 * 26, 4 * 4 * 26) and calls == sorted(calls)


def test_an_interrupted_study_goes_on_and_counts_nothing_twice(whole: Any, resumed: Any) -> None:
    found, kept, calls, out = resumed
    assert kept == ["0.npz", "1.npz"]
    assert calls[0] == 2 * 4 * 26 and calls[-1] == 4 * 4 * 26
    np.testing.assert_array_equal(found.costs, whole[0].costs)
    assert repr(found.outcomes) == repr(whole[0].outcomes)
    assert sorted(p.name for p in (out / "variants").iterdir()) == [f"{i}.npz" for i in range(4)]


def test_a_folder_of_another_study_is_refused(resumed: Any, tmp_path: Path) -> None:
    *_, out = resumed
    with pytest.raises(InputError, match="its variants differ"):
        run_study(_variants()[:2], out=out, **SIZES)
    with pytest.raises(InputError, match="its replications differ"):
        run_study(_variants(), out=out, **{**SIZES, "replications": 3})
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    (copy / "variants" / "3.npz").write_bytes(b"cut short")
    with pytest.raises(InputError, match=r"3\.npz is damaged"):
        run_study(_variants(), out=copy, **SIZES)
    (copy / "manifest.json").unlink()
    with pytest.raises(InputError, match="no manifest"):
        run_study(_variants(), out=copy, **SIZES)


def test_what_is_saved(resumed: Any) -> None:
    found, _, _, out = resumed
    document = json.loads((out / "study.json").read_text())
    assert document == json.loads(json.dumps(found.document()))
    assert document["outcomes"][2]["difference"] == found.outcomes[2].difference
    assert document["outcomes"][0]["factor"] is None and document["outcomes"][2]["factor"] == 1.5
    with (out / "runs.csv").open() as file:
        runs = list(csv.DictReader(file))
    assert len(runs) == 4 * 4
    mine = [float(r["cost"]) for r in runs if r["variant"] == "demand.mean_normal x1.5" and r["seed"] == "12"]
    assert mine == found.costs[2, 1].tolist()
    with (out / "study.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == [o.label for o in found.outcomes]
    assert float(rows[2]["log_score.demand"]) == found.outcomes[2].log_score["demand"]
    with (out / "seeds.csv").open() as file:
        assert [float(r["difference"]) for r in csv.DictReader(file)][4:6] == list(found.outcomes[2].by_seed)


def test_the_command_prints_what_is_there(resumed: Any) -> None:
    found, _, _, out = resumed
    result = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(out), "--json", "--figures"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["outcomes"] == json.loads(json.dumps(found.document()))["outcomes"]
    assert (out / "tornado.png").exists() and (out / "tornado.svg").exists()
    shown = CliRunner().invoke(app, [*ARGUMENTS, "--out", str(out)])
    assert "port.wait_sd x0.5" in shown.stdout and "2 seeds x 2 runs of 4 models" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say what is believed wrongly"),
        (("port",), "looks like port.congest_persist=0.5,2"),
        (("port.wait_sd=a",), "is not a list of numbers"),
        (("port.wait_sd=2", "--grid"), "--grid takes exactly two"),
        (("port.wait_sd=2", "--figures"), "give --out DIR"),
        (("logistics.lead_suez=4", "--values"), "shapes arrays"),
    ],
)
def test_the_command_refuses(arguments: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(app, ["study", "misspecify", *arguments])
    assert isinstance(result.exception, InputError) and message in str(result.exception)


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="at least one variant"):
        run_study([])
    with pytest.raises(InputError, match="listed more than once"):
        run_study([Variant("a", WORLD), Variant("a", WORLD)])
    with pytest.raises(InputError, match="replications"):
        run_study([Variant("a", WORLD)], replications=0)
    with pytest.raises(InputError, match="at least one seed"):
        run_study([Variant("a", WORLD)], seeds=())
