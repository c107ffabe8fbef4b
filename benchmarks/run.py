"""Everything in one command: `python -m benchmarks [--quick] [--only PART,..] [--out DIR] [--name NAME]`.

Every part runs in a process of its own, one after the other. Writes DIR/NAME.json, and the same as tables in DIR/NAME.md.
Times on a busy machine mean little: the load is noted. `python -m benchmarks --readme` measures nothing, and brings the
README and its figure up to date with the committed table.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Child, Spread, Timing, child, load, machine, part

BENCH = ["-c", "from stocktake_jax.cli import main; main()", "bench", "--json"]
"""`stocktake bench`, whatever the shell calls it."""

Row = list[Any]


# ---- the parts ------------------------------------------------------------------------------------------------------


def cold(quick: bool) -> dict[str, Any]:
    """`stocktake bench` from start to report, in a new process each time; without and with a cache of programs."""
    size = ["--seeds", "1,2", "--replications", "2", "--futures", "4"] if quick else []
    repeats = 1 if quick else 3
    result: dict[str, Any] = {}
    for devices in (1, 2):
        arguments = [*BENCH, *size, "--devices", str(devices)]
        result[f"{devices} device{'s' * (devices > 1)}"] = _children([child(arguments) for _ in range(repeats)])
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*BENCH, *size, "--devices", "2", "--compile-cache", folder]
        result["2 devices, filling a compile cache"] = _children([child(arguments)])
        result["2 devices, with a filled compile cache"] = _children([child(arguments) for _ in range(repeats)])
    return result


def _children(runs: list[Child]) -> dict[str, Any]:
    timing = Timing(Spread.of([r.wall_s for r in runs]), Spread.of([r.cpu_s for r in runs]))
    return timing.to_json() | {"peak_mb": round(max(r.peak_mb for r in runs))}


def warm(quick: bool) -> dict[str, Any]:
    """The job in a running process, with one and two devices, and the numpy peer."""
    small = {"seeds": 2, "replications": 2, "repeats": 1, "peer": 2, "peer_repeats": 1} if quick else {}
    return {
        f"{devices} device{'s' * (devices > 1)}": _with_peak(*part("job", devices=devices, **small))
        for devices in (1, 2)
    }


def compiling(quick: bool) -> dict[str, Any]:
    """What compilation costs, by program."""
    small = {"seeds": 2, "replications": 2, "series": 10} if quick else {}
    return part("programs", **small)[0]


def filters(quick: bool) -> dict[str, Any]:
    """Filters against dynamax and hmmlearn."""
    return part("filters", **({"series": 20, "repeats": 1, "factors": ["port", "quality"]} if quick else {}))[0]


def tapes(quick: bool) -> dict[str, Any]:
    """A million tapes, and a million tapes filtered."""
    small = {"count": 20, "chunk": 10} if quick else {}
    return {what: _with_peak(*part("tapes", what=what, **small)) for what in ("sample", "stream")}


def growth(quick: bool) -> dict[str, Any]:
    """Cost along every axis."""
    return part("growth", **({"quick": True, "repeats": 1} if quick else {}))[0]


def _with_peak(result: dict[str, Any], process: Child) -> dict[str, Any]:
    return result | {"peak_mb": round(process.peak_mb)}


PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "cold": cold,
    "warm": warm,
    "compiling": compiling,
    "filters": filters,
    "tapes": tapes,
    "growth": growth,
}


# ---- tables ---------------------------------------------------------------------------------------------------------


def table(header: list[str], rows: Iterable[Row]) -> list[str]:
    """A Markdown table: text to the left, numbers to the right."""
    rows = list(rows)
    lines = [header, ["---" if rows and isinstance(rows[0][i], str) else "---:" for i in range(len(header))], *rows]
    return [*("| " + " | ".join(map(str, line)) + " |" for line in lines), ""]


def _spread(s: dict[str, Any], scale: float = 1.0) -> str:
    """Median [low, high]."""
    if s["repeats"] == 1:
        return f"{scale * s['median']:.3g}"
    return f"{scale * s['median']:.3g} [{scale * s['low']:.3g}, {scale * s['high']:.3g}]"


def _timing(t: dict[str, Any], scale: float = 1.0) -> Row:
    return [_spread(t["wall_s"], scale), _spread(t["cpu_s"], scale)]


def _cold_table(result: dict[str, Any]) -> list[str]:
    rows = [[name, *_timing(r), r["wall_s"]["repeats"], r["peak_mb"]] for name, r in result.items()]
    return [
        "## The reference job, cold",
        "",
        "`stocktake bench` from the start of its process to its report, compilation included.",
        "",
        *table(["", "wall s", "processor s", "runs", "peak MB"], rows),
    ]


def _warm_table(result: dict[str, Any]) -> list[str]:
    rows = []
    for devices, r in result.items():
        for name, t in r["timings"].items():
            rows.append([f"{name}, {devices}", *_timing(t), t["wall_s"]["repeats"]])
        peer = r.get("peer")
        if peer:
            label = f"numpy peer, scaled from {peer['episodes']} to {peer['scaled_to']} episodes"
            rows.append([label, *_timing(peer["timing_scaled"]), peer["timing_scaled"]["wall_s"]["repeats"]])
    episodes = next(iter(result.values()))["episodes"]
    lines = [
        "## The reference job, warm",
        "",
        f"In a running process: the whole job ({episodes} oracle episodes, floor, tapes, skill tables), its oracle runs",
        "alone, and the same oracle written plainly in numpy, in the same process.",
        "",
        *table(["", "wall s", "processor s", "runs"], rows),
    ]
    ratios = []
    for devices, r in result.items():
        if "peer" in r:
            difference = f"{r['peer']['mean_cost_less_ours']:+} ± {r['peer']['standard_error']}"
            ratios.append([devices, r["peer"]["wall_ratio"], r["peer"]["ratio_per_core"], difference, r["peak_mb"]])
    header = ["", "times faster than the peer", "per core", "peer's mean cost less ours, $", "peak MB"]
    return [*lines, *table(header, ratios)]


def _compiling_table(result: dict[str, Any]) -> list[str]:
    rows = [[name, r["programs"], r["trace_s"], r["lower_s"], r["compile_s"]] for name, r in result.items()]
    largest = [[name, p["program"], p["times"], p["compile_s"]] for name, r in result.items() for p in r["largest"][:3]]
    return [
        "## Compilation",
        "",
        "Nested traces count twice.",
        "",
        *table(["", "programs", "tracing s", "lowering s", "compiling s"], rows),
        *table(["", "largest programs", "times", "compiling s"], largest),
    ]


def _filters_table(result: dict[str, Any]) -> list[str]:
    rows, faster = [], []
    peers = list(result["rows"][0]["times_faster_wall"])
    for r in result["rows"]:
        for label, t in r["timings"].items():
            each = [t["wall_ns_per_state_week"], t["cpu_ns_per_state_week"]]
            rows.append([r["factor"], label, r["states"], *_timing(t, 1e3), *each])
        ratios = [r[f"times_faster_{kind}"][p] for p in peers for kind in ("wall", "cpu")]
        faster.append([r["factor"], *ratios, f"{max(r['evidence_relative_difference'].values()):.0e}"])
    header = ["", *(f"than {p}, {kind}" for p in peers for kind in ("wall", "processor")), "evidence differs by"]
    absent = f" Not installed: {', '.join(result['not_installed'])}." if result["not_installed"] else ""
    return [
        "## Filters",
        "",
        f"{result['series']} series of {result['weeks']} weeks per factor, all in one process, in turns. `filter_series`",
        "and `filter_factor` start from readings; dynamax does, or is given log likelihoods by state; hmmlearn is given",
        f"them, and computes the evidence alone.{absent}",
        "",
        *table(["factor", "", "states", "wall ms", "processor ms", "wall ns", "processor ns per state and week"], rows),
        *table(["`filter_series` is faster", *header[1:]], faster),
    ]


def _tapes_table(result: dict[str, Any]) -> list[str]:
    names = {"sample": "sampled", "stream": "sampled and filtered"}
    rows = [
        [names[what], r["tapes"], r["chunk"], *_timing(r["timing"]), r["tapes_per_s"], r["peak_mb"]]
        for what, r in result.items()
    ]
    summary = [
        [name, f"{s['log_evidence']} ± {s['log_evidence_se']}", f"{s['truth']} ± {s['truth_se']}"]
        for name, s in result["stream"]["summary"].items()
    ]
    return [
        "## Fresh tapes",
        "",
        "Of weeks 0 to 26, in chunks; the first chunk, which compiles, is not in the time, but in the memory.",
        "",
        *table(["", "tapes", "chunk", "wall s", "processor s", "tapes/s", "peak MB"], rows),
        *table(["factor", "log evidence of a tape", "posterior of the true regime"], summary),
    ]


def _growth_table(result: dict[str, Any]) -> list[str]:
    rows = [[r["axis"], r["value"], *_timing(r)] for r in result["rows"]]
    meaning = [f"- {axis}: {unit}" for axis, unit in result["units"].items()]
    return [
        "## Growth",
        "",
        "On one device.",
        "",
        *meaning,
        "",
        *table(["axis", "value", "wall s", "processor s"], rows),
    ]


TABLES: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "cold": _cold_table,
    "warm": _warm_table,
    "compiling": _compiling_table,
    "filters": _filters_table,
    "tapes": _tapes_table,
    "growth": _growth_table,
}


def markdown(document: dict[str, Any]) -> str:
    """The document as tables."""
    m = document["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    lines = [
        f"# Benchmarks: {document['name']}",
        "",
        f"{m['processor']}, {m['cores']} cores, {m['memory_gb']} GB, {m['system']}; Python {m['python']}, {versions}. "
        "Numbers in brackets are the least and the most of the runs; processor seconds add up all threads."
        + (" A quick run at tiny sizes: its times mean nothing." if document["quick"] else ""),
        "",
    ]
    for name, result in document["parts"].items():
        lines += TABLES[name](result)
    busy = [[name, *(at if at is not None else "" for at in ends)] for name, ends in document["load"].items()]
    lines += ["## Load", "", "Processes that wanted to run, one-minute averages.", ""]
    lines += table(["", "before", "after"], busy)
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything works")
    parser.add_argument(
        "--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}; the others stay as they are"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the tables")
    parser.add_argument("--name", default="cpu", help="name of the tables")
    parser.add_argument("--readme", action="store_true", help="only write the README's section and its figure anew")
    options = parser.parse_args(arguments)
    if options.readme:
        from benchmarks import readme

        readme.update()
        return
    wanted = options.only.split(",")
    unknown = sorted(set(wanted) - set(PARTS))
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / options.name
    document: dict[str, Any] = {"name": options.name, "quick": options.quick, "machine": machine()}
    loads, parts = {}, {}
    if len(wanted) < len(PARTS) and stem.with_suffix(".json").exists():
        before = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
        # Parts that were measured elsewhere, or with other versions, do not belong into one table.
        if all(before[key] == value for key, value in document.items()):
            loads, parts = before["load"], before["parts"]
    for name in [name for name in PARTS if name in wanted]:
        began, busy = time.perf_counter(), load()
        parts[name] = PARTS[name](options.quick)
        loads[name] = [busy, load()]
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        # After each part, so that an interruption loses none that is finished.
        document |= {key: {n: row[n] for n in PARTS if n in row} for key, row in (("load", loads), ("parts", parts))}
        text = json.dumps(document, indent=1, allow_nan=False) + "\n"
        stem.with_suffix(".json").write_text(text, encoding="utf-8")
        stem.with_suffix(".md").write_text(markdown(document), encoding="utf-8")
    print(stem.with_suffix(".md"))
