"""A small benchmark, agents' journals beside it, and the page of both; made once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stocktake_jax.agents.graders import LexicalGrader
from stocktake_jax.agents.play import play, read_folder
from stocktake_jax.agents.session import Session
from stocktake_jax.evaluation.beliefs import with_probabilities
from stocktake_jax.evaluation.benchmark import BenchOptions, BenchResult, read_results, run_benchmark
from stocktake_jax.evaluation.scoring import Run, labelled
from stocktake_jax.models import FACTORS
from stocktake_jax.report import Report, make_report, write_report

SEEDS = (0, 3, 11)
"""As in the tests of the benchmark, so that the oracle's program is compiled once for all: two published, one not."""

EVIL = "</script><img src=x onerror=\"window.hacked='markup'\"><b>&amp;bold</b> The port is congested."
"""A rationale that would run if any part of the page took it for markup."""

EVIL_AGENT = "</table><script>window.hacked='agent'</script>"


def buyer(report: Mapping[str, Any], session: Session) -> dict[str, Any] | None:
    """An agent with two suppliers that uses every lever once, and writes what would break a careless page."""
    week, seen = session.episode.week, session.episode.observe()
    words = (
        EVIL
        if week == 5
        else f"Week {week}: demand is up. I stock up."
        if week % 3 == 0
        else f"Week {week}: all is well."
    )
    if week % 2:
        words = with_probabilities(words, dict.fromkeys(FACTORS, 0.25))
    if week == 2:
        session.call("lock_freight", {"weeks": 4})
        session.call("buy_briefing", {})
    if week == 4:
        session.call("expedite_air", {"qty": 7})
        session.call("inspect_batch", {})
        session.call("buy_audit", {})
    sign = {"contract_action": "sign", "contract_supplier": "qualified"} if week == 0 else {}
    spot = week % 2 == 1 and "spot" not in seen["contract_open"]
    qty = min(max(85 - seen["inventory_position"], 0), 100)
    order = {"route": "cape" if week % 5 == 4 else "suez", "supplier": "spot" if spot else "qualified"} if qty else {}
    return {"rationale": words, "qty": qty} | order | sign


def quitter(report: Mapping[str, Any], session: Session) -> dict[str, Any] | None:
    """An agent that stops in week 9."""
    return buyer(report, session) if session.episode.week < 9 else None


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "results"
    run_benchmark(BenchOptions(seeds=SEEDS, replications=2, futures=5), folder)
    return folder


@pytest.fixture(scope="session")
def result(results: Path) -> BenchResult:
    return read_results(results)


@pytest.fixture(scope="session")
def journals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`buyer` on two of the seeds, all finished."""
    folder = tmp_path_factory.mktemp("journals")
    done = play(buyer, [0, 3], journals=folder)
    assert all(run.error is None for run in done)
    return folder


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unfinished episode on the third seed."""
    folder = tmp_path_factory.mktemp("stopped")
    (done,) = play(quitter, [11], journals=folder)
    assert done.error is not None
    return folder


@pytest.fixture(scope="session")
def runs(journals: Path) -> tuple[Run, ...]:
    found = labelled(read_folder(journals), LexicalGrader(), LexicalGrader.name)
    assert len(found) == 2
    return (*found, Run(EVIL_AGENT, 0, 6000.0))


@pytest.fixture(scope="session")
def report(result: BenchResult, runs: tuple[Run, ...]) -> Report:
    return make_report(result, runs)


@pytest.fixture(scope="session")
def page(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(report, path)
    return path


@pytest.fixture(scope="session")
def evil() -> tuple[str, str]:
    """A rationale and an agent's name that would run if any part of the page took them for markup."""
    return EVIL, EVIL_AGENT


@pytest.fixture(scope="session")
def programs() -> tuple[str, str]:
    """Chromium and its driver. Where they are not installed, the tests of the browser are skipped; in CI they fail."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if browser and driver:
        return browser, driver
    message = f"no {'chromedriver' if browser else 'Chromium'} on this machine to open the page with"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
