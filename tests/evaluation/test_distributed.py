"""Two processes on one machine share a benchmark; what they find is what one finds alone."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.distributed import Share, join

SMALL = ("bench", "--seeds", "12,24,60", "--replications", "2", "--futures", "12", "--devices", "1", "--json")


def _start(*extra: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stocktake_jax.cli", *SMALL, *extra]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _document(text: str) -> dict[str, Any]:
    found = json.loads(text)
    found.pop("run")
    return found


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    shared = ("--distributed", "--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--out", str(tmp_path / "out"))
    both = [_start(*shared, "--process", str(i)) for i in (0, 1)]
    texts = [p.communicate(timeout=600) for p in both]
    assert [p.returncode for p in both] == [0, 0], texts
    assert texts[1][0] == ""
    alone = _start()
    text, error = alone.communicate(timeout=600)
    assert alone.returncode == 0, error
    assert _document(texts[0][0]) == _document(text)
    assert sorted(p.name for p in (tmp_path / "out" / "seeds").iterdir()) == ["12.json", "24.json", "60.json"]
    assert _document((tmp_path / "out" / "results.json").read_text()) == _document(text)


@pytest.mark.slow
def test_hosts_that_die_lose_only_what_they_were_at(tmp_path: Path) -> None:
    """Slow for its five processes: both are killed in the middle, and started again."""
    out = tmp_path / "out"
    many = ("--seeds", "0-11", "--chunk", "1")

    def start_both() -> list[subprocess.Popen[str]]:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        shared = ("--distributed", "--coordinator", f"127.0.0.1:{port}", "--processes", "2", "--out", str(out))
        return [_start(*many, *shared, "--process", str(i)) for i in (0, 1)]

    first, deadline = start_both(), time.monotonic() + 600
    while len(list(out.glob("seeds/*.json"))) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in reversed(first):
        process.kill()
        process.communicate()
    kept = {path.name: path.read_bytes() for path in out.glob("seeds/*.json")}
    assert 4 <= len(kept) < 12 and not (out / "results.json").exists()
    again = start_both()
    texts = [p.communicate(timeout=600) for p in again]
    assert [p.returncode for p in again] == [0, 0], texts
    mine = {f"{seed}.json" for seed in range(0, 12, 2)}
    assert json.loads(texts[0][0])["run"]["seeds_resumed"] == len(mine & kept.keys())
    assert all((out / "seeds" / name).read_bytes() == content for name, content in kept.items())
    text, error = (alone := _start(*many)).communicate(timeout=600)
    assert alone.returncode == 0, error
    assert _document(texts[0][0]) == _document(text)


def test_shares_cover_the_seeds_once() -> None:
    seeds = tuple(range(7))
    parts = [Share(i, 3).of(seeds) for i in range(3)]
    assert sorted(sum(parts, ())) == list(seeds)
    assert Share().of(seeds) == seeds
    assert Share().gather([{"a": 1}]) == [{"a": 1}]


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="give all of"):
        join("127.0.0.1:1", None, None)
    with pytest.raises(InputError, match="from 0 to 1"):
        join("127.0.0.1:1", 2, 2)
    with pytest.raises(InputError, match="HOST:PORT"):
        join("somewhere", 2, 0)
