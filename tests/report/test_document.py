"""The data and the tables of a page against the library's own numbers, to the cent."""

from __future__ import annotations

import dataclasses
import html.parser
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stocktake_jax.agents.play import read_folder
from stocktake_jax.desk import ROUTES, SUPPLIERS, Decision, Episode, readings_from
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.beliefs import Statements, Truth
from stocktake_jax.evaluation.benchmark import BenchOptions, BenchResult, read_results, run_benchmark
from stocktake_jax.evaluation.ledger import read_journal
from stocktake_jax.evaluation.published import published_agents, published_beliefs
from stocktake_jax.evaluation.scoring import Run, published_runs, score_runs
from stocktake_jax.evaluation.simulate import ITEMS
from stocktake_jax.evaluation.skill import References, score
from stocktake_jax.inference import filter_factor
from stocktake_jax.models import FACTORS, HORIZON, Tape, World
from stocktake_jax.report import Report, episodes, make_report
from stocktake_jax.report.document import CHANNELS, FIELDS, GROUPS, MOST_CHARACTERS
from stocktake_jax.report.page import embedded

WORLD = World.paper()
SEEDS = (0, 3, 11)
"""Those of the fixture `results`."""


def of_seed(document: Any, seed: int) -> dict[str, Any]:
    return next(row for row in document["seeds"] if row["seed"] == seed)


def agent_run(document: Any, seed: int) -> dict[str, Any]:
    return next(run for run in of_seed(document, seed)["runs"] if run["who"] == "agent")


# ---- books ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_books_of_floor_and_oracle_are_the_saved_ones(result: BenchResult, report: Report, seed: int) -> None:
    saved = next(r for r in result.seeds if r.seed == seed)
    floor, oracle = of_seed(report.document, seed)["runs"][:2]
    assert [floor["who"], oracle["who"]] == ["floor", "oracle"]
    assert oracle["name"] == "oracle, run 1 of 2"
    assert floor["cost"] == round(100 * saved.floor)
    assert oracle["cost"] == round(100 * saved.oracle[0])
    for name, run in (("floor", floor), ("oracle", oracle)):
        weeks = saved.weeks[name]
        assert run["weekly"] == [round(100 * week["cost"]) for week in weeks]
        assert abs(sum(run["weekly"]) - run["cost"]) <= HORIZON / 2  # each week is rounded by itself
        for item in ITEMS:
            assert run["bill"].get(item, [0] * HORIZON) == [round(100 * week["bill"].get(item, 0.0)) for week in weeks]
        for column in ("inventory", "on_order", "arrived", "unmet"):
            assert run["books"][column] == [week["books"][column] for week in weeks]
        for w, week in enumerate(weeks):
            said = week["decision"]
            assert run["decision"]["qty"][w] == said["qty"]
            if said["qty"]:
                assert ROUTES[run["decision"]["route"][w]] == said["route"]
                assert SUPPLIERS[run["decision"]["supplier"][w]] == said["supplier"]


def test_costs_of_a_seed_are_those_of_its_references(result: BenchResult, report: Report) -> None:
    for i, saved in enumerate(result.seeds):
        row = of_seed(report.document, saved.seed)
        assert row["floor"] == round(100 * saved.floor)
        assert row["oracle"]["mean"] == round(100 * float(np.mean(saved.oracle)))
        assert row["oracle"]["se"] == round(100 * float(result.references.oracle_se[i]))
        assert (row["oracle"]["min"], row["oracle"]["max"]) == (
            round(100 * min(saved.oracle)),
            round(100 * max(saved.oracle)),
        )


@pytest.mark.parametrize("seed", [0, 3])
def test_books_of_an_agent_are_what_its_desk_showed(journals: Path, report: Report, seed: int) -> None:
    record = read_journal(next(journals.rglob(f"seed-{seed}.1.jsonl")))
    run, desk = agent_run(report.document, seed), Episode(seed)
    seen = []
    for tool, arguments in record.calls:
        result = desk.call(tool, dict(arguments))
        if tool == "place_order":
            seen.append(result)
    assert run["cost"] == round(100 * desk.cost)
    for column in ("inventory", "on_order", "arrived"):
        assert run["books"][column] == [week[column] for week in seen]
    assert run["books"]["unmet"] == [week["pos_units"] - week["served"]["unit"] for week in seen]
    weeks = desk.result()["weeks"]
    assert run["weekly"] == [round(100 * week["cost"]) for week in weeks]
    for item in ITEMS:
        assert run["bill"].get(item, [0] * HORIZON) == [round(100 * w["breakdown"].get(item, 0.0)) for w in weeks]
    assert run["decision"]["qty"] == [week["order"]["qty"] for week in weeks]
    assert run["decision"]["lock_weeks"][2] == 4
    assert run["decision"]["air"][4] == 7
    assert run["repeat"] == 1 and run["name"] == "buyer"


def test_every_item_and_field_has_a_place() -> None:
    assert sorted(item for items in GROUPS.values() for item in items) == sorted(ITEMS)
    assert tuple(vars(Decision.make())) == FIELDS


# ---- tapes and posteriors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_the_tape_is_the_published_one(report: Report, seed: int) -> None:
    row, tape = of_seed(report.document, seed), Tape.published(seed)
    told = tape.to_json(seed, WORLD)["weeks"]
    shown = tape.readings(WORLD, np.ones(HORIZON + 1, bool))
    for f, factor in enumerate(report.document["factors"]):
        name = factor["name"]
        assert [factor["labels"][k] for k in row["regime"][f]] == [week[name]["regime"] for week in told]
        assert row["age"][f] == [week[name]["age"] for week in told]
        for c, channel in enumerate(CHANNELS[name]):
            column = shown[name].get(channel, tape.values[name].get(channel))
            drawn = np.array([math.nan if x is None else x for x in row["values"][f][c]])
            np.testing.assert_allclose(drawn, np.asarray(column, np.float64), atol=1e-9)
    stressed = Truth.of(tape).stressed
    for f, factor in enumerate(report.document["factors"]):
        assert [bool(factor["trouble"][k]) for k in row["regime"][f]] == stressed[:, f].tolist()


@pytest.mark.parametrize("seed", SEEDS)
def test_posteriors_are_those_that_the_oracle_had(result: BenchResult, report: Report, seed: int) -> None:
    saved = next(r for r in result.seeds if r.seed == seed).weeks["oracle"]
    row = of_seed(report.document, seed)
    for f, factor in enumerate(report.document["factors"]):
        drawn = np.array(row["filter"][f]).T  # week, label
        assert drawn.shape == (HORIZON + 1, len(factor["labels"]))
        believed = np.array([[week["belief"][factor["name"]][k] for k in factor["labels"]] for week in saved])
        np.testing.assert_allclose(drawn[:HORIZON] / 1000, believed, atol=6e-4)


def test_an_agents_belief_about_spot_reads_the_fills_that_it_saw(journals: Path, report: Report) -> None:
    record, desk = read_journal(next(journals.rglob("seed-0.1.jsonl"))), Episode(0)
    seen = [desk.observe(), *(desk.call(tool, dict(args)) for tool, args in record.calls if tool == "place_order")]
    weeks = [readings_from(week)["supplier"] for week in seen]
    series = {channel: np.array([week[channel] for week in weeks], np.float32) for channel in weeks[0]}
    assert np.isfinite(series["realized_fill"]).sum() >= 3
    found = filter_factor(WORLD.supplier, series)
    drawn = np.array(agent_run(report.document, 0)["supplier"]).T / 1000
    np.testing.assert_allclose(drawn, WORLD.supplier.regime_probabilities(found.belief), atol=6e-4)
    others = np.array(of_seed(report.document, 0)["filter"][FACTORS.index("supplier")]).T / 1000
    assert np.abs(drawn - others).max() > 0.01  # the oracle was shown other fills


# ---- words ----------------------------------------------------------------------------------------------------------


def test_labels_words_and_probabilities_of_an_agent(
    report: Report, runs: tuple[Run, ...], evil: tuple[str, str]
) -> None:
    run = agent_run(report.document, 0)
    statements = next(r for r in runs if r.seed == 0 and r.agent == "buyer").statements
    assert statements is not None
    assert run["named"][0] == run["named"][HORIZON] == -1
    for week in range(1, HORIZON):
        assert [bool(run["named"][week] & (1 << f)) for f in range(len(FACTORS))] == statements.named[week].tolist()
    assert run["named"][5] & (1 << FACTORS.index("port"))
    assert run["rationale"][5] == evil[0]
    assert run["stated"][5] == [250] * len(FACTORS)
    assert run["stated"][6] == [None] * len(FACTORS)


@pytest.mark.parametrize("seed", [0, 11])
def test_of_the_published_agents_labels_and_stockouts_alone(report: Report, seed: int) -> None:
    rows = {row["name"]: row for row in of_seed(report.document, seed)["published"]}
    assert list(rows) == list(published_agents())
    for agent, row in rows.items():
        assert set(row) == {"name", "cost", "named", "stockout"}
        stated = Statements.published(published_beliefs()[agent, seed])
        assert row["cost"] == round(100 * published_agents()[agent][seed])
        assert row["stockout"] == stated.stockout.astype(int).tolist()
        for week in range(1, HORIZON):
            assert [bool(row["named"][week] & (1 << f)) for f in range(len(FACTORS))] == stated.named[week].tolist()
    assert of_seed(report.document, 3)["published"] == []  # nobody published anything on it


def test_long_rationales_are_cut_and_say_so(result: BenchResult, runs: tuple[Run, ...], evil: tuple[str, str]) -> None:
    document = episodes(result, runs[:2], most=20)
    cut = agent_run(document, 0)["rationale"][5]
    assert cut.startswith(evil[0][:20].rstrip()) and f"{len(evil[0]):,} characters in the journal" in cut
    assert "congested" not in json.dumps(agent_run(document, 0)["rationale"])


def test_half_a_surrogate_pair_can_be_written(result: BenchResult, runs: tuple[Run, ...]) -> None:
    ledger = runs[0].ledger
    assert ledger is not None
    odd = dataclasses.replace(ledger, rationales=("\ud800 \u2028 \x00",) * HORIZON)
    made = make_report(result, [dataclasses.replace(runs[0], ledger=odd, agent="\udfff")])
    made.html.encode()
    assert "\u2028" not in made.html


# ---- what must not be told ------------------------------------------------------------------------------------------


def test_nothing_hidden_of_an_unfinished_episode_is_told(
    result: BenchResult, stopped: Path, runs: tuple[Run, ...]
) -> None:
    (unfinished,) = read_folder(stopped)
    assert math.isnan(unfinished.cost)
    made = make_report(result, [*runs, unfinished])
    row = of_seed(made.document, 11)
    assert set(row) == {"seed", "profile", "floor", "oracle", "withheld"}
    assert "regime" in of_seed(made.document, 0)
    (listed,) = [r for r in parsed(made.html)["runs"] if r["agent"] == "quitter"]
    assert listed["state"] == "unfinished" and listed["cost"] == listed["skill"] == "–"
    summary = re.search(r'id="seed-11".*?</summary>', made.html, re.DOTALL)
    assert summary is not None
    assert "stress" not in summary[0] and "not finished" in summary[0]


def test_runs_that_do_not_belong_are_refused(result: BenchResult, runs: tuple[Run, ...]) -> None:
    with pytest.raises(InputError, match="given twice"):
        make_report(result, [runs[0], runs[0]])
    with pytest.raises(InputError, match="published agent; call yours otherwise"):
        make_report(result, [dataclasses.replace(runs[0], agent="gpt-5.4")])
    elsewhere = WORLD.replace({"port.wait_sd": 3.0})
    with pytest.raises(InputError, match="another world"):
        make_report(result, [dataclasses.replace(runs[0], world=elsewhere)])


def test_journals_of_agents_whose_costs_the_benchmark_had(result: BenchResult, runs: tuple[Run, ...]) -> None:
    mine = {"buyer": {0: runs[0].cost, 3: 1.0}}
    options = dataclasses.replace(result.options, agents=mine)
    theirs = dataclasses.replace(
        result,
        options=options,
        skill=score(mine, result.references),
        published=score(mine, References.published([0, 11])),
    )
    made = make_report(theirs, runs[:2])
    assert [w for w in made.warnings if "seed 3" in w] and not [w for w in made.warnings if "seed 0" in w]
    assert {row["agent"] for row in parsed(made.html)["skill"]} == {"buyer"}


# ---- tables ---------------------------------------------------------------------------------------------------------


class _Tables(html.parser.HTMLParser):
    """The tables of a page: id -> rows, each a dict of header to text."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.rows: list[list[str]] | None = None
        self.cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.rows = self.tables.setdefault(str(dict(attrs)["id"]), [])
        if self.rows is not None and tag == "tr":
            self.rows.append([])
        if self.rows is not None and tag in ("td", "th"):
            self.rows[-1].append("")
            self.cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.rows = None
        if tag in ("td", "th"):
            self.cell = False

    def handle_data(self, data: str) -> None:
        if self.rows and self.cell:
            self.rows[-1][-1] += data


def parsed(page: str) -> dict[str, list[dict[str, str]]]:
    parser = _Tables()
    parser.feed(page)
    return {name: [dict(zip(rows[0], row, strict=True)) for row in rows[1:]] for name, rows in parser.tables.items()}


def as_number(text: str) -> float:
    return math.nan if text == "–" else float(text.replace(",", "").replace("−", "-"))


def same(text: str, value: object, places: int = 2) -> bool:
    number = math.nan if value is None else float(str(value))
    shown = as_number(text)
    return (math.isnan(shown) and math.isnan(number)) or abs(shown - number) <= 0.5001 * 10**-places


def test_tables_hold_the_librarys_numbers(result: BenchResult, report: Report, evil: tuple[str, str]) -> None:
    found = parsed(report.html)
    for row, told in zip(found["references"], result.to_json()["seeds"], strict=True):
        assert row["seed"] == str(told["seed"]) and row["profile"] == told["profile"]
        assert same(row["floor"], told["floor"]) and same(row["oracle"], told["oracle"]["mean"])
        assert same(row["s.e."], told["oracle"]["se"])
        assert same(row["min"], told["oracle"]["min"]) and same(row["max"], told["oracle"]["max"])
        assert same(row["headroom"], told["floor"] - told["oracle"]["mean"])
    whole = found["profiles"][-1]
    assert whole["profile"] == "all" and whole["seeds"] == "3"
    assert same(whole["floor"], result.references.floor.mean()) and same(
        whole["oracle"], result.references.oracle.mean()
    )
    summary = {(row["agent"], row["group"]): row for row in result.skill.summary_rows()}
    by_seed = {(row["agent"], row["seed"]): row for row in result.skill.seed_rows()}
    rows = [row for row in found["skill"] if row["agent"] in published_agents()]
    assert len(rows) == 16
    for row in rows:
        told = summary[row["agent"], row["profile"]]
        assert all(same(row[name], told[name]) for name in ("mean", "median", "low", "high"))
    rows = [row for row in found["skill-by-seed"] if row["agent"] in published_agents()]
    assert len(rows) == 8
    for row in rows:
        told = by_seed[row["agent"], int(row["seed"])]
        assert same(row["cost"], told["cost"]) and same(row["skill"], told["skill"])
    assert {row["agent"] for row in found["skill"]} == {*published_agents(), "buyer", evil[1]}


def test_tables_of_beliefs_hold_the_librarys_rates(result: BenchResult, report: Report, runs: tuple[Run, ...]) -> None:
    mine = [dataclasses.replace(r, ledger=None) for r in runs[:2]]
    board = score_runs([*mine, *(r for r in published_runs() if r.seed in SEEDS)], result.references, resamples=1)
    found = parsed(report.html)
    for row in found["detection"]:
        assert same(row["missed, %"], 100 * board.rate(row["agent"], "missed", row["profile"]).value, 1)
        assert same(row["lag, weeks"], board.rate(row["agent"], "mean_lag", row["profile"]).value)
        assert same(row["precision, %"], 100 * board.rate(row["agent"], "precision", row["profile"]).value, 1)
    for row in found["knowing"]:
        rate = board.rate(row["agent"], "knowing_doing", row["profile"])
        assert same(row["knowing–doing, %"], 100 * rate.value, 1) and same(row["diagnosed weeks"], rate.denominator)
    assert {row["agent"] for row in found["knowing"]} == {*published_agents(), "buyer"}


def test_agents_that_see_hidden_states_are_marked_and_win_nothing(result: BenchResult, runs: tuple[Run, ...]) -> None:
    cheat = dataclasses.replace(runs[0], agent="cheat", cost=1.0, privileged=True)
    made = make_report(result, [cheat])
    tables = parsed(made.html)
    assert {row["agent"] for row in tables["skill"]} == {*published_agents(), "cheat (sees hidden states)"}
    assert [row["agent"] for row in tables["runs"]] == ["cheat (sees hidden states)"]
    best = re.search(r"best mean skill: ([^<]*)<", made.html)
    assert best is not None and best[1] in published_agents()
    assert agent_run(made.document, 0)["privileged"] == 1
    assert [a["agent"] for a in made.document["skill"]] == [*published_agents(), "cheat (sees hidden states)"]


def test_the_list_of_runs(report: Report, runs: tuple[Run, ...], evil: tuple[str, str]) -> None:
    found = parsed(report.html)["runs"]
    assert [(row["seed"], row["agent"], row["state"]) for row in found] == [
        ("0", "buyer", "finished"),
        ("3", "buyer", "finished"),
        ("0", evil[1], "cost alone"),
    ]
    assert same(found[0]["cost"], runs[0].cost)


# ---- the file -------------------------------------------------------------------------------------------------------


def test_texts_of_journals_cannot_end_the_data(report: Report, evil: tuple[str, str]) -> None:
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', report.html, re.DOTALL)
    assert block is not None
    assert json.loads(block[1]) == json.loads(json.dumps(report.document))
    assert not set("<>&") & set(block[1])
    assert report.html.count("<script") == report.html.count("</script>") == 2
    assert evil[1] not in report.html and "<img" not in report.html
    assert embedded({"a": "\u2028</script>"}) == '{"a":"\\u2028\\u003c/script\\u003e"}'


def test_links_within_the_page_lead_somewhere(result: BenchResult, report: Report) -> None:
    for page, with_runs in ((report.html, True), (make_report(result).html, False)):
        places = set(re.findall(r'\bid="([^"]+)"', page))
        links = set(re.findall(r'href="#([^"]+)"', page))
        assert links <= places and len(links) >= 5 + len(SEEDS)
        assert ("h-runs" in links) == with_runs


def test_the_page_names_no_address_and_forbids_the_network(report: Report) -> None:
    assert not re.findall(r'(?:src|href)="(?!#|data:,")', report.html)
    assert not re.findall(r"https?://(?!www\.w3\.org/)", report.html)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', report.html)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1] and "http" not in policy[1]


def test_the_same_results_give_the_same_page(result: BenchResult, report: Report, runs: tuple[Run, ...]) -> None:
    assert make_report(result, runs).html == report.html


def test_other_options_are_told(result: BenchResult) -> None:
    options = dataclasses.replace(
        result.options, rules="strict", true_world=WORLD.replace({"port.wait_sd": 3.0}), futures=7
    )
    made = make_report(dataclasses.replace(result, options=options))
    assert "port.wait_sd = 3.0 (published: 2.0)" in made.html
    assert any("published agents played the published world" in w for w in made.warnings)
    assert all(row["published"] == [] for row in made.document["seeds"])
    assert "detection" not in parsed(made.html)


def test_size_of_a_full_page_extrapolated(report: Report) -> None:
    data = len(embedded(report.document).encode())
    growing = re.findall(r'<table id="(?:references|skill-by-seed)".*?</table>', report.html, re.DOTALL)
    growing += re.findall(r'<div id="episodes">.*?</section>', report.html, re.DOTALL)
    assert len(growing) == 3
    rows = sum(len(part.encode()) for part in growing)
    fixed = len(report.html.encode()) - data - rows
    books = max(len(json.dumps(run | {"rationale": ""})) for s in SEEDS for run in of_seed(report.document, s)["runs"])
    tapes = max(len(json.dumps(of_seed(report.document, s) | {"runs": []})) for s in SEEDS)
    plain = fixed + 50 * (rows / len(SEEDS) + tapes + 2 * books)
    assert 2e5 < plain < 1.5e6
    # With an agent whose every rationale is as long as a page keeps.
    assert plain + 50 * (books + HORIZON * MOST_CHARACTERS) < 5e6


@pytest.mark.slow
def test_size_of_the_full_benchmark(tmp_path: Path) -> None:
    run_benchmark(BenchOptions(), tmp_path / "results")
    made = make_report(read_results(tmp_path / "results"))
    assert len(made.document["seeds"]) == 50
    assert len(made.html.encode()) < 1e6
