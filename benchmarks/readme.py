"""The README's section on speed, out of the committed table: `python -m benchmarks --readme` writes it and the figure."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.figures import draw_growth
from benchmarks.measure import ROOT

TABLE = Path("benchmarks/results/cpu.json")
FIGURE = Path("docs/figures/growth.svg")
SECTION = re.compile(r"^## How fast\n.*?(?=^## )", re.M | re.S)

# ---- numbers --------------------------------------------------------------------------------------------------------


def _short(x: float) -> str:
    """Three significant digits, at most."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def _spread(s: dict[str, Any]) -> str:
    if s["repeats"] == 1:
        return _short(s["median"])
    return f"{_short(s['median'])} ({_short(s['low'])} to {_short(s['high'])})"


def _row(label: str, timing: dict[str, Any], memory: Any = "") -> str:
    return f"| {label} | {_spread(timing['wall_s'])} | {_spread(timing['cpu_s'])} | {memory} |"


def _megabytes(mb: float) -> str:
    return f"{mb:,.0f} MB"


# ---- the section ----------------------------------------------------------------------------------------------------


def section(document: dict[str, Any]) -> str:
    """The section, heading and all; every number in it is one of the table's."""
    m, parts = document["machine"], document["parts"]
    cold, warm, tapes = parts["cold"], parts["warm"], parts["tapes"]
    versions = ", ".join(f"{name} {m['versions'][name]}" for name in ("jax", "numpy"))
    peers = " and ".join(f"{n} {m['versions'][n]}" for n in ("dynamax", "hmmlearn") if n in m["versions"])
    two, one = warm["2 devices"], warm["1 device"]
    peer = two["peer"]
    peak = max(r["peak_mb"] for r in cold.values())
    job_rows = [
        *(
            _row(f"`stocktake bench`, from prompt to report, {name}", r, _megabytes(r["peak_mb"]))
            for name, r in cold.items()
        ),
        *(_row(f"the job in a running process, {name}", r["timings"]["job"]) for name, r in warm.items()),
        *(_row(f"its oracle episodes alone, {name}", r["timings"]["oracle runs"]) for name, r in warm.items()),
        _row(
            f"the same oracle plainly in numpy, in the same process, scaled from {peer['episodes']} episodes",
            peer["timing_scaled"],
        ),
    ]
    lines = [
        "## How fast",
        "",
        *_paragraph(
            "`python -m benchmarks` (after `pip install -c constraints.txt -e '.[bench]'`) measures all of this and writes",
            f"[the full tables]({TABLE.with_suffix('.md')}); `python -m benchmarks --readme` makes this section of them.",
            f"{m['processor']}, {m['cores']} virtual cores, {_short(m['memory_gb'])} GB, no accelerator; {versions}.",
            "Seconds are medians, with the least and the most of the runs; processor seconds add up all threads. The job is",
            f"the whole reference: tapes, floor, {one['episodes']:,} oracle episodes, skill tables.",
        ),
        "| the reference job | wall s | processor s | peak memory |",
        "|---|---:|---:|---:|",
        *job_rows,
        "",
        *_paragraph(
            f"The oracle's episodes take {_short(two['peer']['wall_ratio'])} times as long in numpy as on two devices, and",
            f"{_short(two['peer']['ratio_per_core'])} times as long per core. `--devices 2` uses both cores;",
            "`--compile-cache DIR` keeps compiled programs. The whole job never held more than",
            f"{_megabytes(peak)}. How a batch is cut (`policies.rollout.Layout`), how many devices share it, chunks, the order",
            "of seeds and interruptions change the time taken and nothing else: all tables are equal bit for bit.",
        ),
        *_filters(parts["filters"], peers),
        *_tapes(tapes),
        *_compiling(parts["compiling"]),
        "How the time grows, on one device:",
        "",
        f"![Seconds against seeds, replications, futures, menu width, weeks and worlds]({FIGURE})",
        "",
        *_paragraph(
            "With a GPU, `python -m benchmarks.gpu` runs the whole job, the million tapes and a thousand wrong models of",
            "the world on it, and compares them with the CPU's. No accelerator was at hand for this table; that the hot",
            "programs can be lowered for CUDA is tested.",
        ),
    ]
    return "\n".join(lines) + "\n"


def _paragraph(*sentences: str) -> list[str]:
    lines = textwrap.wrap(" ".join(sentences), 120, break_long_words=False, break_on_hyphens=False)
    return [*lines, ""]


def _filters(filters: dict[str, Any], peers: str) -> list[str]:
    labels = list(filters["rows"][0]["times_faster_wall"])
    rows = []
    for r in filters["rows"]:
        ns = {label: _short(t["cpu_ns_per_state_week"]) for label, t in r["timings"].items()}
        least = min(r["times_faster_cpu"].values())
        cells = [r["factor"], r["states"], ns["filter_series"], *(ns[label] for label in labels), _short(least)]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    header = ["filter", "states", "`filter_series`", *labels, "times faster than the fastest peer"]
    return [
        *_paragraph(
            f"Exact filters on {filters['series']:,} series of {filters['weeks']} weeks, in one process with {peers},",
            "processor nanoseconds per state and week (`filter_series` starts from readings; dynamax does, or is given the",
            "likelihoods; hmmlearn is given them, and computes the evidence alone):",
        ),
        "| " + " | ".join(header) + " |",
        "|---|" + "---:|" * (len(header) - 1),
        *rows,
        "",
    ]


def _tapes(tapes: dict[str, Any]) -> list[str]:
    sample, stream = tapes["sample"], tapes["stream"]
    return _paragraph(
        f"{stream['tapes']:,} fresh tapes of six factors, in chunks of {stream['chunk']:,}: sampled in",
        f"{_short(sample['timing']['wall_s']['median'])} s ({_megabytes(sample['peak_mb'])} at most), sampled and filtered",
        f"in {_short(stream['timing']['wall_s']['median'])} s ({_megabytes(stream['peak_mb'])}).",
    )


def _compiling(compiling: dict[str, Any]) -> list[str]:
    each = ", ".join(f"{name} {_short(r['compile_s'])} s" for name, r in compiling.items())
    return _paragraph(f"Compilation, once per shape and process: {each}.")


# ---- writing --------------------------------------------------------------------------------------------------------


def update(root: Path = ROOT) -> None:
    """Bring the README's section and the figure up to date with the committed table.

    Raises:
        ValueError: if the README has no such section.
    """
    document = json.loads((root / TABLE).read_text(encoding="utf-8"))
    readme = root / "README.md"
    text, count = SECTION.subn(lambda _: section(document), readme.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError(f"README.md has {count} sections 'How fast' with another one after it, not 1")
    draw_growth(document["parts"]["growth"], root / FIGURE)
    readme.write_text(text, encoding="utf-8")
