"""The main job at small sizes: its document, its folder, and that nothing but the options decides its numbers."""

from __future__ import annotations

import csv
import dataclasses
import functools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stocktake_jax import __version__
from stocktake_jax.desk import Episode
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.benchmark import (
    FILES,
    BenchOptions,
    BenchResult,
    Progress,
    SeedResult,
    Store,
    chunks,
    default_chunk,
    run_benchmark,
)
from stocktake_jax.evaluation.catalog import published_seeds
from stocktake_jax.evaluation.exchange import floor_rows
from stocktake_jax.evaluation.published import published_agents, published_references
from stocktake_jax.evaluation.skill import References, SkillTable, score
from stocktake_jax.models import FACTORS, HORIZON, Tape, World

SEEDS, REPLICATIONS, FUTURES = (0, 3, 11), 2, 5
"""Two published seeds and one that is not; as few futures as elsewhere in the tests."""


def options(**changes: Any) -> BenchOptions:
    return BenchOptions(**({"seeds": SEEDS, "replications": REPLICATIONS, "futures": FUTURES} | changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench") / "deep" / "out"


@pytest.fixture(scope="module")
def result(folder: Path) -> BenchResult:
    """Three seeds in chunks of two, so that the last chunk is filled up."""
    return run_benchmark(options(), folder, chunk=2)


def document(result: BenchResult) -> dict[str, Any]:
    """All but what may differ between equal runs."""
    return {k: v for k, v in result.to_json().items() if k != "run"}


def tables(folder: Path) -> dict[str, bytes]:
    """Every file of a folder whose contents may not differ between equal runs."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != "results.json"]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def csv_rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def results_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


# ---- the document ---------------------------------------------------------------------------------------------------


def test_the_document_has_the_promised_shape(result: BenchResult) -> None:
    doc = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert list(doc) == ["seeds", "agents", "published", "run"]
    assert [row["seed"] for row in doc["seeds"]] == list(SEEDS)
    for row in doc["seeds"]:
        assert list(row) == ["seed", "profile", "floor", "oracle"]
        assert list(row["oracle"]) == ["mean", "se", "min", "max", "n"]
        assert row["oracle"]["n"] == REPLICATIONS
        assert row["oracle"]["min"] <= row["oracle"]["mean"] <= row["oracle"]["max"]
    assert [row["profile"] for row in doc["seeds"]] == ["compound", "isolated", "isolated"]
    assert list(doc["published"]) == ["agents"]
    for agents in (doc["agents"], doc["published"]["agents"]):
        assert [row["agent"] for row in agents] == list(published_agents())
        for row in agents:
            assert list(row) == ["agent", "skill", "below_floor", "beats_floor"]
            assert list(row["skill"]) == ["isolated", "persistent", "compound", "all"]
            for group in row["skill"].values():
                assert list(group) == ["n", "mean", "median", "low", "high"]
            assert row["skill"]["persistent"] == {"n": 0, "mean": None, "median": None, "low": None, "high": None}
    run = doc["run"]
    assert {"package", "python", "jax", "jaxlib", "numpy", "platform", "device", "options", "seconds"} <= set(run)
    assert run["package"] == __version__ and run["device"]["count"] == 1 and run["device"]["platform"] == "cpu"
    assert run["options"] == json.loads(json.dumps(options().to_json()))
    assert World.from_toml(run["options"]["world"]).to_toml() == World.paper().to_toml()


def test_the_numbers_are_those_of_the_runs(result: BenchResult) -> None:
    floors = {row["seed"]: row["total"] for row in floor_rows(SEEDS)}
    for i, seed in enumerate(result.seeds):
        assert seed.floor == pytest.approx(floors[seed.seed], abs=1e-9)
        a, b = seed.oracle
        assert a != b
        row = result.to_json()["seeds"][i]["oracle"]
        assert row["mean"] == pytest.approx((a + b) / 2)
        assert row["se"] == pytest.approx(abs(a - b) / 2)
    own = score(published_agents(), result.references)
    assert result.to_json()["agents"] == own.to_json()
    theirs = score(published_agents(), References.published([0, 11]))
    assert result.to_json()["published"]["agents"] == theirs.to_json()
    assert result.skill["gpt-5.4"].missing == 1 and result.published["gpt-5.4"].missing == 0


def test_weeks_of_run_one_add_up(result: BenchResult) -> None:
    """Bills add up to the run's cost; units are conserved; the beliefs are those of the filters."""
    for seed in result.seeds:
        for policy, cost in (("floor", seed.floor), ("oracle", seed.oracle[0])):
            weeks = seed.weeks[policy]
            assert [week["week"] for week in weeks] == list(range(1, HORIZON + 1))
            assert sum(sum(week["bill"].values()) for week in weeks) == pytest.approx(cost, abs=1e-6)
            assert all(week["cost"] == pytest.approx(sum(week["bill"].values())) for week in weeks)
            assert ("belief" in weeks[0]) == (policy == "oracle")
        for week in seed.weeks["oracle"]:
            assert list(week["belief"]) == list(FACTORS)
            for name, regimes in week["belief"].items():
                assert list(regimes) == list(World.paper().factors[name].labels)
                assert sum(regimes.values()) == pytest.approx(1, abs=1e-5)
            assert week["expected_cost"] > 0
        assert seed.weeks["oracle"][0]["belief"]["canal"]["calm"] > 0.9


@pytest.mark.parametrize("policy", ["floor", "oracle"])
def test_recorded_decisions_played_again_cost_the_same(result: BenchResult, policy: str) -> None:
    seed = result.seeds[0]
    episode = Episode(seed.seed)
    for week in seed.weeks[policy]:
        d = week["decision"]
        if d["lock_weeks"]:
            episode.lock_freight(d["lock_weeks"])
        if d["air"]:
            episode.expedite_air(d["air"])
        if d["inspect"]:
            episode.inspect_batch()
        contract = {k: d[k] for k in ("contract_action", "contract_supplier", "contract_terms") if d[k]}
        seen = episode.place_order("again", d["qty"], d["route"], d["supplier"], **contract)
        assert seen["cost_breakdown"] == pytest.approx(week["bill"], abs=1e-9)
        assert [seen[k] for k in ("inventory", "on_order", "arrived")] == [
            week["books"][k] for k in ("inventory", "on_order", "arrived")
        ]
    assert episode.cost == pytest.approx(seed.floor if policy == "floor" else seed.oracle[0], abs=1e-6)


def test_one_run_has_no_standard_error() -> None:
    doc = run_benchmark(options(seeds=(11,), replications=1)).to_json()
    assert doc["seeds"][0]["oracle"]["se"] is None and doc["seeds"][0]["oracle"]["n"] == 1
    json.dumps(doc, allow_nan=False)


def test_costs_of_ones_own_agents() -> None:
    """Agents that lack seeds, have others, or did not finish: counted, and null where nothing can be said."""
    agents = {"half": {0: (6000.0, 6200.0), 99: (5000.0,)}, "dead": {0: (math.nan,), 11: (7000.0,)}}
    mine = run_benchmark(options(seeds=(0,), replications=1, agents=agents))
    half, dead = mine.skill["half"], mine.skill["dead"]
    assert (half.missing, half.unreferenced, half.incomplete) == (0, 1, 0)
    assert (dead.missing, dead.unreferenced, dead.incomplete) == (0, 1, 1)
    assert half.cost.tolist() == [6100.0]
    assert json.loads(json.dumps(mine.to_json(), allow_nan=False))["run"]["options"]["agents"] == {
        "half": {"0": [6000.0, 6200.0], "99": [5000.0]},
        "dead": {"0": [None], "11": [7000.0]},
    }


def test_worlds_reach_tapes_books_and_floor_or_the_oracle_alone() -> None:
    paper = run_benchmark(options(seeds=(1,), replications=1)).seeds[0]
    dear = World.paper().replace({"costs.stockout": 40.0, "port.build_onset": 0.0, "port.customs_onset": 0.0})
    mistaken = run_benchmark(options(seeds=(1,), replications=1, model=dear)).seeds[0]
    assert mistaken.floor == paper.floor and mistaken.profile == paper.profile
    assert mistaken.oracle != paper.oracle
    true = run_benchmark(options(seeds=(1,), replications=1, true_world=dear)).seeds[0]
    assert true.floor != paper.floor and (paper.profile, true.profile) == ("persistent", "isolated")
    assert any(week["books"]["unmet"] for week in true.weeks["floor"])
    assert all(week["bill"]["stockout"] == 40 * week["books"]["unmet"] for week in true.weeks["oracle"])


# ---- agreement with the published oracle ----------------------------------------------------------------------------


def published_result(shift: dict[int, float], **changes: Any) -> BenchResult:
    """A result whose oracle has the published means and errors but for some seeds."""
    seeds = []
    for row in published_references():
        # Two runs whose mean and standard error are the published ones.
        mean, se = row.oracle_mean + shift.get(row.seed, 0.0), row.oracle_se
        seeds.append(SeedResult(row.seed, row.profile, row.floor, (mean - se, mean + se), {}, "test"))
    references = References(
        tuple(s.seed for s in seeds),
        tuple(s.profile for s in seeds),
        np.array([s.floor for s in seeds]),
        np.array([np.mean(s.oracle) for s in seeds]),
        np.array([row.oracle_se for row in published_references()]),
    )
    chosen = BenchOptions(**({"replications": 2} | changes))
    return BenchResult(chosen, tuple(seeds), references, published_table(), published_table(), {})


@functools.cache
def published_table() -> SkillTable:
    return score(published_agents(), References.published())


def test_agreement_counts_and_pools() -> None:
    errors = {row.seed: row.oracle_se for row in published_references()}
    two_point_five, four = 2.5 * math.sqrt(2), 4 * math.sqrt(2)
    shift = {0: two_point_five * errors[0], 1: -four * errors[1], 9: 1.9 * math.sqrt(2) * errors[9]}
    agreement = published_result(shift).agreement()
    assert agreement is not None
    assert (agreement.beyond_2, agreement.beyond_3) == (2, 1)
    assert agreement.mean == pytest.approx(sum(shift.values()) / 50)
    assert agreement.se == pytest.approx(math.sqrt(2 * sum(e**2 for e in errors.values())) / 50)
    assert len(agreement.rows) == 50
    assert agreement.rows[1]["difference"] == pytest.approx(-four * errors[1])


def test_agreement_is_asked_only_of_the_published_protocol() -> None:
    assert published_result({}).agreement() is not None
    other = World.paper().perturb("port.congest_persist", 1.1)
    for changes in (
        {"futures": 200},
        {"likelihood": "exact"},
        {"initial": "baseline"},
        {"rules": "strict"},
        {"model": other},
        {"true_world": other},
        {"replications": 1},
    ):
        assert published_result({}, **changes).agreement() is None


# ---- the folder -----------------------------------------------------------------------------------------------------


def test_the_folder_says_everything(result: BenchResult, folder: Path) -> None:
    assert results_of(folder) == json.loads(json.dumps(result.to_json()))
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["package"] == __version__ and manifest["options"] == json.loads(json.dumps(options().to_json()))
    there = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    listed = {name for name in manifest["files"] if name not in ("seeds/N.json", "published_comparison.csv")}
    assert there == listed | {f"seeds/{seed}.json" for seed in SEEDS}
    assert manifest["files"] == FILES
    rows = csv_rows(folder / "runs.csv")
    assert len(rows) == len(SEEDS) * (1 + REPLICATIONS)
    costs = {(int(r["seed"]), r["policy"], int(r["run"])): float(r["cost"]) for r in rows}
    for seed in result.seeds:
        assert costs[seed.seed, "floor", 1] == seed.floor
        assert [costs[seed.seed, "oracle", run] for run in (1, 2)] == list(seed.oracle)
    references = csv_rows(folder / "references.csv")
    assert [float(r["oracle_mean"]) for r in references] == result.references.oracle.tolist()
    skills = csv_rows(folder / "skill.csv")
    assert {r["references"] for r in skills} == {"own", "published"} and len(skills) == 2 * 4 * 4
    one = json.loads((folder / "seeds" / "3.json").read_text(encoding="utf-8"))
    assert one["oracle"] == list(result.seeds[1].oracle) and set(one["weeks"]) == {"floor", "oracle"}


def test_the_comparison_is_kept(tmp_path: Path) -> None:
    result = published_result({})
    store = Store(tmp_path / "out", result.options)
    store.conclude(result)
    rows = csv_rows(tmp_path / "out" / "published_comparison.csv")
    assert [int(r["seed"]) for r in rows] == [s.seed for s in result.seeds]


def test_chunks_order_and_interruption_change_nothing(result: BenchResult, folder: Path, tmp_path: Path) -> None:
    """One seed at a time, in another order, stopped twice: the same tables to the last bit, and no seed done twice."""
    out, computed = tmp_path / "out", []

    class StopError(Exception):
        pass

    def stop_after(seeds: int) -> Any:
        def progress(p: Progress) -> None:
            computed.append((p.finished, p.week))
            if p.finished >= seeds:
                raise StopError

        return progress

    shuffled = options(seeds=(11, 0, 3))
    for seeds in (1, 2):
        with pytest.raises(StopError):
            run_benchmark(shuffled, out, chunk=1, progress=stop_after(seeds))
        assert len(list((out / "seeds").iterdir())) == seeds
        assert not (out / "results.json").exists()
    # What a process that was killed while writing may leave.
    for name in (".11.json.partial", ".0.json.partial"):
        (out / "seeds" / name).write_text('{"seed": 11, "prof', encoding="utf-8")
    (out / ".results.json.partial").write_text("{", encoding="utf-8")
    (out / "seeds" / ".0.json.partial").unlink()
    seen: list[Progress] = []
    again = run_benchmark(shuffled, out, chunk=1, progress=seen.append)
    assert {p.finished for p in seen} == {2} and [p.week for p in seen] == list(range(HORIZON + 1))
    assert all((p.total, p.now) == (3, 1) for p in seen)
    assert document(again) == document(result)
    assert tables(out) == tables(folder)
    assert again.run["seeds_resumed"] == 2 and again.run["chunk"] == 1
    # Nothing is left to do: the same once more, without a week being played.
    assert document(run_benchmark(options(), out, progress=lambda p: pytest.fail("a week was played"))) == document(
        result
    )
    assert tables(out) == tables(folder)


def test_two_devices_change_nothing(folder: Path, result: BenchResult, tmp_path: Path) -> None:
    """The whole command in a process with two devices, which share an odd number of runs: the same bytes."""
    names = ("--seeds", "11,0,3", "--replications", str(REPLICATIONS), "--futures", str(FUTURES))
    command = [sys.executable, "-m", "stocktake_jax.cli", "bench", *names, "--devices", "2", "--chunk", "3", "--json"]
    done = subprocess.run([*command, "--out", tmp_path / "out"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed.pop("run")["device"]["count"] == 2
    assert printed == json.loads(json.dumps(document(result)))
    assert tables(tmp_path / "out") == tables(folder)


@pytest.mark.slow
def test_all_fifty_seeds_in_chunks_of_any_size(tmp_path: Path) -> None:
    """Slow for its size: chunks of 1, 7 and 50 seeds, in order and shuffled, on one device and on two."""
    seeds = [*published_seeds()]
    shuffled = [seeds[i] for i in np.random.default_rng(0).permutation(len(seeds))]
    found = {}
    for chunk, devices, order in ((50, 1, seeds), (7, 1, shuffled), (1, 1, seeds), (50, 2, shuffled), (7, 2, seeds)):
        out = tmp_path / f"{chunk}-{devices}"
        names = ("--seeds", ",".join(map(str, order)), "--replications", "3", "--futures", "7")
        how = ("--chunk", str(chunk), "--devices", str(devices), "--out", out, "--json")
        command = [sys.executable, "-m", "stocktake_jax.cli", "bench", *names, *how]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        run = json.loads(done.stdout)["run"]
        assert (run["chunk"], run["device"]["count"]) == (chunk, devices)
        found[chunk, devices] = tables(out)
    assert all(found[50, 1] == other for other in found.values())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seeds": (0, 3)}, "--seeds was 0,3,11, and is 0,3 now"),
        ({"replications": 3}, "--replications was 2, and is 3 now"),
        ({"futures": None}, "--futures was 5, and is None now"),
        ({"likelihood": "exact"}, "--likelihood was paper, and is exact now"),
        ({"initial": "baseline"}, "--initial was uniform"),
        ({"rules": "strict"}, "--rules was paper"),
        ({"model": {"port.wait_sd": 2.5}}, "--world had port.wait_sd = 2.0, and has 2.5 now"),
        ({"true_world": {"logistics.order_cap": 90}}, "--true-world had logistics.order_cap = 100, and has 90 now"),
        ({"agents": {"mine": {0: (5000.0,)}}}, "--agents has other costs"),
    ],
)
def test_a_folder_of_other_options(result: BenchResult, folder: Path, change: dict[str, Any], says: str) -> None:
    before = tables(folder)
    for name in ("model", "true_world"):
        if name in change:
            change[name] = World.paper().replace(change[name])
    with pytest.raises(InputError, match=says):
        run_benchmark(options(**change), folder)
    assert tables(folder) == before


def test_folders_that_cannot_be_used(result: BenchResult, folder: Path, tmp_path: Path) -> None:
    def refused(out: Path, says: str) -> None:
        with pytest.raises(InputError, match=says) as error:
            run_benchmark(options(), out)
        assert str(out) in str(error.value) and "\n" not in str(error.value)

    file = tmp_path / "file"
    file.write_text("mine", encoding="utf-8")
    refused(file, "another folder")
    refused(file / "sub", "another folder")
    refused(tmp_path, "no manifest")
    assert file.read_text(encoding="utf-8") == "mine"
    copy = tmp_path / "copy"
    Store(copy, options())
    manifest = copy / "manifest.json"
    row = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps(row | {"package": "0.0.1"}), encoding="utf-8")
    refused(copy, "version 0.0.1 of stocktake-jax")
    manifest.write_text(json.dumps({"package": __version__}), encoding="utf-8")
    refused(copy, "no options")
    for text in ("{", "[]", "\xff"):
        manifest.write_text(text, encoding="latin-1")
        refused(copy, "damaged")


@pytest.mark.parametrize(
    "damage",
    [
        lambda row: "{",
        lambda row: [],
        lambda row: row | {"seed": 1},
        lambda row: row | {"oracle": [1.0]},
        lambda row: row | {"oracle": 5.0},
        lambda row: row | {"floor": "dear"},
        lambda row: row | {"profile": "odd"},
        lambda row: {k: v for k, v in row.items() if k != "weeks"},
    ],
)
def test_a_damaged_seed_is_named(result: BenchResult, tmp_path: Path, damage: Any) -> None:
    store = Store(tmp_path / "out", options())
    for seed in result.seeds:
        store.save(seed)
    assert list(store.finished()) == list(SEEDS)
    path = tmp_path / "out" / "seeds" / "3.json"
    row = damage(json.loads(path.read_text(encoding="utf-8")))
    path.write_text(row if isinstance(row, str) else json.dumps(row), encoding="utf-8")
    with pytest.raises(InputError, match="delete it, and run again") as error:
        store.finished()
    assert str(path) in str(error.value)


def test_a_full_disk_is_bad_input_not_a_crash(result: BenchResult, tmp_path: Path, monkeypatch: Any) -> None:
    store = Store(tmp_path / "out", options())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        store.save(result.seeds[0])
    assert store.finished() == {}


def test_a_saved_seed_comes_back_whole(result: BenchResult, tmp_path: Path) -> None:
    store = Store(tmp_path / "out", options())
    store.save(result.seeds[0])
    back = store.finished()[0]
    assert dataclasses.asdict(back) == json.loads(json.dumps(dataclasses.asdict(back))) | {"oracle": back.oracle}
    assert back.to_json() == json.loads(json.dumps(result.seeds[0].to_json()))


# ---- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seeds": ()}, "at least one seed"),
        ({"seeds": (1, 2, 1)}, "seed 1 is listed more than once"),
        ({"seeds": (-1,)}, "-1"),
        ({"seeds": (2**32,)}, "4294967296"),
        ({"replications": 0}, "replications must be a whole number in \\[1, 10000\\], not 0"),
        ({"futures": 0}, "futures"),
        ({"futures": 10**9}, "futures"),
    ],
)
def test_options_out_of_range(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        options(**change)


def test_defaults_are_the_published_protocol() -> None:
    default = BenchOptions()
    assert default.as_published
    assert default.seeds == tuple(r.seed for r in published_references())
    assert (default.replications, default.futures, default.agents) == (20, None, None)


def test_chunks_have_one_size() -> None:
    assert chunks([1, 2, 3, 4, 5], 2) == [[1, 2], [3, 4], [5, 5]]
    assert chunks([1, 2], 2) == [[1, 2]]
    assert chunks([7], 3) == [[7, 7, 7]]
    assert chunks([], 3) == []
    assert default_chunk("cpu", 20) * 20 <= default_chunk("gpu", 20) * 20
    assert default_chunk("cpu", 10_000) == 1
    with pytest.raises(InputError, match="chunk"):
        run_benchmark(options(), chunk=0)


def test_another_tape_is_another_batch() -> None:
    """Guards the tests above: the two seeds of a chunk have different tapes."""
    a, b = (Tape.published(seed) for seed in (0, 11))
    assert (a.states["demand"] != b.states["demand"]).any()
