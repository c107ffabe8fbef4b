"""Skill tables: the published one to the digit, and every rule on small made-up data."""

import csv
import json
import math
import re
from collections import Counter

import jaxtyping
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.published import published_agents, published_references
from stocktake_jax.evaluation.skill import GROUPS, References, costs_from_array, read_costs, score, skill
from stocktake_jax.evaluation.statistics import mean_estimate, oracle_noise

FEW = 200
# An end of a 95% interval from 10,000 resamples, as the quoted ones are, has a standard deviation of up to .005 here.
BOOTSTRAP_NOISE = 0.012


@pytest.fixture(scope="module")
def table():
    return score(published_agents(), References.published())


@pytest.fixture
def unchecked():
    """Arrays as a user may pass them: without the shape checks of the test session."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def references():
    """Four seeds: two isolated, one persistent, one compound that is not scoreable."""
    return References(
        (3, 5, 8, 13),
        ("isolated", "isolated", "persistent", "compound"),
        np.array([100.0, 200.0, 300.0, 90.0]),
        np.array([50.0, 100.0, 100.0, 90.0]),
        np.array([1.0, 2.0, math.nan, 4.0]),
    )


# --- the published table ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "row", "below", "beats", "above"),
    [
        ("claude-sonnet-5", ".54 (.71) / .70 (.61) / .33 (.35) / .49 (.45)", 9, 40, 10),
        ("gpt-5.4", ".21 (.07) / .55 (.61) / .86 (.73) / .62 (.65)", 8, 42, 16),
        ("deepseek-v4-pro", "-.62 (-.57) / -.68 (-.26) / .24 (.32) / -.23 (.15)", 22, 28, 3),
        ("grok-4.5", "-.14 (-.32) / -.24 (-.12) / -.06 (.05) / -.13 (-.08)", 28, 21, 4),
    ],
)
def test_table_2_of_the_paper(table, agent, row, below, beats, above):
    entry = table[agent]

    def two(x):
        return f"{x:.2f}".replace("0.", ".")

    assert " / ".join(f"{two(entry.groups[g].mean)} ({two(entry.groups[g].median)})" for g in GROUPS) == row
    assert (entry.below_floor, entry.beats_floor, entry.above_oracle) == (below, beats, above)
    assert [entry.groups[g].n for g in GROUPS] == [11, 15, 23, 49]
    assert (entry.missing, entry.incomplete, entry.unreferenced) == (0, 0, 0)


def test_what_the_paper_says_beside_table_2(table):
    assert table.excluded == (11,)
    assert sum(entry.above_oracle for entry in table.agents) == 33
    assert sum(entry.groups["all"].n for entry in table.agents) == 196
    sonnet = table["claude-sonnet-5"].skill < 0
    below = Counter(profile for profile, is_below in zip(table.references.profiles, sonnet, strict=True) if is_below)
    assert below == {"compound": 7, "isolated": 2}
    seed_25 = table.references.seeds.index(25)
    assert round(table["deepseek-v4-pro"].skill[seed_25], 2) == -1.45


@pytest.mark.parametrize(
    ("agent", "mean", "low", "high"),
    [
        ("gpt-5.4", 0.618, 0.403, 0.831),
        ("claude-sonnet-5", 0.492, 0.323, 0.652),
        ("grok-4.5", -0.133, -0.385, 0.120),
        ("deepseek-v4-pro", -0.234, -0.574, 0.078),
    ],
)
def test_intervals_of_the_published_agents(table, agent, mean, low, high):
    estimate = table[agent].groups["all"]
    assert round(estimate.mean, 3) == mean
    for interval, noise in ((estimate.percentile, BOOTSTRAP_NOISE), (estimate.bca, 3 * BOOTSTRAP_NOISE)):
        assert interval.low == pytest.approx(low, abs=noise)
        assert interval.high == pytest.approx(high, abs=noise)


def test_contrasts_of_the_published_agents(table):
    by_pair = {(c.first, c.second): c for c in table.contrasts}
    assert len(by_pair) == 6 and all(c.family_size == 6 and c.estimate.n == 49 for c in table.contrasts)
    close = by_pair["claude-sonnet-5", "gpt-5.4"]  # the quoted contrast is gpt minus claude
    assert round(-close.estimate.mean, 3) == 0.126
    assert -close.estimate.percentile.high == pytest.approx(-0.108, abs=BOOTSTRAP_NOISE)
    assert -close.estimate.percentile.low == pytest.approx(0.360, abs=BOOTSTRAP_NOISE)
    assert round(close.p_value, 2) == 0.26
    wide = by_pair["gpt-5.4", "grok-4.5"]
    assert round(wide.estimate.mean, 3) == 0.751
    assert wide.estimate.percentile.low == pytest.approx(0.471, abs=BOOTSTRAP_NOISE)
    assert wide.estimate.percentile.high == pytest.approx(1.046, abs=BOOTSTRAP_NOISE)
    # Holm: the smallest of six times six, the second largest times two
    assert wide.p_holm == pytest.approx(6 * wide.p_value)
    assert close.p_holm == pytest.approx(2 * close.p_value)
    assert table.resolution == pytest.approx(0.312, abs=BOOTSTRAP_NOISE)


def test_the_oracles_error_is_small_beside_the_seeds(table):
    references = table.references
    for entry in table.agents:
        noise = entry.oracle_noise
        gain = references.floor - entry.cost
        again = oracle_noise(gain, references.floor - references.oracle, references.oracle_se, seed=26)
        assert noise == again
        assert 0.005 < noise.delta_se < 0.009
        assert noise.resampled_se == pytest.approx(noise.delta_se, rel=0.08)
        assert noise.interval.low < entry.groups["all"].mean < noise.interval.high


# --- the rules --------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(1, 20000).map(float), st.just(math.nan)), st.integers(1, 9999), st.integers(1, 9999)
        ),
        min_size=1,
        max_size=20,
    )
)
def test_skill_of_random_costs(rows):
    cost, floor, oracle = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    expected = [(f - c) / (f - o) if f > o else math.nan for c, f, o in rows]
    np.testing.assert_allclose(skill(cost, floor, oracle), expected, rtol=1e-12)
    profiles = tuple(("isolated", "persistent", "compound")[i % 3] for i in range(len(rows)))
    references = References(tuple(range(len(rows))), profiles, floor, oracle, np.zeros(len(rows)))
    entry = score({"a": dict(enumerate(cost))}, references, resamples=FEW)["a"]
    scored = [(s, p) for s, p in zip(expected, profiles, strict=True) if not math.isnan(s)]
    assert entry.below_floor == sum(s < 0 for s, _ in scored)
    assert entry.beats_floor == sum(c < f for c, f, _ in rows)
    assert entry.incomplete == sum(math.isnan(c) for c, _, _ in rows)
    for group, estimate in entry.groups.items():
        members = [s for s, p in scored if group in ("all", p)]
        assert estimate.n == len(members)
        if members:
            assert estimate.mean == pytest.approx(np.mean(members))
            assert estimate.median == pytest.approx(np.median(members))


def test_anchors():
    assert skill(100.0, 100.0, 60.0) == 0
    assert skill(60.0, 100.0, 60.0) == 1
    assert math.isnan(skill(50.0, 60.0, 60.0))
    assert math.isnan(skill(50.0, 60.0, 70.0))


def test_equal_to_a_reference_is_neither_below_nor_above_it(references):
    entry = score({"a": {3: 100.0, 5: 100.0}}, references, resamples=FEW)["a"]
    assert entry.skill[:2].tolist() == [0.0, 1.0]
    assert (entry.below_floor, entry.above_oracle, entry.beats_floor) == (0, 0, 1)


def test_a_seed_that_cannot_be_scored_still_counts_against_the_floor(references):
    entry = score({"a": {3: 75.0, 5: 250.0, 8: 100.0, 13: 80.0}}, references, resamples=FEW)["a"]
    np.testing.assert_allclose(entry.skill, [0.5, -0.5, 1.0, math.nan])
    assert (entry.below_floor, entry.above_oracle, entry.beats_floor) == (1, 0, 3)
    assert [entry.groups[g].n for g in GROUPS] == [2, 1, 0, 3]
    assert entry.groups["all"].mean == pytest.approx(1 / 3)
    assert entry.groups["all"].percentile == mean_estimate([0.5, -0.5, 1.0], seed=26, resamples=FEW).percentile


def test_missing_and_unfinished_runs_are_counted_and_never_cheap(references):
    entry = score({"a": {3: math.nan, 5: 150.0, 99: 1.0}}, references, resamples=FEW)["a"]
    np.testing.assert_allclose(entry.skill, [math.nan, 0.5, math.nan, math.nan])
    assert (entry.missing, entry.incomplete, entry.unreferenced) == (2, 1, 1)
    assert (entry.below_floor, entry.beats_floor, entry.groups["all"].n) == (0, 1, 1)


def test_repeats_are_averaged_first(references):
    repeated = {"a": {3: (70.0, 80.0), 5: (250.0,), 8: (100.0, 100.0, 100.0), 13: 80.0}}
    single = {"a": {3: 75.0, 5: 250.0, 8: 100.0, 13: 80.0}}
    entry, plain = (score(costs, references, resamples=FEW)["a"] for costs in (repeated, single))
    assert dict(entry.groups) == dict(plain.groups)
    assert entry.repeats.tolist() == [2, 1, 3, 1]
    np.testing.assert_allclose(entry.skill_sd, [math.sqrt(50.0) / 50.0, math.nan, 0.0, math.nan])
    assert entry.pooled_sd == pytest.approx(math.sqrt((1 * 0.02 + 2 * 0.0) / 3))
    assert math.isnan(plain.pooled_sd)


def test_one_unfinished_repeat_spoils_its_cell(references):
    entry = score({"a": {3: (70.0, math.nan), 5: (math.nan, math.nan)}}, references, resamples=FEW)["a"]
    assert np.isnan(entry.skill).all()
    assert (entry.incomplete, entry.missing, entry.beats_floor) == (2, 2, 0)


def test_a_row_does_not_depend_on_the_rest_of_the_table(table):
    published = published_agents()
    pair = score({agent: published[agent] for agent in ("grok-4.5", "gpt-5.4")}, table.references)
    assert [entry.agent for entry in pair.agents] == ["grok-4.5", "gpt-5.4"]
    assert pair["gpt-5.4"].to_json() == table["gpt-5.4"].to_json()
    with pytest.raises(KeyError):
        pair["claude-sonnet-5"]


def test_contrasts_use_the_seeds_that_both_scored(references):
    costs = {"a": {3: 75.0, 5: 150.0, 13: 9.0}, "b": {3: 50.0, 5: math.nan, 8: 100.0, 13: 5.0}}
    found = score(costs, references, resamples=FEW)
    (contrast,) = found.contrasts
    assert (contrast.first, contrast.second, contrast.estimate.n) == ("a", "b", 1)
    assert contrast.estimate.mean == pytest.approx(-0.5)
    assert math.isnan(found.resolution)


@pytest.mark.parametrize(("cost", "message"), [(math.inf, "infinite"), (0.0, "not above 0"), (-5400.0, "reward")])
def test_costs_that_would_win_by_mistake(references, cost, message):
    with pytest.raises(InputError, match=rf"agent 'a' on seed 5.*{message}"):
        score({"a": {3: 70.0, 5: (70.0, cost)}}, references)
    with pytest.raises(InputError, match="agent 'a' on seed 99"):
        score({"a": {99: cost}}, references)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"floor": np.ones(3)}, "floor has shape"),
        ({"profiles": ("isolated",)}, "1 profiles for 4 seeds"),
        ({"seeds": (3, 5, 5, 13)}, "seed 5 stands more than once"),
        ({"profiles": ("isolated", "calm", "compound", "compound")}, "seed 5 has profile 'calm'"),
        ({"oracle": np.array([1.0, 2.0, math.nan, 4.0])}, "oracle of seed 8 is not finite"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_references_that_do_not_fit(references, change, message):
    fields = {name: getattr(references, name) for name in ("seeds", "profiles", "floor", "oracle", "oracle_se")}
    with pytest.raises(InputError, match=message):
        References(**{**fields, **change})


def test_some_of_the_published_references():
    some = References.published([9, 12345, 0])
    rows = {row.seed: row for row in published_references()}
    assert some.seeds == (9, 0)
    assert some.oracle.tolist() == [rows[9].oracle_mean, rows[0].oracle_mean]
    assert some.oracle_se.tolist() == [rows[9].oracle_se, rows[0].oracle_se]
    assert some.profiles == (rows[9].profile, rows[0].profile)


@pytest.mark.usefixtures("unchecked")
def test_costs_from_an_array():
    cost = np.array([[[1.0, 2.0], [3.0, math.nan]]])
    made = costs_from_array(["a"], [4, 6], cost)
    assert made["a"][4] == (1.0, 2.0) and made["a"][6][0] == 3.0 and math.isnan(made["a"][6][1])
    assert costs_from_array(["a"], [4, 6], cost[:, :, 0]) == {"a": {4: (1.0,), 6: (3.0,)}}
    for agents, seeds, array in ((["a"], [4], cost), (["a"], [4, 4], cost), (["a"], [4, 6], cost[0, 0])):
        with pytest.raises(InputError):
            costs_from_array(agents, seeds, array)


# --- what is written --------------------------------------------------------------------------------------------------


def test_json_has_the_promised_shape_and_no_nan(references):
    found = score({"a": {3: 75.0, 5: 250.0}, "b": {}}, references, resamples=FEW)
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [set(row) for row in document] == [{"agent", "skill", "below_floor", "beats_floor"}] * 2
    assert list(document[0]["skill"]) == ["isolated", "persistent", "compound", "all"]
    assert document[0]["skill"]["all"] == {"n": 2, "mean": 0.0, "median": 0.0, "low": -0.5, "high": 0.5}
    assert document[1]["skill"]["all"] == {"n": 0, "mean": None, "median": None, "low": None, "high": None}


def test_rows_hold_every_agent_seed_and_pair(references):
    found = score({"a": {3: 75.0, 5: 250.0, 77: 9.0}, "b": {3: (60.0, 64.0), 5: math.nan}}, references, resamples=FEW)
    for rows in (found.summary_rows(), found.seed_rows(), found.contrast_rows()):
        assert len({tuple(row) for row in rows}) == 1  # one set of columns
        json.dumps(rows, allow_nan=False)
    summary = {(row["agent"], row["group"]): row for row in found.summary_rows()}
    assert list(summary) == [(agent, group) for agent in "ab" for group in GROUPS]
    assert summary["a", "all"]["missing"] == 2 and summary["a", "all"]["unreferenced"] == 1
    assert summary["b", "all"]["incomplete"] == 1 and summary["b", "isolated"]["incomplete"] is None
    seeds = {(row["agent"], row["seed"]): row for row in found.seed_rows()}
    assert seeds["b", 3] == {
        "agent": "b",
        "seed": 3,
        "profile": "isolated",
        "repeats": 2,
        "cost": 62.0,
        "floor": 100.0,
        "oracle": 50.0,
        "skill": pytest.approx(0.76),
        "skill_sd": pytest.approx(math.sqrt(8.0) / 50.0),
    }
    assert seeds["b", 5]["skill"] is None and seeds["a", 13]["repeats"] == 0
    (pair,) = found.contrast_rows()
    assert (pair["first"], pair["second"], pair["n"], pair["low"]) == ("a", "b", 1, None)


# --- users' files -----------------------------------------------------------------------------------------------------


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def test_the_published_costs_survive_a_file(tmp_path, table):
    lines = ["agent,seed,cost", *(f"{a},{s},{c}" for a, costs in published_agents().items() for s, c in costs.items())]
    found = score(read_costs(write(tmp_path / "costs.csv", "\n".join(lines))), References.published())
    assert found.to_json() == table.to_json()


def test_repeats_nan_marks_blank_lines_and_column_order(tmp_path):
    text = (
        "\ufeffcost, repeat ,seed,agent\r\n\r\n5386.5,1,0,a b\r\n 5400 ,2,0,a b\r\nNaN,1,7,a b\r\n6e3,0,0,c\r\n,,,\r\n"
    )
    found = read_costs(write(tmp_path / "costs.csv", text))
    assert list(found) == ["a b", "c"]
    assert found["a b"][0] == (5386.5, 5400.0) and math.isnan(found["a b"][7][0]) and found["c"] == {0: (6000.0,)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no costs in it"),
        ("agent,seed,cost\n", "no costs in it"),
        ("a,1,5\n", "line 1: unknown column 'a'"),
        ("agent,seed\na,1\n", "line 1: column 'cost' is missing"),
        ("agent,seed,cost,cost\na,1,5,5\n", "line 1: column 'cost' stands twice"),
        ("agent,seed,cost,note\na,1,5,x\n", "line 1: unknown column 'note'"),
        ("agent,seed,cost\na,1\n", "line 2: 2 values for 3 columns"),
        ("agent,seed,cost\na,1,5,386\n", "line 2: 4 values for 3 columns"),
        ('agent,seed,cost\na,1,"5,386"\n', "line 2, column cost: '5,386' is no number"),
        ("agent,seed,cost\na,1,\n", "line 2, column cost: '' is no number"),
        ("agent,seed,cost\na,1,1_000\n", "line 2, column cost: '1_000' is no number"),
        ("agent,seed,cost\na,1,inf\n", "line 2, column cost: 'inf' is no number"),
        ("agent,seed,cost\na,1,1e999\n", "line 2, column cost: '1e999': it is infinite"),
        ("agent,seed,cost\na,1,-5386\n", "line 2, column cost: '-5386': -5386 is not above 0"),
        ("agent,seed,cost\na,1,0\n", "line 2, column cost: '0': 0 is not above 0"),
        ("agent,seed,cost\na,1,5\n,2,5\n", "line 3, column agent: it is empty"),
        ("agent,seed,cost\na,1.0,5\n", "line 2, column seed: '1.0' is no whole number"),
        ("agent,seed,cost\na,-1,5\n", "line 2, column seed: '-1' is no whole number"),
        ("agent,seed,cost\na,\u0661,5\n", "line 2, column seed: '\u0661' is no whole number"),
        ("agent,seed,cost,repeat\na,1,5,x\n", "line 2, column repeat: 'x' is no whole number"),
        (
            "agent,seed,cost\na,1,5\na,1,6\n",
            "line 3: agent 'a', seed 1 stands on line 2 already; drop one, or add a col",
        ),
        ("agent,seed,cost,repeat\na,1,5,2\na,1,6,2\n", "line 3: agent 'a', seed 1, repeat 2 stands on line 2 already"),
        ('agent,seed,cost\n"a,1,5\n', "not valid CSV"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, text, message):
    path = write(tmp_path / "costs.csv", text)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        read_costs(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_files_that_are_none(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.csv: cannot be read"):
        read_costs(tmp_path / "nowhere.csv")
    with pytest.raises(InputError, match="cannot be read"):
        read_costs(tmp_path)
    with pytest.raises(InputError, match="byte 0 is not UTF-8"):
        read_costs(write(tmp_path / "costs.csv", "agent", encoding="utf-16"))


names = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.tuples(names, st.integers(0, 10**18 - 1), st.integers(0, 9)), st.floats(1e-3, 1e9), min_size=1)
)
def test_a_written_file_is_read_back(tmp_path, runs):
    path = tmp_path / "costs.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("agent", "seed", "repeat", "cost"), *((*key, cost) for key, cost in runs.items())])
    expected: dict = {}
    for (agent, seed, _), cost in runs.items():
        expected.setdefault(agent, {}).setdefault(seed, []).append(cost)
    found = read_costs(path)
    assert {a: {s: list(c) for s, c in by_seed.items()} for a, by_seed in found.items()} == expected


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=60), st.text('agentseedcost,"\n\r\x0019.- ', max_size=60).map(str.encode)))
def test_no_file_crashes_the_reader(tmp_path, data):
    path = tmp_path / "costs.csv"
    for contents in (data, b"agent,seed,cost\n" + data):
        path.write_bytes(contents)
        try:
            found = read_costs(path)
        except InputError:
            continue
        assert found and all(found.values())
