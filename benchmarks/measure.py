"""Clocks, child processes, and the machine that all of it ran on.

This module imports neither jax nor numpy: the kernel counts the memory of a process from before its program was loaded,
so a measuring parent must be smaller than what it measures.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "equinox", "stocktake-jax", "dynamax", "hmmlearn", "matplotlib")
"""Whose versions are noted."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median and spread of repeated measurements."""

    median: float
    low: float
    high: float
    iqr: float
    repeats: int

    @classmethod
    def of(cls, values: Sequence[float], digits: int = 4) -> Spread:
        """Of the values; rounded to significant digits, which is more than clocks on a shared machine give."""
        quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3

        def short(x: float) -> float:
            return float(f"{x:.{digits}g}")

        middle = short(statistics.median(values))
        return cls(middle, short(min(values)), short(max(values)), short(quartiles[2] - quartiles[0]), len(values))

    def to_json(self) -> dict[str, float]:
        """As a dictionary."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Timing:
    """Wall and processor time of repeated calls, in seconds; processor time adds up all threads."""

    wall: Spread
    cpu: Spread

    def to_json(self) -> dict[str, Any]:
        """As a dictionary."""
        return {"wall_s": self.wall.to_json(), "cpu_s": self.cpu.to_json()}


def clock(call: Callable[[], Any]) -> tuple[float, float]:
    """Wall and processor seconds of one call, which must wait for its own results."""
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def interleaved(contestants: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, Timing]:
    """Time several calls in turns, after one call each that does not count.

    What else the machine does then falls on all of them alike.
    """
    for call in contestants.values():
        call()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, call in contestants.items():
            times[name].append(clock(call))
    return {
        name: Timing(Spread.of([wall for wall, _ in rows]), Spread.of([cpu for _, cpu in rows]))
        for name, rows in times.items()
    }


@dataclasses.dataclass(frozen=True)
class Child:
    """A finished child process.

    Attributes:
        wall_s: from its start to its end.
        cpu_s: user and system time of all its threads.
        peak_mb: the most memory that it held at a time, in 10^6 bytes.
        stdout: what it printed.
    """

    wall_s: float
    cpu_s: float
    peak_mb: float
    stdout: str


def child(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Child:
    """Run this interpreter with some arguments and measure it from outside.

    Raises:
        RuntimeError: if it fails, with the end of what it said.
    """
    # No cache of compiled programs but what is asked for, and no devices forced from outside.
    env = {k: v for k, v in os.environ.items() if not (k.startswith(("JAX_", "STOCKTAKE_")) and "CACHE" in k)}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    env |= environment or {}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.perf_counter()
        process = subprocess.Popen([sys.executable, *arguments], stdout=out, stderr=err, env=env, cwd=ROOT, text=True)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (out, err):
            file.seek(0)
        if process.returncode:
            raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode}:\n{err.read()[-3000:]}")
        scale = 1.0 if sys.platform == "darwin" else 1024.0
        return Child(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * scale / 1e6, out.read())


def part(module: str, **options: Any) -> tuple[dict[str, Any], Child]:
    """Run a part, `benchmarks.<module>`, in a process of its own; what its `measure` returns, and the process.

    One process per part: each starts without the memory, the programs and the threads of the others.
    """
    # The last line: libraries may have printed before.
    finished = child(["-m", f"benchmarks.{module}", json.dumps(options)])
    return json.loads(finished.stdout.splitlines()[-1]), finished


def answer(measure: Callable[..., dict[str, Any]]) -> None:
    """What a part's `__main__` does: measure with the options given as JSON, print the result as JSON."""
    options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    print(json.dumps(measure(**options), allow_nan=False))


def machine() -> dict[str, Any]:
    """The machine and the versions, without names or paths."""
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "processor": _processor(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "memory_gb": _memory_gb(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def load() -> float | None:
    """Processes that wanted to run over the last minute, on average; None where the system does not tell."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def _processor() -> str:
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        named = {key.strip(): value.strip() for key, value in fields.items()}
        flags = named.get("flags", "").split()
        vectors = next((f for f in ("avx512f", "avx2", "avx") if f in flags), "")
        return " ".join(filter(None, [named.get("model name", ""), vectors])) or platform.machine()
    return platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError, AttributeError):
        return None
