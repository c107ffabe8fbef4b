"""The score board: the paper's tables, costs and responses by hand, intervals and tests, input that cannot be used."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stocktake_jax.desk import Episode
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.beliefs import FIRST, LAST, WEEKS, Rate, Statements, Truth, belief_counts
from stocktake_jax.evaluation.ledger import (
    AFTERMATH,
    HARM,
    LOSSES,
    PROTECTION,
    RESPONSES,
    Ledger,
    Record,
    cost_counts,
    loss_counts,
    of_trajectories,
    read_journal,
    response_counts,
    week_statuses,
)
from stocktake_jax.evaluation.scoring import (
    QUOTED,
    Run,
    ScoreBoard,
    filter_stress,
    labelled,
    oracle_ledgers,
    published_runs,
    read_label_file,
    score_runs,
)
from stocktake_jax.evaluation.simulate import ITEMS, simulate
from stocktake_jax.evaluation.skill import References
from stocktake_jax.models import FACTORS, HORIZON, Tape, World
from stocktake_jax.policies import BaseStock, Runs

AGENTS = ("claude-sonnet-5", "gpt-5.4", "deepseek-v4-pro", "grok-4.5")
WORLD = World.paper()


@pytest.fixture(scope="module")
def published() -> ScoreBoard:
    return score_runs(published_runs(), resamples=2000)


# -- the published agents


def test_published_agents_give_the_tables_of_the_paper(published: ScoreBoard) -> None:
    assert published.agents == AGENTS
    means = {
        a: [f"{published.rate(a, 'skill', g).value:.2f}" for g in ("isolated", "persistent", "compound", "all")]
        for a in AGENTS
    }
    assert means["claude-sonnet-5"] == ["0.54", "0.70", "0.33", "0.49"]
    assert means["gpt-5.4"] == ["0.21", "0.55", "0.86", "0.62"]
    assert means["deepseek-v4-pro"] == ["-0.62", "-0.68", "0.24", "-0.23"]
    assert means["grok-4.5"] == ["-0.14", "-0.24", "-0.06", "-0.13"]
    assert [published.rate(a, "below_floor") for a in AGENTS] == [(9, 49), (8, 49), (22, 49), (28, 49)]
    assert [published.rate(a, "beats_floor") for a in AGENTS] == [(40, 50), (42, 50), (28, 50), (21, 50)]
    assert [published.rate(a, "above_oracle").numerator for a in AGENTS] == [10, 16, 3, 4]
    assert [published.rate(a, "missed") for a in AGENTS] == [(16, 266), (18, 266), (29, 266), (20, 266)]
    assert [published.rate(a, "missed_paper") for a in AGENTS] == [(33, 283), (35, 283), (46, 283), (37, 283)]
    assert [published.rate(a, "mean_lag") for a in AGENTS] == [(104, 250), (99, 248), (75, 237), (79, 246)]
    assert [published.rate(a, "knowing_doing") for a in AGENTS] == [(94, 515), (55, 502), (79, 469), (75, 544)]


def test_json_has_every_rate_as_value_numerator_denominator(published: ScoreBoard) -> None:
    document = json.loads(json.dumps(published.to_json(), allow_nan=False))
    assert tuple(document) == AGENTS
    for metrics in document.values():
        for groups in metrics.values():
            assert set(groups) <= {"isolated", "persistent", "compound", "all"}
            for rate in groups.values():
                assert set(rate) == {"value", "numerator", "denominator"}
                if rate["numerator"] is not None and rate["denominator"]:
                    assert rate["value"] == pytest.approx(rate["numerator"] / rate["denominator"])
    assert document["gpt-5.4"]["knowing_doing"]["all"] == {"value": 55 / 502, "numerator": 55, "denominator": 502}
    assert document["gpt-5.4"]["brier"]["all"] == {"value": None, "numerator": 0, "denominator": 0}
    assert document["gpt-5.4"]["skill_median"]["isolated"]["value"] == pytest.approx(0.07, abs=0.005)
    quoted = document["claude-sonnet-5"]["knowing_doing_quoted"]
    assert [quoted[g]["value"] for g in ("isolated", "persistent", "compound", "all")] == [0.24, 0.43, 0.30, 0.34]
    assert set(QUOTED) == set(AGENTS)


def test_the_text_has_all_tables(published: ScoreBoard) -> None:
    text = published.text()
    for part in ("Skill", "Detection", "Knowing-doing rate", "Severity check", "Contrasts"):
        assert f"\n{part}\n" in f"\n{text}"
    for cell in ("0.62 (0.65)", "33/283", "16/266", "0.18 [", "94/515", "0.34 (515)", "0.06 (124)", "0.09 (162)"):
        assert cell in text
    assert "nan" not in text


def test_intervals_and_tests_are_over_seeds(published: ScoreBoard) -> None:
    estimate = published.rates["claude-sonnet-5"]["knowing_doing"]["all"]
    assert estimate.interval.low < estimate.rate.value < estimate.interval.high
    rows = {(r["metric"], r["first"], r["second"]): r for r in published.contrast_rows()}
    kdr = rows["knowing_doing", "claude-sonnet-5", "gpt-5.4"]
    assert kdr["difference"] == pytest.approx(94 / 515 - 55 / 502)
    assert kdr["low"] > 0 and 0 < kdr["p"] < 0.05 and kdr["p_holm"] >= kdr["p"] and kdr["seeds"] == 50
    skill = rows["skill", "claude-sonnet-5", "gpt-5.4"]
    assert skill["p"] == pytest.approx(0.26, abs=0.01)
    same = score_runs(published_runs(), resamples=2000)
    assert same.rate_rows() == published.rate_rows() and same.contrast_rows() == published.contrast_rows()


def test_an_agents_numbers_do_not_depend_on_its_company(published: ScoreBoard) -> None:
    alone = score_runs([r for r in published_runs() if r.agent == "gpt-5.4"], resamples=2000)
    assert alone.to_json()["gpt-5.4"] == published.to_json()["gpt-5.4"]
    assert alone.rates["gpt-5.4"] == published.rates["gpt-5.4"] and not alone.contrasts


def test_a_namesake_of_a_published_agent_is_not_given_its_quotes() -> None:
    board = score_runs([Run("gpt-5.4", 0, 6000.0)], resamples=10)
    assert "knowing_doing_quoted" not in board.to_json()["gpt-5.4"]


def test_two_agents_that_are_one_do_not_differ() -> None:
    runs = [r for r in published_runs() if r.agent == "gpt-5.4"]
    twin = [dataclasses.replace(r, agent="twin") for r in runs]
    board = score_runs([*runs, *twin], resamples=200)
    for metric in ("missed", "knowing_doing"):
        (contrast,) = board.contrasts[metric]
        assert contrast.estimate.mean == 0 and contrast.p_value == 1 and contrast.estimate.percentile.high == 0


# -- runs of one's own


def spot_run(seed: int, **levers: Any) -> Record:
    """20 units a week from spot; levers by week."""
    calls: list[tuple[str, dict[str, Any]]] = []
    for week in range(HORIZON):
        calls += levers.get(f"week_{week}", [])
        order = {"rationale": f"Week {week}: the port is congested.", "qty": 20, "route": "suez", "supplier": "spot"}
        calls.append(("place_order", order))
    return Record(seed, "paper", WORLD, tuple(calls))


def played(record: Record) -> Ledger:
    ledger = record.play()
    assert ledger is not None
    return ledger


def naming(names: set[str]) -> Any:
    return lambda texts: [frozenset(names)] * len(texts)


def test_a_ledger_is_what_the_episode_was_billed() -> None:
    record = spot_run(
        3, week_2=[("lock_freight", {"weeks": 3}), ("expedite_air", {"qty": 9})], week_5=[("buy_audit", {})]
    )
    ledger, episode = played(record), Episode(3)
    for tool, arguments in record.calls:
        episode.call(tool, dict(arguments))
    weeks = episode.result()["weeks"]
    assert ledger.cost == episode.cost
    for w in weeks:
        assert {
            i: ledger.bill[i][w["week"] + 1] for i in ITEMS if ledger.bill[i][w["week"] + 1] or i in w["breakdown"]
        } == w["breakdown"]
    assert ledger.decision["lock_weeks"].nonzero()[0].tolist() == [2] and ledger.decision["lock_weeks"][2] == 3
    assert ledger.decision["air"][2] == 9 and ledger.decision["audit"][5] == 1
    assert (ledger.unmet * 20 == ledger.bill["stockout"]).all()
    assert ledger.sourced.tolist() == [False] + [True] * HORIZON
    assert set(HARM) | set(PROTECTION) == set(ITEMS) and not set(HARM) & set(PROTECTION)


def test_stockouts_come_from_the_books_and_not_from_printed_stock() -> None:
    """Air units land without showing in inventory + arrivals: by those, a week that they saved looks like a stockout."""
    found = 0
    for seed in (1, 24, 157):
        calls: list[tuple[str, dict[str, Any]]] = []
        episode, printed = Episode(seed), [False]
        while not episode.done:
            before = episode.observe()["inventory"]
            # On an empty shelf, whatever is sold has come by air.
            if before < 20:
                calls.append(("expedite_air", {"qty": 20}))
                episode.expedite_air(20)
            calls.append(("place_order", {"rationale": f"Week {episode.week}.", "qty": 0}))
            seen = episode.place_order(f"Week {episode.week}.", 0)
            printed.append(before + seen["arrived"] < seen["pos_units"])
        books = played(Record(seed, "paper", WORLD, tuple(calls))).stockout
        assert (~books | np.array(printed)).all()
        found += int((np.array(printed) & ~books).sum())
    assert found > 20


def test_a_simulated_ledger_is_the_same_as_a_played_one() -> None:
    floor = BaseStock()
    tapes = Tape.published_batch([0, 24])
    batch = of_trajectories(simulate(floor, tapes, Runs(np.array([0, 24]), np.array([1, 1])), np.array([0, 1])))
    for seed, ledger in zip((0, 24), batch, strict=True):
        episode = Episode(seed)
        calls = []
        while not episode.done:
            qty = min(max(93 - episode.observe()["inventory_position"], 0), 100)
            order = {"rationale": "x", "qty": qty, "route": "suez", "supplier": "qualified"}
            if episode.week == 0:
                order |= {"contract_action": "sign", "contract_supplier": "qualified"}
            calls.append(("place_order", order))
            episode.call("place_order", order)
        mine = played(Record(seed, "paper", WORLD, tuple(calls)))
        for item in ITEMS:
            np.testing.assert_allclose(ledger.bill[item], mine.bill[item], atol=1e-6)
        np.testing.assert_array_equal(ledger.unmet, mine.unmet)
        for field in ("qty", "air", "lock_weeks", "inspect"):
            np.testing.assert_array_equal(ledger.decision[field], mine.decision[field])


def test_costs_split_by_diagnosis_add_up() -> None:
    tape = Tape.published(1, WORLD)
    truth, ledger = Truth.of(tape, WORLD), played(spot_run(1))
    labels = {w: frozenset({"port"}) if w % 2 else None if w == 6 else frozenset() for w in range(FIRST, LAST + 1)}
    run = Statements.make("x", 1, labels, ledger.stockout)
    statuses = week_statuses(run, truth)
    assert len(statuses) == WEEKS and statuses[0] == "calm" and statuses[-1] == "last" and statuses[6] == "ungraded"
    for week in range(FIRST, LAST + 1):
        if week != 6:
            stressed = truth.stressed[week].any()
            right = week % 2 and truth.stressed[week, FACTORS.index("port")]
            assert statuses[week] == ("diagnosed" if right else "undiagnosed" if stressed else "calm")
    counts = cost_counts(ledger, statuses)
    totals = [r for name, r in counts.items() if name.endswith(".total")]
    assert sum(r.numerator for r in totals) == pytest.approx(ledger.cost)
    assert sum(r.denominator for r in totals) == HORIZON
    diagnosed = [w for w, s in enumerate(statuses) if s == "diagnosed"]
    assert counts["cost.diagnosed.stockout"] == (
        pytest.approx(ledger.bill["stockout"][diagnosed].sum()),
        len(diagnosed),
    )


def test_losses_fall_where_the_last_stress_was_named_or_not() -> None:
    empty = {item: np.zeros(WEEKS) for item in ITEMS}
    zero = {"qty": np.zeros(HORIZON, int)}
    cheap = Ledger(empty, zero, np.zeros(WEEKS, int), ("",) * HORIZON)
    bill = empty | {"stockout": np.arange(WEEKS, dtype=float), "air": np.full(WEEKS, 100.0)}
    dear = Ledger(bill, zero, np.zeros(WEEKS, int), ("",) * HORIZON)
    stressed = np.zeros((WEEKS, len(FACTORS)), bool)
    stressed[5, 0] = stressed[15, 1] = True
    truth = Truth(stressed, np.zeros_like(stressed))
    labels = {w: frozenset({"canal"}) if w == 5 else frozenset[str]() for w in range(FIRST, LAST + 1)}
    run = Statements.make("x", 0, labels, np.zeros(WEEKS, bool))
    counts = loss_counts(dear, [cheap, dear], run, truth)  # the oracle's mean is half of it
    after = range(AFTERMATH + 1)
    assert counts["loss.control.under"] == (sum(5 + k for k in after) / 2, 1)
    assert counts["loss.perception.under"] == (sum(15 + k for k in after) / 2, 1)
    assert counts["loss.control.over"] == counts["loss.perception.over"] == (len(after) * 50, 1)
    assert sum(counts[f"loss.{place}.total"].numerator for place in LOSSES) == counts["loss.all.total"].numerator


def test_responses_are_counted_as_described() -> None:
    seed = 1
    tape = Tape.published(seed, WORLD)
    regimes = tape.regimes(WORLD)
    weeks = range(FIRST, LAST + 1)
    blocked = [w for w in weeks if regimes["port"][w] in ("congested", "customs_hold")]
    dear = [w for w in weeks if regimes["freight"][w] in ("tightening", "spike")]
    assert blocked and dear
    levers = {f"week_{w}": [("expedite_air", {"qty": 5})] for w in (blocked[0], 1)}
    levers[f"week_{dear[0]}"] = [*levers.get(f"week_{dear[0]}", []), ("lock_freight", {"weeks": 2})]
    ledger = played(spot_run(seed, **levers))
    counts = response_counts(ledger, tape, WORLD)
    assert set(counts) == set(RESPONSES)
    assert counts["air_called"] == (1 + (1 in blocked), len(blocked)) and counts["air_spend"] == (150, 1)
    assert counts["air_uncalled"].numerator == (1 not in blocked)
    held = [w for w in (dear[0], dear[0] + 1) if w in dear]
    assert counts["lock_called"] == (len(held), len(dear))
    assert counts["no_order_blocked"] == (0, len(blocked)) and counts["cape_uncalled"].numerator == 0
    assert counts["lock_in_spike_runs"] == ((1, 1) if any(regimes["freight"][w] == "spike" for w in weeks) else (0, 0))
    plain = played(spot_run(seed, **{k: [c for c in v if c[0] != "lock_freight"] for k, v in levers.items()}))
    assert counts["lock_cost"].value == pytest.approx(ledger.cost - plain.cost)
    assert counts["lock_cost"].value != 0


def test_the_oracle_beside_an_agent_is_on_the_same_weeks() -> None:
    ledger = played(spot_run(24))
    (run,) = labelled([Run("mine", 24, ledger.cost, ledger=ledger)], naming({"port"}), "always port")
    oracle = oracle_ledgers([24], 1)
    board = score_runs([run], oracle=oracle, resamples=20)
    for status in ("diagnosed", "undiagnosed", "calm", "last"):
        mine, theirs = (board.rate("mine", f"{who}cost.{status}.total") for who in ("", "oracle."))
        assert mine.denominator == theirs.denominator
    total = sum(
        board.rate("mine", f"oracle.cost.{s}.total").numerator for s in ("diagnosed", "undiagnosed", "calm", "last")
    )
    assert total == pytest.approx(oracle[24][0].cost)
    assert board.rate("mine", "loss.all.total").value == pytest.approx(ledger.cost - oracle[24][0].cost)
    assert board.notes["mine"]["grader"] == ("always port",)
    assert "Costs of mine" in board.text() and "Where the loss falls" in board.text()


def test_the_grader_sees_the_words_alone() -> None:
    shown: list[str] = []

    def spy(texts: Sequence[str]) -> list[frozenset[str] | None]:
        shown.extend(texts)
        return [None] * len(texts)

    ledger = played(spot_run(3))
    ledger = dataclasses.replace(
        ledger,
        rationales=tuple(
            f"{t}\n[stress probabilities: {json.dumps(dict.fromkeys(FACTORS, 0.25))}]" for t in ledger.rationales
        ),
    )
    (run,) = labelled([Run("mine", 3, ledger.cost, ledger=ledger)], spy, "spy")
    assert shown == [f"Week {w}: the port is congested." for w in range(FIRST, LAST + 1)]
    assert run.statements is not None and not run.statements.graded.any()
    board = score_runs([run], resamples=20)
    assert board.rate("mine", "ungraded") == (25, 25) and board.rate("mine", "missed").denominator == 0
    assert board.rate("mine", "probability_stated") == (150, 150)
    assert board.rate("mine", "brier_filter").denominator == 150
    assert board.rate("mine", "brier").value > board.rate("mine", "brier_filter").value


def test_the_filter_reads_what_the_run_was_shown() -> None:
    tape = Tape.published(1, WORLD)
    nothing, everything = (filter_stress(WORLD, tape, np.full(WEEKS, seen)) for seen in (False, True))
    others = [i for i, f in enumerate(FACTORS) if f != "supplier"]
    np.testing.assert_allclose(nothing[:, others], everything[:, others], atol=1e-6)
    spot = FACTORS.index("supplier")
    assert abs(nothing[:, spot] - everything[:, spot]).max() > 0.05
    assert (nothing[0] == 0).all() and ((nothing >= 0) & (nothing <= 1)).all()


def test_repeats_pool_and_seeds_are_resampled_as_wholes() -> None:
    ledger = played(spot_run(24))
    runs = [Run("mine", 24, ledger.cost, r, ledger) for r in (1, 2, 3)] + [Run("mine", 0, math.nan, 1)]
    runs = list(labelled(runs, naming({"port"}), "p"))
    board = score_runs(runs, resamples=20)
    single = belief_counts(runs[0].statements, Truth.of(Tape.published(24, WORLD), WORLD))  # type: ignore[arg-type]
    assert board.rate("mine", "missed") == Rate(3 * single["missed"].numerator, 3 * single["missed"].denominator)
    assert board.runs["mine"] == (3, 4) and board.rate("mine", "complete") == (3, 4)
    assert board.skill["mine"].incomplete == 1 and board.rate("mine", "skill").denominator == 1


def test_an_unfinished_run_is_never_cheap() -> None:
    board = score_runs([Run("mine", 24, math.nan), Run("mine", 0, 5000.0)], resamples=20)
    assert board.rate("mine", "beats_floor").denominator == 1
    assert board.rate("mine", "cost") == (5000.0, 1) and "1/2" in board.text()


def test_seeds_without_a_reference_count_for_beliefs() -> None:
    ledger = played(spot_run(1234))
    (run,) = labelled([Run("mine", 1234, ledger.cost, ledger=ledger)], naming(set()), "silent")
    board = score_runs([run], resamples=20)
    assert board.rate("mine", "skill").denominator == 0 and board.rate("mine", "missed").denominator > 0


# -- input


def test_runs_given_twice_and_no_runs_are_refused() -> None:
    with pytest.raises(InputError, match="twice"):
        score_runs([Run("a", 1, 5.0), Run("a", 1, 6.0)])
    with pytest.raises(InputError, match="no runs"):
        score_runs([])
    with pytest.raises(InputError, match="resamples"):
        score_runs([Run("a", 1, 5.0)], resamples=0)


def test_runs_of_other_rules_or_worlds_are_not_measured_against_the_published_references() -> None:
    lax = World.paper().replace({"costs.stockout": 5.0})
    for other in (Run("a", 24, 5000.0, rules="strict"), Run("a", 24, 5000.0, world=lax)):
        board = score_runs([other], resamples=20)
        assert board.rate("a", "skill").denominator == 0 and board.runs["a"] == (1, 1)
        with pytest.raises(InputError, match="different worlds or rules"):
            score_runs([other, Run("b", 24, 5000.0)])
        mine = References.published([24])
        assert score_runs([other], mine, resamples=20).rate("a", "skill").denominator == 1


def test_the_text_says_which_budget_of_names_was_allowed() -> None:
    runs = [r for r in published_runs() if r.agent == "gpt-5.4" and r.seed < 10]
    one, two = (score_runs(runs, budget=budget, resamples=20) for budget in (1.0, 2.0))
    assert "1 name(s) a week" in one.text() and "2 name(s) a week" in two.text()
    assert one.rate("gpt-5.4", "detected_in_budget").value < two.rate("gpt-5.4", "detected_in_budget").value


def test_a_graders_resolved_models_are_noted() -> None:
    class Judge:
        resolved: set[str] = set()  # noqa: RUF012

        def __call__(self, texts: Sequence[str]) -> list[frozenset[str]]:
            self.resolved |= {"judge-2026-11"}
            return [frozenset()] * len(texts)

    (run,) = labelled([Run("mine", 3, 1.0, ledger=played(spot_run(3)))], Judge(), "judge")
    assert run.notes == {"grader": "judge", "grader's resolved model": ("judge-2026-11",)}


def test_label_files_are_read_like_the_published_ones(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("mine|24|" + " ".join(["p!"] * 25 + ["-"]) + "\n")
    (run,) = read_label_file(path)
    assert run.agent == "mine" and math.isnan(run.cost)
    assert score_runs([run], resamples=20).rate("mine", "names_per_week") == (25, 25)
    with pytest.raises(InputError, match="cannot read"):
        read_label_file(tmp_path / "nothing.txt")


def test_journals_that_cannot_be_scored_are_named(tmp_path: Path) -> None:
    from_tape = tmp_path / "tape.jsonl"
    with Episode(tape=Tape.published(1), journal=from_tape) as episode:
        episode.place_order("x", 0)
    with pytest.raises(InputError, match="no seed"):
        read_journal(from_tape)
    with pytest.raises(InputError, match=r"nothing\.jsonl"):
        read_journal(tmp_path / "nothing.jsonl")
    other = tmp_path / "other.jsonl"
    other.write_text('{"a": 1}\n')
    with pytest.raises(InputError, match="not a journal"):
        read_journal(other)


def test_a_record_that_was_billed_otherwise_is_named() -> None:
    record = dataclasses.replace(spot_run(3), costs=(1.0,) * HORIZON, name="theirs.jsonl")
    with pytest.raises(InputError, match=r"theirs\.jsonl, week 0: the week is billed"):
        record.play()
    refused = Record(3, "paper", WORLD, (("place_order", {"rationale": "x", "qty": 5}),))
    with pytest.raises(InputError, match="refused now"):
        refused.play()
    assert Record(3, "paper", WORLD, ()).play() is None
