"""Belief metrics: the published table, each known fault of the published metrics, and counting by hand."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.beliefs import (
    BY_FACTOR,
    FIRST,
    LAST,
    METRICS,
    WEEKS,
    Rate,
    Statements,
    Truth,
    agreement,
    belief_counts,
    detections,
    pooled,
    split_rationale,
    stress_episodes,
    with_probabilities,
    with_ungraded,
)
from stocktake_jax.evaluation.published import published_beliefs, published_references
from stocktake_jax.models import FACTORS, Tape, World

CANAL, SUPPLIER, PORT, QUALITY = (FACTORS.index(n) for n in ("canal", "supplier", "port", "quality"))
SEEDS = tuple(r.seed for r in published_references())
EVERYTHING, NOTHING = frozenset(FACTORS), frozenset[str]()

# agent: missed of 266, lag over detected, stockouts over diagnosed weeks (all exact); then the paper's Table 3 and 4:
# missed of 283, mean lag, week counts of diagnosed and undiagnosed stress weeks
TABLE = {
    "claude-sonnet-5": ((16, 266), (104, 250), (94, 515), (33, 283), "0.42", 515, 162),
    "gpt-5.4": ((18, 266), (99, 248), (55, 502), (35, 283), "0.40", 502, 175),
    "deepseek-v4-pro": ((29, 266), (75, 237), (79, 469), (46, 283), "0.32", 469, 208),
    "grok-4.5": ((20, 266), (79, 246), (75, 544), (37, 283), "0.32", 544, 133),
}


@functools.cache
def truth_of(seed: int) -> Truth:
    return Truth.of(Tape.published(seed))


@functools.cache
def published_counts(agent: str, profile: str = "all") -> dict[str, Rate]:
    seeds = [r.seed for r in published_references() if profile in ("all", r.profile)]
    rows = [belief_counts(Statements.published(published_beliefs()[agent, s]), truth_of(s)) for s in seeds]
    return {metric: pooled(row[metric] for row in rows) for metric in rows[0]}


def a_truth(stressed: dict[str, list[int]], brewing: dict[str, list[int]] | None = None) -> Truth:
    def table(weeks: dict[str, list[int]]) -> np.ndarray:
        out = np.zeros((WEEKS, len(FACTORS)), bool)
        for factor, which in weeks.items():
            out[which, FACTORS.index(factor)] = True
        return out

    return Truth(table(stressed), table(brewing or {}))


def a_run(named: dict[int, set[str] | None], stockout: tuple[int, ...] = (), every: bool = True) -> Statements:
    labels: dict[int, frozenset[str] | None] = dict.fromkeys(range(FIRST, LAST + 1), NOTHING) if every else {}
    labels |= {week: None if n is None else frozenset(n) for week, n in named.items()}
    return Statements.make("someone", 0, labels, np.isin(np.arange(WEEKS), stockout))


# -- the published numbers


@pytest.mark.parametrize("agent", TABLE)
def test_published_labels_give_the_table(agent: str) -> None:
    counts = published_counts(agent)
    missed, lag, knowing_doing, *_ = TABLE[agent]
    assert counts["missed"] == missed
    assert counts["mean_lag"] == lag
    assert counts["knowing_doing"] == knowing_doing


@pytest.mark.parametrize("agent", TABLE)
def test_published_labels_give_the_papers_table_3_and_the_weeks_of_table_4(agent: str) -> None:
    counts = published_counts(agent)
    *_, missed, lag, diagnosed, undiagnosed = TABLE[agent]
    assert counts["missed_paper"] == missed
    assert f"{counts['mean_lag'].value:.2f}" == lag
    assert counts["knowing_doing"].denominator == diagnosed
    assert counts["stockout_undiagnosed_paper"].denominator == undiagnosed


def test_week_26_explains_the_difference_between_the_two_countings() -> None:
    for agent in TABLE:
        counts = published_counts(agent)
        assert counts["left_out"] == (17, 283)
        assert counts["diagnosed"].denominator == 639
        assert counts["knowing_doing"].denominator + counts["stockout_undiagnosed"].denominator == 639
        assert counts["stockout_undiagnosed_paper"].denominator - counts["stockout_undiagnosed"].denominator == 38
        assert counts["missed_paper"].numerator - counts["missed"].numerator == 17


def test_mended_knowing_doing_rates_are_below_the_printed_ones() -> None:
    whole = [f"{published_counts(agent)['knowing_doing'].value:.2f}" for agent in TABLE]
    assert whole == ["0.18", "0.11", "0.17", "0.14"]
    persistent = [published_counts(agent, "persistent")["knowing_doing"].value for agent in TABLE]
    assert (f"{min(persistent):.2f}", f"{max(persistent):.2f}") == ("0.18", "0.26")


def test_every_metric_has_a_meaning_and_every_meaning_a_metric() -> None:
    counts = published_counts("gpt-5.4")
    assert {name for name in counts if "." not in name} == set(METRICS)
    assert {name for name in counts if "." in name} == {f"{m}.{f}" for m in BY_FACTOR for f in FACTORS}


# -- the known faults


def test_weeks_without_a_rationale_cannot_be_scored() -> None:
    truth = a_truth({"port": [26], "canal": [5]})
    run = a_run({0: {"port"}, 26: {"port"}})
    counts = belief_counts(run, truth)
    assert not run.graded[[0, 26]].any() and not run.named.any()
    assert counts["missed"] == (1, 1)
    assert counts["missed_paper"] == (2, 2)
    assert counts["left_out"] == (1, 2)


def test_naming_everything_detects_everything_and_pays_for_it() -> None:
    alarmist = [
        belief_counts(a_run({w: set(EVERYTHING) for w in range(FIRST, LAST + 1)}), truth_of(seed)) for seed in SEEDS
    ]
    everything = {metric: pooled(row[metric] for row in alarmist) for metric in alarmist[0]}
    assert everything["missed"].value == everything["mean_lag"].value == 0
    assert everything["knowing_doing_full"].denominator == everything["knowing_doing"].denominator == 639
    best = published_counts("claude-sonnet-5")
    assert everything["precision"].value < best["precision"].value / 2
    assert everything["names_per_week"].value == 6
    assert everything["detected_in_budget"].value < best["detected_in_budget"].value


def test_the_budget_thins_the_names_of_a_week() -> None:
    truth = a_truth({"port": [5, 6]})
    run = a_run({5: {"port", "canal"}, 6: {"port", "canal", "freight", "demand"}})
    (found,) = detections(run, truth)
    assert found.in_budget == pytest.approx(1 - (1 - 1 / 2) * (1 - 1 / 4))
    (found,) = detections(run, truth, budget=2)
    assert found.in_budget == 1.0
    with pytest.raises(InputError, match="above 0"):
        detections(run, truth, budget=0)


def test_brewing_trouble_is_a_right_name_leniently() -> None:
    truth = a_truth({"port": [6]}, {"port": [5], "quality": [5]})
    counts = belief_counts(a_run({5: {"port", "quality", "canal"}, 6: {"port"}}), truth)
    assert counts["precision"] == (1, 4)
    assert counts["precision_lenient"] == (3, 4)
    assert counts["names_calm"] == (1, 4)
    assert counts["brewing_named"] == (2, 2)


def test_any_overlap_and_full_coverage_are_told_apart() -> None:
    truth = a_truth({"port": [5, 6], "canal": [5, 6]})
    counts = belief_counts(a_run({5: {"port"}, 6: {"port", "canal", "freight"}}, stockout=(5,)), truth)
    assert counts["knowing_doing"] == (1, 2)
    assert counts["knowing_doing_full"] == (0, 1)


def test_a_failed_grader_never_reads_as_silence() -> None:
    truth = a_truth({"port": [5, 6], "canal": [10]})
    silent = belief_counts(a_run({}), truth)
    assert silent["missed"] == (2, 2)
    assert silent["stockout_undiagnosed"].denominator == 3
    failed = belief_counts(a_run({5: None, 6: None}), truth)
    assert failed["missed"] == (1, 1)
    assert failed["missed_bounded"] == (1, 1)
    assert failed["undecided"] == (1, 2)
    assert failed["stockout_undiagnosed"].denominator == 1
    assert failed["ungraded"] == (2, 25)
    assert failed["names_per_week"].denominator == 23


def test_weeks_that_are_not_mentioned_are_ungraded() -> None:
    counts = belief_counts(a_run({7: {"port"}}, every=False), a_truth({"port": [7]}))
    assert counts["ungraded"] == (24, 25)
    assert counts["knowing_doing"].denominator == 1


def test_a_lag_behind_an_ungraded_week_is_not_known() -> None:
    truth = a_truth({"port": [5, 6, 7]})
    counts = belief_counts(a_run({5: None, 6: {"port"}}), truth)
    assert counts["missed"] == (0, 1)
    assert counts["mean_lag"] == (0, 0)
    assert counts["missed_bounded"] == (0, 1)


def test_the_window_of_detection_is_bounded_beside_the_headline() -> None:
    truth = a_truth({"port": [5, 6]})
    late, just = a_run({20: {"port"}}), a_run({7: {"port"}})
    assert belief_counts(late, truth)["missed"] == (0, 1)
    assert belief_counts(late, truth)["mean_lag"] == (15, 1)
    assert belief_counts(late, truth)["missed_bounded"] == (1, 1)
    assert belief_counts(late, truth)["mean_lag_bounded"] == (0, 0)
    assert belief_counts(just, truth)["missed_bounded"] == (0, 1)
    assert belief_counts(a_run({8: {"port"}}), truth)["missed_bounded"] == (1, 1)
    assert belief_counts(just, truth)["mean_lag_bounded"] == (2, 1)


def test_an_early_name_is_no_detection() -> None:
    assert belief_counts(a_run({4: {"port"}}), a_truth({"port": [5]}))["missed"] == (1, 1)


def test_stockouts_split_by_diagnosis() -> None:
    truth = a_truth({"port": [5, 6, 26]})
    counts = belief_counts(a_run({5: {"port", "canal"}}, stockout=(5, 6, 8, 26)), truth)
    assert counts["knowing_doing"] == (1, 1)
    assert counts["stockout_undiagnosed"] == (1, 1)
    assert counts["stockout_undiagnosed_paper"] == (2, 2)
    assert counts["stockout_calm"] == (1, 23)


# -- stated probabilities


def stating(run: Statements, probability: np.ndarray) -> Statements:
    return dataclasses.replace(run, probability=probability)


def test_probabilities_are_scored_against_the_truth() -> None:
    truth = a_truth({"port": [5]})
    stated = np.full((WEEKS, len(FACTORS)), math.nan)
    stated[5, PORT], stated[6, PORT], stated[7, CANAL] = 0.8, 0.3, 0.0
    counts = belief_counts(stating(a_run({}), stated), truth)
    assert counts["probability_stated"] == (3, 150)
    assert counts["brier"].value == pytest.approx((0.2**2 + 0.3**2) / 3)
    assert counts["log_score"].value == pytest.approx(-(math.log(0.8) + math.log(0.7) + math.log(0.999)) / 3)
    assert counts["brier_filter"] == (0, 0)


def test_a_certain_error_is_counted_and_not_infinite() -> None:
    stated = np.full((WEEKS, len(FACTORS)), math.nan)
    stated[5, PORT], stated[6, PORT] = 0.0, 1.0
    counts = belief_counts(stating(a_run({}), stated), a_truth({"port": [5]}))
    assert counts["certain_and_wrong"] == (2, 2)
    assert counts["log_score"].value == pytest.approx(-math.log(0.001))


def test_whoever_states_the_filters_belief_is_at_no_distance_from_it() -> None:
    posterior = np.random.default_rng(0).uniform(0.01, 0.99, (WEEKS, len(FACTORS)))
    truth = a_truth({"port": list(range(3, 9))})
    same = belief_counts(stating(a_run({}), posterior), truth, posterior=posterior)
    assert same["brier_to_filter"].numerator == 0
    assert same["log_to_filter"].value == pytest.approx(0, abs=1e-12)
    assert same["brier"] == same["brier_filter"]
    assert same["log_score"] == same["log_score_filter"]
    other = belief_counts(stating(a_run({}), 1 - posterior), truth, posterior=posterior)
    assert other["log_to_filter"].value > 0.1 and other["brier_to_filter"].value > 0.1


def test_a_probability_outside_the_unit_interval_is_refused() -> None:
    with pytest.raises(InputError, match="outside"):
        belief_counts(stating(a_run({}), np.full((WEEKS, len(FACTORS)), 1.5)), a_truth({}))


def test_probabilities_travel_with_a_rationale() -> None:
    stated = dict(zip(FACTORS, (0.0, 0.07, 0.25, 0.5, 0.99, 1.0), strict=True))
    assert split_rationale(with_probabilities("Port is jammed.\nI wait.", stated)) == (
        "Port is jammed.\nI wait.",
        stated,
    )
    for text in ("plain", "odd\n[stress probabilities: {}]", 'odd\n[stress probabilities: {"canal": 2}]', ""):
        assert split_rationale(text) == (text, None)


# -- counting, against a second way of counting

labels = st.lists(st.one_of(st.none(), st.frozensets(st.sampled_from(FACTORS))), min_size=25, max_size=25)
weeks = st.lists(st.booleans(), min_size=WEEKS, max_size=WEEKS)


@given(labels, weeks, st.sampled_from(SEEDS[:8]))
def test_counts_agree_with_counting_week_by_week(
    given_labels: list[frozenset[str] | None], out: list[bool], seed: int
) -> None:
    truth = truth_of(seed)
    by_week = dict(zip(range(FIRST, LAST + 1), given_labels, strict=True))
    counts = belief_counts(Statements.make("x", seed, by_week, np.array(out)), truth)
    stressed = {w: {f for i, f in enumerate(FACTORS) if truth.stressed[w, i]} for w in range(WEEKS)}
    brewing = {w: {f for i, f in enumerate(FACTORS) if truth.brewing[w, i]} for w in range(WEEKS)}
    diagnosed = [w for w, n in by_week.items() if n is not None and n & stressed[w]]
    assert counts["knowing_doing"] == (sum(out[w] for w in diagnosed), len(diagnosed))
    undiagnosed = [w for w, n in by_week.items() if n is not None and stressed[w] and not n & stressed[w]]
    assert counts["stockout_undiagnosed"] == (sum(out[w] for w in undiagnosed), len(undiagnosed))
    full = [w for w, n in by_week.items() if n is not None and stressed[w] and n >= stressed[w]]
    assert counts["knowing_doing_full"] == (sum(out[w] for w in full), len(full))
    names = [(w, f) for w, n in by_week.items() if n is not None for f in n]
    assert counts["precision"] == (sum(f in stressed[w] for w, f in names), len(names))
    assert counts["precision_lenient"] == (sum(f in stressed[w] | brewing[w] for w, f in names), len(names))
    missed = lag = known = total = 0
    for factor in FACTORS:
        for onset in range(1, LAST + 1):
            if factor not in stressed[onset] or factor in stressed[onset - 1]:
                continue
            gap = False
            for week in range(onset, LAST + 1):
                label = by_week[week]
                gap |= label is None
                if label is not None and factor in label:
                    total += 1
                    if not gap:
                        known, lag = known + 1, lag + week - onset
                    break
            else:
                if not gap:
                    total, missed = total + 1, missed + 1
    assert counts["missed"] == (missed, total)
    assert counts["mean_lag"] == (lag, known)


def test_episodes_are_runs_whatever_the_regimes_inside() -> None:
    truth = a_truth({"port": [1, 2, 3, 7, 26], "canal": [26]})
    assert stress_episodes(truth) == ((CANAL, 26, 26), (PORT, 1, 3), (PORT, 7, 7), (PORT, 26, 26))


def test_the_truth_of_a_tape_knows_the_regimes() -> None:
    world = World.paper()
    tape = Tape.published(1, world)
    truth = Truth.of(tape, world)
    regimes = tape.regimes(world)
    stress = {"disruption", "degraded", "defunct", "promo_spike", "seasonal_lift", "structural_decline", "spike"}
    stress |= {"congested", "customs_hold", "out_of_control"}
    brewing = {"watch", "false_alarm", "wobbling", "tightening", "building", "drifting"}
    for i, factor in enumerate(FACTORS):
        assert truth.stressed[:, i].tolist() == [r in stress for r in regimes[factor]]
        assert truth.brewing[:, i].tolist() == [r in brewing for r in regimes[factor]]


# -- two graders


def test_agreement_of_two_graders() -> None:
    truth = a_truth({"port": [5, 6], "quality": [6]})
    first = a_run({5: {"port"}, 6: {"port"}, 8: {"canal"}})
    second = a_run({5: {"port", "freight"}, 6: {"port", "quality"}, 7: None})
    found = agreement(first, second, truth)
    assert found.exact == (21, 24)  # 25 weeks, one ungraded; 5, 6 and 8 differ
    assert found.relevant == (1, 2)  # in 5 the surplus name is not under stress
    assert found.per_factor == (24 * 6 - 3, 24 * 6)
    with pytest.raises(InputError, match="same run"):
        agreement(first, dataclasses.replace(second, seed=1), truth)


def test_withdrawn_labels_are_ungraded() -> None:
    run = with_ungraded(a_run({5: {"port"}}), [5])
    assert not run.graded[5] and not run.named[5].any()


def test_unknown_factors_are_refused() -> None:
    with pytest.raises(InputError, match="weather"):
        a_run({5: {"weather"}})
