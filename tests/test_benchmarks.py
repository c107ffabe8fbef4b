"""The benchmarks work, and their numpy peer is the same oracle. Nothing here looks at a time."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stocktake_jax.evaluation import simulate
from stocktake_jax.evaluation.catalog import published_seeds
from stocktake_jax.inference import filter_factor
from stocktake_jax.models import FACTORS, HORIZON, Tape, World
from stocktake_jax.policies import Oracle, Runs, Shown
from stocktake_jax.policies.menu import Risks, menu

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
WORLD = World.paper()
SUPPLIERS, ROUTES = ("qualified", "spot", "backup"), ("suez", "cape")


@pytest.fixture(autouse=True)
def _found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


# ---- the runner -----------------------------------------------------------------------------------------------------


def tables_of(text: str) -> list[list[list[str]]]:
    """The tables of a Markdown text, as lists of rows of cells; each must have the width of its header."""
    tables: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line.startswith("| "):
            tables[-1].append([cell.strip() for cell in line.strip("| ").split(" | ")])
        elif tables[-1]:
            tables.append([])
    found = [t for t in tables if t]
    assert all(len(row) == len(t[1]) for t in found for row in t[1:])
    return found


def test_a_quick_run_writes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import run

    run.main(["--quick", "--only", "filters", "--out", str(tmp_path), "--name", "tiny"])
    assert capsys.readouterr().out.strip() == str(tmp_path / "tiny.md")
    document = json.loads((tmp_path / "tiny.json").read_text(encoding="utf-8"))
    assert document["quick"] and list(document["parts"]) == ["filters"]
    assert document["machine"]["versions"]["jax"] == jax.__version__ and document["machine"]["cores"] >= 1
    rows = document["parts"]["filters"]["rows"]
    assert [row["factor"] for row in rows] == ["port", "quality"]
    for row in rows:
        assert all(t["wall_s"]["median"] > 0 for t in row["timings"].values())
        assert {"filter_series", "filter_factor, vmapped"} <= row["timings"].keys()
        assert max(row["evidence_relative_difference"].values()) < 1e-5
    text = (tmp_path / "tiny.md").read_text(encoding="utf-8")
    assert len(tables_of(text)) == 3 and "its times mean nothing" in text
    assert str(tmp_path) not in text and str(ROOT) not in text


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    """The table of the last full run."""
    return json.loads((ROOT / "benchmarks" / "results" / "cpu.json").read_text(encoding="utf-8"))


def test_tables_of_every_part(committed: dict[str, Any]) -> None:
    """Each part of the committed table has its Markdown, which is the committed one, and no row is torn."""
    from benchmarks import run

    assert list(committed["parts"]) == list(committed["load"]) == list(run.PARTS) == list(run.TABLES)
    assert not committed["quick"]
    text = run.markdown(committed)
    assert text == (ROOT / "benchmarks" / "results" / "cpu.md").read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if line.startswith("## ")]) == 1 + len(run.PARTS)
    tables = tables_of(text)
    assert len(tables) == 11
    cold, warm = committed["parts"]["cold"], committed["parts"]["warm"]
    assert [row[0] for row in tables[0][2:]] == list(cold)
    assert [row[4] for row in tables[0][2:]] == [str(r["peak_mb"]) for r in cold.values()]
    assert [row[2] for row in tables[2][2:]] == [str(r["peer"]["ratio_per_core"]) for r in warm.values()]
    assert {row[0] for row in tables[-2][2:]} == set(committed["parts"]["growth"]["units"])


def test_the_committed_table_is_of_the_whole_work(committed: dict[str, Any]) -> None:
    """Sizes, not times: the published job, a million tapes, 10,000 series, in the memory that was promised."""
    parts = committed["parts"]
    assert {r["episodes"] for r in parts["warm"].values()} == {1000}
    assert all(r["peak_mb"] < 1500 for r in parts["cold"].values())
    assert parts["tapes"]["stream"]["tapes"] == parts["tapes"]["sample"]["tapes"] == 1_000_000
    assert all(r["peak_mb"] < 8000 for r in parts["tapes"].values())
    assert not any(s["truth"] < 0.5 for s in parts["tapes"]["stream"]["summary"].values())
    assert parts["filters"]["series"] == 10_000 and parts["filters"]["weeks"] == HORIZON
    assert [row["factor"] for row in parts["filters"]["rows"]] == list(FACTORS)
    for row in parts["filters"]["rows"]:
        assert {"filter_series", "dynamax", "hmmlearn"} <= row["timings"].keys()
        assert max(row["evidence_relative_difference"].values()) < 1e-5
    for warm in parts["warm"].values():
        assert abs(warm["peer"]["mean_cost_less_ours"]) < 4 * warm["peer"]["standard_error"]


def test_the_readme_says_what_the_table_says(committed: dict[str, Any]) -> None:
    from benchmarks import readme

    found = readme.SECTION.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert found == [readme.section(committed)], "python -m benchmarks --readme"


def test_the_readme_is_updated(committed: dict[str, Any], tmp_path: Path) -> None:
    """Another table, another section; the rest of the README stays as it is."""
    from benchmarks import readme

    other = json.loads(json.dumps(committed))
    other["machine"]["processor"] = "abacus"
    other["parts"]["growth"]["rows"] = other["parts"]["growth"]["rows"][:1]  # one panel is drawn in less time
    (tmp_path / readme.TABLE.parent).mkdir(parents=True)
    (tmp_path / readme.TABLE).write_text(json.dumps(other), encoding="utf-8")
    text = "# Title\n\n## How fast\n\nold\n\n## Citing\n\nend\n"
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    readme.update(tmp_path)
    new = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert new == "# Title\n\n" + readme.section(other) + "## Citing\n\nend\n" and "abacus" in new
    assert (tmp_path / readme.FIGURE).read_bytes().startswith(b"<?xml")
    (tmp_path / "README.md").write_text("# Title\n", encoding="utf-8")
    with pytest.raises(ValueError, match="0 sections"):
        readme.update(tmp_path)


def test_parts_are_measured_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that is measured again replaces itself alone; a table of another machine is not continued."""
    from benchmarks import run

    names = ("filters", "tapes", "growth")
    for name in names:
        monkeypatch.setitem(run.PARTS, name, lambda quick, name=name: {"made": name, "quick": quick})
        monkeypatch.setitem(run.TABLES, name, lambda result: ["## " + result["made"], ""])

    def measured(*arguments: str) -> dict[str, Any]:
        run.main([*arguments, "--out", str(tmp_path), "--name", "t"])
        document: dict[str, Any] = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
        assert list(document["load"]) == list(document["parts"])
        return document["parts"]

    assert list(measured("--only", "growth")) == ["growth"]
    assert list(measured("--only", "tapes,filters")) == ["filters", "tapes", "growth"]
    assert measured("--only", "tapes")["growth"] == {"made": "growth", "quick": False}
    assert list(measured("--only", "tapes", "--quick")) == ["tapes"]
    monkeypatch.setattr(run, "machine", lambda: {"processor": "abacus"} | machine_of(tmp_path / "t.json"))
    assert list(measured("--only", "growth", "--quick")) == ["growth"]


def machine_of(path: Path) -> dict[str, Any]:
    machine: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["machine"]
    return {key: value for key, value in machine.items() if key != "processor"}


def test_an_unknown_part(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import run

    with pytest.raises(SystemExit) as stop:
        run.main(["--only", "filters,speed"])
    assert stop.value.code == 2
    assert "'speed'" in capsys.readouterr().err


def test_the_gpu_script_wants_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import gpu

    with pytest.raises(SystemExit) as stop:
        gpu.main(["--out", str(tmp_path / "made")])
    assert stop.value.code == 2 and not (tmp_path / "made").exists()
    assert "accelerator" in capsys.readouterr().err


def test_the_committed_figure_is_of_the_committed_table(committed: dict[str, Any], tmp_path: Path) -> None:
    import matplotlib

    from benchmarks import readme

    readme.draw_growth(committed["parts"]["growth"], tmp_path / "growth.svg")
    drawn, kept = (
        (tmp_path / "growth.svg").read_text(encoding="utf-8"),
        (ROOT / readme.FIGURE).read_text(encoding="utf-8"),
    )
    assert all(f">{axis}<" in drawn for axis in committed["parts"]["growth"]["units"])
    if matplotlib.__version__ == committed["machine"]["versions"]["matplotlib"]:
        assert drawn == kept, "python -m benchmarks --readme"
    else:  # another version lays out otherwise, and draws as many lines
        assert drawn.count("<path") == kept.count("<path")


def test_children_are_measured() -> None:
    """From a process that is small itself: what a child held before its program was loaded is its parent's."""
    script = """
from benchmarks.measure import child
small = child(["-c", "print('here')"])
large = child(["-c", "x = bytearray(300_000_000); x[::4096] = b'1' * len(x[::4096]); sum(range(3_000_000))"])
assert small.stdout == "here\\n" and small.cpu_s > 0
assert small.peak_mb < 300 < large.peak_mb < 1000, (small, large)
assert large.cpu_s <= 1.5 * large.wall_s
try:
    child(["-c", "raise SystemExit('no such thing')"])
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ended with 1" in done.stdout and "no such thing" in done.stdout


def test_no_cache_reaches_a_child_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.measure import child

    for name in ("JAX_COMPILATION_CACHE_DIR", "STOCKTAKE_COMPILE_CACHE"):
        monkeypatch.setenv(name, "somewhere")
    assert child(["-c", "import os; print([k for k in os.environ if 'CACHE' in k])"]).stdout == "[]\n"


def test_turns_and_spreads() -> None:
    from benchmarks.measure import Spread, interleaved

    calls: list[str] = []
    timings = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert calls == ["a", "b"] * 4 and timings["b"].wall.repeats == 3
    assert Spread.of([3.0, 1.0, 2.0, 10.0]) == Spread(2.5, 1.0, 10.0, 3.0, 4)
    assert Spread.of([1.23456]) == Spread(1.235, 1.235, 1.235, 0.0, 1)


def test_the_runner_itself_stays_small() -> None:
    """A child's peak memory is counted from the size of its parent on."""
    from benchmarks.measure import child

    heavy = child(["-c", "import sys, benchmarks.run; print([m for m in ('jax', 'numpy') if m in sys.modules])"])
    assert heavy.stdout == "[]\n", sys.executable


# ---- the peer -------------------------------------------------------------------------------------------------------


def state_index(factor: Any, state: list[Any]) -> int:
    """[regime], [regime, age] or ["disruption", kind, age]; "persist" is the oldest age that is kept."""
    regime, *age = state[1:] if state[0] == "disruption" else state
    states = [i for i, s in enumerate(factor.states) if s.regime == regime]
    return states[-1] if age == ["persist"] else states[min(age[0] if age else 0, len(states) - 1)]


def test_the_peer_gives_the_costs_of_all_surrogate_cases() -> None:
    from benchmarks.numpy_peer import Candidates, Surrogate

    surrogate, cases = Surrogate(WORLD), 0
    with gzip.open(DATA / "surrogate.jsonl.gz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            futures = {n: np.array([[state_index(f, s)] for s in row["future"][n]]) for n, f in WORLD.factors.items()}
            rows = [
                (
                    c["qty"],
                    ROUTES.index(c["route"]) if c["route"] else -1,
                    SUPPLIERS.index(c["supplier"]) if c["supplier"] else -1,
                    c["sign_qualified"],
                    c["lock_freight"],
                    c["air_qty"],
                    c["inspect"],
                )
                for c in (case["candidate"] for case in row["cases"])
            ]
            ships = [(qty, eta - row["week"] - 1) for qty, eta in row["pipeline"]]
            live = np.array([s in row["live"] for s in SUPPLIERS])
            got = surrogate.cost(row["inventory"], ships, live, Candidates.of(rows), futures)[:, 0]
            assert got == pytest.approx([case["cost"] for case in row["cases"]], abs=1e-6, rel=0)
            cases += len(rows)
    assert cases == 288


def test_the_peer_believes_the_same() -> None:
    from benchmarks.numpy_peer import Filter

    tape = Tape.published(24)
    readings = tape.readings(WORLD, np.arange(HORIZON + 1) % 2 == 1)
    for name in FACTORS:
        factor, mine = WORLD.factors[name], Filter(WORLD.factors[name])
        with jax.enable_x64(True):
            wanted = np.asarray(jax.jit(lambda r, f=factor: filter_factor(f, r).belief)(readings[name]))
        predicted = mine.start
        for week in range(HORIZON + 1):
            belief = mine.correct(predicted, {k: float(v[week]) for k, v in readings[name].items()})
            np.testing.assert_allclose(belief, wanted[week], atol=1e-9, err_msg=name)
            predicted = belief @ mine.matrix


def test_the_peer_has_the_same_menu() -> None:
    from benchmarks.numpy_peer import Surrogate
    from benchmarks.numpy_peer import menu as peer_menu

    surrogate, rng, widths = Surrogate(WORLD), np.random.default_rng(3), set()
    ours = jax.jit(lambda *a: menu(*a, cap=WORLD.logistics.order_cap))
    for _ in range(60):
        belief = {n: rng.dirichlet(np.full(len(f.states), 0.2)) for n, f in WORLD.factors.items()}
        live, due, position = rng.random(3) < 0.5, bool(rng.random() < 0.7), int(rng.integers(0, 150))
        theirs = peer_menu(surrogate, belief, position, live, due)

        def mass(factor: str, mask: Any, belief: Any = belief) -> Any:
            return jnp.float32(belief[factor] @ mask)

        f, q = WORLD.freight, WORLD.quality
        risks = Risks(
            mass("demand", WORLD.demand.means),
            mass("freight", f.mask(label="tightening") | f.mask(label="spike")),
            mass("port", WORLD.port.stress_mask),
            mass("quality", q.mask(label="out_of_control")),
        )
        candidates, valid = ours(risks, jnp.float32(position), jnp.asarray(live), jnp.asarray(due))
        fields = ("qty", "route", "supplier", "sign", "lock", "air", "inspect")
        wanted = [np.asarray(getattr(candidates, name))[np.asarray(valid)].tolist() for name in fields]
        assert [getattr(theirs, name).tolist() for name in fields] == wanted
        widths.add(len(theirs.qty))
    assert min(widths) <= 5 and max(widths) >= 36 and len(widths) >= 6


def test_the_peer_expects_the_same_cost() -> None:
    """Other random numbers, the same law: the expected cost of the best candidate, over many decisions of week 0."""
    from benchmarks.numpy_peer import NumpyOracle

    many, futures = 40, 200
    tape = Tape.published_batch([1], WORLD)
    readings = jax.tree.map(lambda x: np.repeat(np.asarray(x[:, 0], np.float32), many, axis=0), tape.readings(WORLD))
    units, eta = np.zeros((many, 27), np.int32), np.zeros((many, 27), np.int32)
    units[:, 0], eta[:, 0] = 30, 2
    live = np.tile(np.array([False, True, False]), (many, 1))
    shown = Shown(np.full(many, 80, np.int32), units, eta, live, np.zeros(many, bool))
    runs = Runs(np.full(many, 1), np.arange(many))
    costs = []
    for policy in (Oracle(WORLD, futures=futures), NumpyOracle(WORLD, futures=futures)):
        _, decision, notes = policy.decide(policy.begin(runs), 0, readings, shown)
        assert np.shape(decision.qty) == (many,)
        costs.append(np.asarray(notes["cost"], np.float64))
    error = np.hypot(*(c.std(ddof=1) for c in costs)) / many**0.5
    assert abs(costs[0].mean() - costs[1].mean()) < 4 * error < 0.05 * costs[0].mean()


@pytest.mark.slow
def test_the_peer_pays_the_same_on_the_published_seeds() -> None:
    """Slow: ten runs of each of the fifty seeds by both, on other random numbers; no seed and not their mean differs."""
    from benchmarks.numpy_peer import NumpyOracle

    seeds, each = np.array(published_seeds()), 10
    tapes, which = Tape.published_batch(published_seeds(), WORLD), np.tile(np.arange(len(seeds)), each)
    runs = Runs(seeds[which], np.repeat(1 + np.arange(each), len(seeds)))
    ours, theirs = (
        simulate(policy, tapes, runs, which, WORLD).cost.reshape(each, -1)
        for policy in (Oracle(WORLD), NumpyOracle(WORLD))
    )
    difference = theirs.mean(axis=0) - ours.mean(axis=0)
    variance = (ours.var(axis=0, ddof=1) + theirs.var(axis=0, ddof=1)) / each
    assert abs(difference.mean()) < 3 * np.sqrt(variance.sum()) / len(seeds) < 0.01 * ours.mean()
    assert np.all(np.abs(difference) < 4.5 * np.sqrt(variance))
