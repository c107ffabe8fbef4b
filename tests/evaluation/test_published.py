"""The shipped data: complete, consistent with what the paper says of it, and read strictly."""

import re

import numpy as np
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.published import (
    BELIEF_WEEKS,
    PROFILES,
    PublishedReference,
    parse_agents,
    parse_beliefs,
    parse_references,
    published_agents,
    published_beliefs,
    published_references,
)
from stocktake_jax.models.world import FACTORS

HEADER = "seed,profile,floor,oracle_mean,oracle_se,oracle_min,oracle_max,learned_oracle_mean,learned_oracle_se\n"
ROW = "0,compound,6580.9,5571.2,20.9,5434.1,5760.8,5530.7,25.3\n"


def test_references_are_the_fifty_seeds_in_their_profiles():
    references = published_references()
    profiles = [reference.profile for reference in references]
    assert len(references) == len({reference.seed for reference in references}) == 50
    assert [profiles.count(profile) for profile in PROFILES] == [12, 15, 23]
    assert references[0] == PublishedReference(0, "compound", 6580.9, 5571.2, 20.9, 5434.1, 5760.8, 5530.7, 25.3)


def test_references_agree_with_what_the_paper_says_of_them():
    references = published_references()
    assert [r.seed for r in references if r.floor <= r.oracle_mean] == [11]
    assert all(r.oracle_min < r.oracle_mean < r.oracle_max for r in references)
    relative = [r.oracle_se / r.oracle_mean for r in references]
    assert (f"{100 * min(relative):.1f}", f"{100 * max(relative):.1f}") == ("0.2", "1.8")


def test_agents_have_one_cost_on_every_seed():
    agents = published_agents()
    seeds = {reference.seed for reference in published_references()}
    assert list(agents) == ["claude-sonnet-5", "gpt-5.4", "deepseek-v4-pro", "grok-4.5"]
    assert all(set(costs) == seeds for costs in agents.values())
    assert agents["claude-sonnet-5"][11] == 6844.0


def test_beliefs_cover_every_run_and_keep_every_letter():
    beliefs = published_beliefs()
    assert list(beliefs) == [(agent, seed) for agent, costs in published_agents().items() for seed in sorted(costs)]
    assert all(len(run.named) == len(run.stockout) == BELIEF_WEEKS for run in beliefs.values())
    # written back, sorted as the file is, and read again, nothing may change
    text = "\n".join(
        f"{run.agent}|{run.seed}|"
        + " ".join(
            ("".join(factor[0] for factor in FACTORS if factor in named) or "-") + "!" * short
            for named, short in zip(run.named, run.stockout, strict=True)
        )
        for run in beliefs.values()
    )
    again = parse_beliefs(text)
    assert {(run.agent, run.seed): run for run in again} == dict(beliefs)


def test_one_run_of_beliefs_by_hand():
    # line: - s - d df df - f - - c s p d d df - d d d d cd - cd cs c! -!
    run = published_beliefs()["claude-sonnet-5", 0]
    assert run.named[0] == frozenset()
    assert run.named[1] == {"supplier"}
    assert run.named[4] == {"demand", "freight"}
    assert run.named[23] == {"canal", "supplier"}
    assert run.stockout == (False,) * 24 + (True, True)
    named, stockout = run.named_array(), run.stockout_array()
    assert named.shape == (26, 6) and named.dtype == stockout.dtype == np.bool_
    assert named[1].tolist() == [False, True, False, False, False, False]
    assert stockout.tolist() == list(run.stockout)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the header"),
        (HEADER.replace("floor", "flor") + ROW, "line 1: the header"),
        (HEADER + ROW.replace(",25.3", ""), "line 2: 8 values for 9 columns"),
        (HEADER + ROW.replace("0,compound", "-1,compound"), "line 2, column seed: '-1'"),
        (HEADER + ROW.replace("compound", "severe"), "line 2, column profile: 'severe'"),
        (HEADER + ROW.replace("5571.2", "cheap"), "line 2, column oracle_mean: 'cheap'"),
        (HEADER + ROW.replace("20.9", "inf"), "line 2, column oracle_se: 'inf'"),
        (HEADER + ROW + ROW, "line 3: seed 0 stands on line 2 already"),
    ],
)
def test_references_that_cannot_be_read(text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        parse_references(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agent,seed\na,1\n", "the header"),
        ("agent,seed,cost\na,1,x\n", "line 2, column cost: 'x'"),
        ("agent,seed,cost\na,1.5,9\n", "line 2, column seed: '1.5'"),
        ("agent,seed,cost\na,1,9\na,1,8\n", "line 3: a has a cost for seed 1 already"),
    ],
)
def test_agents_that_cannot_be_read(text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        parse_agents(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a|1", "line 1: 'a|1' is not of the form"),
        ("|1|" + "- " * 26, "line 1"),
        ("a|x|" + "- " * 26, "line 1, column seed: 'x'"),
        ("a|1|" + "- " * 25, "line 1: 25 tokens"),
        ("a|1|- xs " + "- " * 24, "line 1, week 2: 'xs'"),
        ("a|1|- ss " + "- " * 24, "line 1, week 2: 'ss'"),
        ("a|1|- ! " + "- " * 24, "line 1, week 2: '!'"),
        ("a|1|- s!! " + "- " * 24, "line 1, week 2: 's!!'"),
        ("\n".join(["a|1|" + "- " * 26] * 2), "line 2: a has labels for seed 1 already"),
    ],
)
def test_beliefs_that_cannot_be_read(text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        parse_beliefs(text)
