"""The command line: every command on good and bad input, and a benchmark that is killed, stopped and taken up again."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stocktake_jax import __version__
from stocktake_jax.cli import main
from stocktake_jax.evaluation import benchmark
from stocktake_jax.models import FACTORS, World

DATA = Path(__file__).parent / "data"
SMALL = ("bench", "--seeds", "0,3,11", "--replications", "2", "--futures", "5")
"""The sizes of the other tests, so that the oracle's program is compiled once for all of them."""


class Ran(NamedTuple):
    """What a command left behind."""

    code: Any
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command in this process."""

    def command(*arguments: Any) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(a) for a in arguments])
        return Ran(exit_.value.code, *capsys.readouterr())

    return command


@pytest.fixture
def refused(run: Any) -> Any:
    """Run a command that must fail with exit code 2, nothing on stdout and one clear line on stderr."""

    def command(*arguments: Any) -> str:
        ran = run(*arguments)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("stocktake: ") and ran.err.count("\n") == 1 and ran.err.endswith("\n")
        return ran.err

    return command


def reference(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def write_rows(path: Path, rows: Sequence[Any], zipped: bool = False) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if zipped else text)
    return path


# ---- help and errors of use -----------------------------------------------------------------------------------------


def test_help_and_version(run: Any) -> None:
    commands = ("bench", "tape", "floor", "replay", "filter", "surrogate", "world", "classify", "likelihoods")
    for arguments in ((), ("--help",)):
        ran = run(*arguments)
        assert ran.code == 0 and all(name in ran.out for name in commands) and ran.err == ""
    for name in commands:
        assert run(name, "--help").code == 0
    assert run("--version").out == f"stocktake {__version__}\n"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from stocktake_jax.cli import main\n"
        "try: main(['bench', '--help'])\n"
        "except SystemExit: print([m for m in ('jax', 'numpy', 'equinox', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nosuch",), "nosuch"),
        (("bench", "--nosuch"), "--nosuch"),
        (("bench", "--replications", "x"), "--replications"),
        (("bench", "--seeds", "a"), "'a' is neither"),
        (("bench", "--seeds", "5-1"), "runs backwards"),
        (("bench", "--seeds", ""), "neither"),
        (("bench", "--seeds", "1,1"), "seed 1 is listed more than once"),
        (("bench", "--replications", "0"), "replications must be"),
        (("bench", "--futures", "-1"), "futures must be"),
        (("bench", "--likelihood", "fuzzy"), "--likelihood must be paper or exact, not 'fuzzy'"),
        (("bench", "--initial", "x"), "--initial"),
        (("bench", "--rules", "lax"), "--rules must be paper or strict"),
        (("bench", "--world", "missing.toml"), "missing.toml"),
        (("bench", "--true-world", "missing.toml"), "missing.toml"),
        (("bench", "--agents", "missing.csv"), "missing.csv"),
        (("bench", "--devices", "0"), "--devices"),
        (("bench", "--devices", "4000"), "--devices 4000 is more than there are"),
        (("bench", "--chunk", "0"), "chunk"),
        (("tape",), "SEED"),
        (("tape", "x"), "'x'"),
        (("tape", "-5"), "-5"),
        (("tape", "1.5"), "'1.5'"),
        (("classify", "4294967296"), "below 2^32"),
        (("floor", "--seeds", "1;2"), "'1;2'"),
        (("floor", "--rules", "x"), "--rules"),
        (("filter", "--policy", "greedy"), "--policy must be idle or spot20"),
        (("filter", "--likelihood", "x"), "--likelihood"),
        (("replay",), "Missing argument"),
        (("replay", "missing.jsonl"), "missing.jsonl: cannot be read"),
        (("surrogate", "missing.jsonl"), "missing.jsonl"),
        (("world",), "ommand"),
        (("world", "check"), "Missing argument"),
        (("world", "check", "missing.toml"), "missing.toml"),
        (("likelihoods", "--tapes", "1"), "--tapes"),
        (("likelihoods", "--key", "-1"), "--key"),
    ],
)
def test_bad_use_is_one_line_and_code_two(refused: Any, arguments: tuple[str, ...], says: str) -> None:
    assert says in refused(*arguments)


# ---- tapes, floors, profiles ----------------------------------------------------------------------------------------


def test_tapes_have_the_reference_shape(run: Any) -> None:
    wanted = {row["seed"]: row for row in reference("tapes.jsonl.gz")}
    ran = run("tape", "0", "11-12", "--json")
    assert ran.code == 0 and ran.err == ""
    assert ran.out == "".join(json.dumps(wanted[seed]) + "\n" for seed in (0, 11, 12))
    table = run("tape", "1")
    assert table.code == 0 and "Tape of seed 1" in table.out and "congested" in table.out and "canal" in table.out


def test_tapes_of_another_world(run: Any, refused: Any, tmp_path: Path) -> None:
    calm = tmp_path / "calm.toml"
    calm.write_text("[port]\nbuild_onset = 0.0\ncustoms_onset = 0\n", encoding="utf-8")
    (row,) = run("tape", "1", "--true-world", calm, "--json").rows
    assert {week["port"]["regime"] for week in row["weeks"]} == {"clear"}
    (profile,) = run("classify", "1", "--true-world", calm, "--json").rows
    assert profile == {
        "seed": 1,
        "profile": "isolated",
        "max_overlap": 1,
        "port_block_longest": 0,
        "demand_stress_weeks": profile["demand_stress_weeks"],
    }
    calm.write_text("[port]\nbuild_onset = 1.5\n", encoding="utf-8")
    said = refused("tape", "1", "--true-world", calm)
    assert "port.build_onset" in said and "1.5" in said and "[0, 1]" in said


def test_floors_have_the_reference_shape(run: Any) -> None:
    wanted = {row["seed"]: row for row in reference("floor.jsonl.gz")}
    ran = run("floor", "--seeds", "0,11-12", "--json")
    assert ran.code == 0 and ran.err == ""
    assert [row["seed"] for row in ran.rows] == [0, 11, 12]
    for row in ran.rows:
        theirs = wanted[row["seed"]]
        assert list(row) == list(theirs) and row["total"] == pytest.approx(theirs["total"], abs=1e-9)
        for a, b in zip(row["weeks"], theirs["weeks"], strict=True):
            assert list(a.items())[:5] == list(b.items())[:5]
            assert list(a) == list(b) and list(a["breakdown"]) == list(b["breakdown"])
            assert a["breakdown"] == pytest.approx(b["breakdown"], abs=1e-9)
    table = run("floor", "--seeds", "0")
    assert table.code == 0 and "6580.9" in table.out
    strict = run("floor", "--seeds", "0", "--rules", "strict", "--json")
    assert strict.code == 0 and len(strict.rows[0]["weeks"]) == 27


def test_classify(run: Any) -> None:
    ran = run("classify", "0", "1", "11", "--json")
    assert [list(row) for row in ran.rows] == [
        ["seed", "profile", "max_overlap", "port_block_longest", "demand_stress_weeks"]
    ] * 3
    assert [row["profile"] for row in ran.rows] == ["compound", "persistent", "isolated"]
    table = run("classify", "1")
    assert table.code == 0 and "persistent" in table.out


# ---- recorded files -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def episode() -> dict[str, Any]:
    """Five weeks of a reference episode."""
    row = reference("episodes.jsonl.gz")[0]
    return {"seed": row["seed"], "style": row["style"], "weeks": row["weeks"][:5]}


@pytest.mark.parametrize("zipped", [False, True])
def test_replay_check(run: Any, episode: dict[str, Any], tmp_path: Path, zipped: bool) -> None:
    good = write_rows(tmp_path / "good", [episode], zipped)
    assert run("replay", good, "--check") == Ran(0, "0 differences\n", "")
    changed = json.loads(json.dumps(episode))
    changed["weeks"][1]["cost"] += 1
    changed["weeks"][2]["observation"]["pos_units"] += 1
    ran = run("replay", write_rows(tmp_path / "bad", [episode, changed], zipped), "--check", "--rules", "paper")
    assert (ran.code, ran.err, ran.lines[-1], len(ran.lines)) == (1, "", "2 differences", 3)
    assert "week 1 cost" in ran.lines[0] and "pos_units" in ran.lines[1]


def test_replay_prints_what_it_computed(run: Any, episode: dict[str, Any], tmp_path: Path) -> None:
    bare = json.loads(json.dumps(episode))
    for week in bare["weeks"]:
        del week["cost"], week["observation"]
    for flags in ((), ("--json",)):
        (row,) = run("replay", write_rows(tmp_path / "bare", [bare]), *flags).rows
        assert [w["cost"] for w in row["weeks"]] == pytest.approx([w["cost"] for w in episode["weeks"]], abs=1e-6)
        assert [w["observation"] for w in row["weeks"]] == [w["observation"] for w in episode["weeks"]]
    strict = run("replay", write_rows(tmp_path / "bare", [bare]), "--rules", "strict")
    assert strict.code == 0 and strict.rows[0]["seed"] == episode["seed"]


def test_surrogate(run: Any, tmp_path: Path) -> None:
    rows = reference("surrogate.jsonl.gz")[:6]
    path = write_rows(tmp_path / "cases", rows, zipped=True)
    assert run("surrogate", path, "--check") == Ran(0, "0 differences\n", "")
    (first, *_) = run("surrogate", path).rows
    assert list(first) == list(rows[0])
    assert [c["cost"] for c in first["cases"]] == pytest.approx([c["cost"] for c in rows[0]["cases"]], abs=1e-6)
    rows[3]["cases"][1]["cost"] -= 2e-6
    ran = run("surrogate", write_rows(path, rows), "--check")
    assert (ran.code, ran.lines[-1], len(ran.lines)) == (1, "1 differences", 2)
    assert "line 4, cases[1] cost" in ran.lines[0]
    dear = tmp_path / "dear.toml"
    dear.write_text("[costs]\nstockout = 30\n", encoding="utf-8")
    assert run("surrogate", path, "--check", "--world", dear).lines[-1] == "24 differences"


@pytest.mark.parametrize("command", ["replay", "surrogate"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no rows"),
        (b"\n\n", "no rows"),
        (b"{\n", "line 1: not a line of JSON"),
        (b"\n[[[[\n", "line 2: not a line of JSON"),
        (b"[" * 100_000, "line 1: not a line of JSON"),
        (b"[]\n", "line 1"),
        (b"5\n", "line 1"),
        (b"{}\n", "line 1"),
        (b"\xff\xfe\n", "UTF-8"),
        (gzip.compress(b"{}\n" * 1000)[:-20], "cannot be read"),
        (gzip.compress(b"{}\n")[:12], "cannot be read"),
        (b"\x1f\x8bnonsense", "cannot be read"),
    ],
    ids=["empty", "blank", "brace", "second", "deep", "list", "number", "object", "utf16", "cut", "stub", "noise"],
)
def test_files_that_cannot_be_used(refused: Any, tmp_path: Path, command: str, content: bytes, says: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    if content.startswith(b"\x1f\x8b\x08") and len(content) > 30:
        says = "line 1"  # whole rows come before the end that is missing
    for flags in ((), ("--check",)):
        said = refused(command, path, *flags)
        assert says in said and "rows.jsonl" in said


def test_a_folder_is_no_file(refused: Any, tmp_path: Path) -> None:
    for command in ("replay", "surrogate"):
        assert "cannot be read" in refused(command, tmp_path)
    assert "cannot" in refused("world", "check", tmp_path)
    assert "--check or --json" in refused("replay", tmp_path, "--check", "--json")


# ---- filters --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["idle", "spot20"])
def test_filters_have_the_reference_shape(run: Any, policy: str) -> None:
    wanted = {row["seed"]: row for row in reference("filters.jsonl.gz") if row["policy"] == policy}
    seeds = sorted(wanted)[:2]
    ran = run("filter", "--seeds", ",".join(map(str, seeds)), "--policy", policy, "--json")
    assert ran.code == 0 and ran.err == "" and [row["seed"] for row in ran.rows] == seeds
    for row in ran.rows:
        theirs = wanted[row["seed"]]
        assert set(row) == set(theirs) and row["policy"] == policy and len(row["weeks"]) == len(theirs["weeks"])
        for a, b in zip(row["weeks"], theirs["weeks"], strict=True):
            assert set(a) == set(b) == set(FACTORS)
            for name in FACTORS:
                assert set(a[name]) == {"regime", "evidence"}
                assert a[name]["regime"] == pytest.approx(b[name]["regime"], abs=1e-10)
                assert a[name]["evidence"] == pytest.approx(b[name]["evidence"], rel=1e-10)


def test_filter_options_and_table(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")  # a terminal of 80 columns cuts the longest names
    plain, baseline = (run("filter", "--seeds", "1,9", "--initial", s, "--json").rows for s in ("uniform", "baseline"))
    assert baseline[0]["weeks"][0]["canal"] == {
        "regime": {"calm": 1.0, "watch": 0.0, "false_alarm": 0.0, "disruption": 0.0, "recovery": 0.0},
        "evidence": 1.0,
    }
    assert plain[0]["weeks"][0] != baseline[0]["weeks"][0]
    model = tmp_path / "model.toml"
    model.write_text("[port]\nwait_sd = 3\n", encoding="utf-8")
    mistaken = run("filter", "--seeds", "1,9", "--world", model, "--json").rows
    assert mistaken[0]["weeks"][5]["port"] != plain[0]["weeks"][5]["port"]
    assert mistaken[0]["weeks"][5]["demand"] == plain[0]["weeks"][5]["demand"]
    table = run("filter", "--seeds", "1,9")
    assert table.code == 0 and "Seed 9, idle" in table.out
    shown = [line.split() for line in table.out[table.out.index("Seed 9, idle") :].splitlines()]
    weeks = {int(cells[0]): cells[1:] for cells in shown if cells and cells[0].isdecimal()}
    assert list(weeks) == list(range(27))
    for number, week in enumerate(plain[1]["weeks"]):
        best = [max(f["regime"].items(), key=lambda item: item[1]) for f in week.values()]
        assert weeks[number] == [part for regime, p in best for part in (regime, f"{p:.3f}")]


@pytest.mark.slow
def test_exact_filters_read_more(run: Any) -> None:
    plain, exact = (run("filter", "--seeds", "1,9", "--likelihood", kind, "--json").rows for kind in ("paper", "exact"))
    assert exact[0]["weeks"][5]["supplier"] != plain[0]["weeks"][5]["supplier"]
    assert exact[0]["weeks"][5]["quality"] == plain[0]["weeks"][5]["quality"]


@pytest.mark.slow
def test_likelihoods(run: Any) -> None:
    ran = run("likelihoods", "--tapes", "50", "--json")
    (row,) = ran.rows
    assert ran.code == 0 and (row["tapes"], row["key"], row["sourced"]) == (50, 0, False)
    assert set(row["initial"]) == {"uniform", "baseline"}
    for factors in row["initial"].values():
        assert list(factors) == list(FACTORS)
        assert factors["supplier"]["difference"] > 2 * factors["supplier"]["standard_error"] > 0
        assert factors["canal"]["difference"] == factors["quality"]["difference"] == 0
    table = run("likelihoods", "--tapes", "50")
    assert table.code == 0 and "supplier" in table.out and "baseline" in table.out


# ---- worlds ---------------------------------------------------------------------------------------------------------


def test_worlds(run: Any, refused: Any, tmp_path: Path) -> None:
    shown = run("world", "show")
    assert shown.code == 0 and shown.out == World.paper().to_toml()
    path = tmp_path / "mine.toml"
    path.write_text(shown.out, encoding="utf-8")
    same = run("world", "check", path)
    assert (same.code, same.err, len(same.lines)) == (0, "", 1) and f"{path}: fine, with 0 of" in same.out
    (document,) = run("world", "show", path, "--json").rows
    assert document["port"]["congest_persist"] == 0.85 and document["logistics"]["order_cap"] == 100
    path.write_text("[port]\ncongest_persist = 0.9\n[logistics]\norder_cap = 90\n", encoding="utf-8")
    (check,) = run("world", "check", path, "--json").rows
    assert check["changed"] == {
        "port.congest_persist": {"value": 0.9, "published": 0.85},
        "logistics.order_cap": {"value": 90, "published": 100},
    }
    table = run("world", "check", path)
    assert table.code == 0 and "port.congest_persist" in table.out and "2 of" in table.lines[-1]
    for text, says in (
        ("[port]\ncongest_persist = 1.9\n", "port.congest_persist is 1.9"),
        ("[port]\ncongested_persist = 0.9\n", "did you mean"),
        ("[harbour]\nx = 1\n", "harbour"),
        ("[port\n", "not a TOML document"),
        ("[port]\ncongest_persist = '0.9'\n", "port.congest_persist"),
        ("[logistics]\norder_cap = 0\n", "order_cap"),
    ):
        path.write_text(text, encoding="utf-8")
        assert says in refused("world", "check", path)
        assert says in refused("bench", "--world", path)


# ---- bench ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli") / "out"


def test_bench_json_and_tables(run: Any, folder: Path) -> None:
    ran = run(*SMALL, "--out", folder, "--chunk", "2", "--json")
    assert ran.code == 0 and ran.err == ""
    (document,) = ran.rows
    assert list(document) == ["seeds", "agents", "published", "run"]
    assert [row["seed"] for row in document["seeds"]] == [0, 3, 11]
    assert document == json.loads((folder / "results.json").read_text(encoding="utf-8"))
    table = run(*SMALL, "--out", folder)
    assert table.code == 0 and table.err == ""
    for text in ("References", "compound", "claude-sonnet-5", "against the published references", "3 seeds × 2 runs"):
        assert text in table.out
    assert "seeds 1 without a run" in table.out and "3 seeds were there already" in table.out
    assert "published oracle" not in table.out.replace("against the published", "")
    for row in document["seeds"]:
        assert f"{row['oracle']['mean']:.1f}" in table.out


def test_bench_under_the_published_protocol_compares(run: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """The line about the published oracle, on results that are given (the whole job is another test's)."""

    def given(options: Any, out: Any, **_: Any) -> Any:
        seeds = []
        for row in benchmark.published_seeds()[:2]:
            published = next(r for r in benchmark.References.published([row]).oracle)
            seeds.append(benchmark.SeedResult(row, "compound", 9000.0, (published - 30.0, published + 90.0), {}, "x"))
        references = benchmark._references(seeds)
        published = benchmark.References.published(options.seeds)
        tables = (benchmark.score(benchmark.published_agents(), r) for r in (references, published))
        about = {"device": {"count": 1, "kind": "cpu"}, "seconds": 1.0, "seeds_resumed": 0}
        return benchmark.BenchResult(options, tuple(seeds), references, *tables, about)

    monkeypatch.setattr(benchmark, "run_benchmark", given)
    ran = run("bench", "--seeds", "0-1", "--replications", "2")
    assert ran.code == 0
    assert "Oracle less published oracle, 2 seeds: +30.0 ± " in ran.out
    assert "Note" not in ran.out
    other = run("bench", "--seeds", "0-1", "--replications", "2", "--rules", "strict")
    assert "Oracle less" not in other.out and "Note: the published agents" in other.out


def test_bench_with_ones_own_agents(run: Any, refused: Any, tmp_path: Path, folder: Path) -> None:
    agents = tmp_path / "agents.csv"
    agents.write_text("agent,seed,cost\nmine,11,5000\nmine,7,6000\nhers,11,nan\n", encoding="utf-8")
    small = ("bench", "--seeds", "11", "--replications", "1", "--futures", "5", "--agents", agents)
    (document,) = run(*small, "--json").rows
    assert [row["agent"] for row in document["agents"]] == ["mine", "hers"]
    assert document["agents"][1]["skill"]["all"] == {"n": 0, "mean": None, "median": None, "low": None, "high": None}
    assert document["seeds"][0]["oracle"]["se"] is None
    table = run(*small)
    assert "mine: seeds 1 of theirs have no reference here." in table.out
    assert "hers: seeds 1 with an unfinished run." in table.out
    agents.write_text("agent,seed,cost\nmine,11,-5\n", encoding="utf-8")
    assert "line 2" in refused(*small)
    agents.write_text("agent;seed;cost\n", encoding="utf-8")
    assert "line 1" in refused(*small)


def test_bench_refuses_what_it_cannot_use(run: Any, refused: Any, folder: Path, tmp_path: Path) -> None:
    assert run(*SMALL, "--out", folder, "--json").code == 0
    said = refused(*SMALL, "--out", folder, "--initial", "baseline")
    assert "--initial was uniform, and is baseline now" in said
    file = tmp_path / "file"
    file.write_text("mine", encoding="utf-8")
    assert "another folder" in refused(*SMALL, "--out", file)
    assert "no manifest" in refused(*SMALL, "--out", tmp_path)
    assert "cannot be made" in refused(*SMALL, "--compile-cache", file / "sub")


@pytest.mark.parametrize("out", [False, True])
def test_an_interruption_says_how_to_go_on(run: Any, monkeypatch: Any, out: bool, tmp_path: Path) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark, "run_benchmark", interrupted)
    ran = run(*SMALL, *(("--out", tmp_path / "o") if out else ()))
    assert (ran.code, ran.out) == (130, "") and ran.err.count("\n") == 1
    assert ("run the same command again" if out else "--out DIR") in ran.err


def start(*arguments: Any) -> subprocess.Popen[str]:
    """A command in a process of its own, as a user's shell starts it."""
    command = [sys.executable, "-m", "stocktake_jax.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=DATA.parents[1])


def finished_seeds(folder: Path) -> set[str]:
    return {p.name for p in (folder / "seeds").glob("*.json")}


def wait_for_more(process: subprocess.Popen[str], folder: Path, than: int) -> None:
    deadline = time.monotonic() + 600
    while len(finished_seeds(folder)) <= than:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def running() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ended with the test, however it ends."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
def test_killed_and_stopped_it_goes_on_with_the_same_results(
    run: Any, running: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    """kill -9, then Ctrl-C, then the rest on one device in another chunk size; against one run in one piece."""
    small = ("bench", "--seeds", "0-23", "--replications", "2", "--futures", "5")
    out, cache = tmp_path / "out", tmp_path / "cache"
    for signal_, code in ((signal.SIGKILL, -9), (signal.SIGINT, 130)):
        before = len(finished_seeds(out))
        process = start(*small, "--out", out, "--devices", "2", "--chunk", "1", "--compile-cache", cache)
        running.append(process)
        wait_for_more(process, out, before)
        process.send_signal(signal_)
        printed, said = process.communicate(timeout=600)
        assert (process.returncode, printed) == (code, "")
    assert "run the same command again" in said and said.count("\n") == 1
    kept = finished_seeds(out)
    assert 2 <= len(kept) < 24 and not (out / "results.json").exists()
    assert list(cache.iterdir())
    (resumed,) = run(*small, "--out", out, "--chunk", "2", "--json").rows
    (whole,) = run(*small, "--chunk", "2", "--json").rows
    assert resumed["run"]["seeds_resumed"] == len(kept) and whole["run"]["seeds_resumed"] == 0
    for document in (resumed, whole):
        del document["run"]
    assert resumed == whole
    assert finished_seeds(out) == {f"{seed}.json" for seed in range(24)}
    assert not list(out.rglob("*.partial"))


def test_a_reader_who_has_enough(running: list[subprocess.Popen[str]]) -> None:
    """Whatever closes the pipe (`| head -1`), nothing is said about it."""
    process = start("tape", "0-999", "--json")
    running.append(process)
    assert process.stdout is not None and process.stderr is not None
    assert json.loads(process.stdout.readline())["seed"] == 0
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=300) == 1


def test_modules_run_as_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stocktake_jax.cli", "world", "show", "--json"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=DATA.parents[1],
        env=os.environ | {"STOCKTAKE_COMPILE_CACHE": ""},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["port"]["congest_persist"] == 0.85
