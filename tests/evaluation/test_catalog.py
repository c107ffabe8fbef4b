"""Seeds and their stress profiles, against the published labels and a count in plain Python."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import jax
import pytest

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.catalog import (
    EARLY_SEEDS,
    THRESHOLD,
    Profile,
    check_seeds,
    classify,
    classify_seed,
    fresh_seeds,
    parse_seeds,
    published_seeds,
    uncurated_seeds,
)
from stocktake_jax.evaluation.published import published_references
from stocktake_jax.models import Tape, World

DATA = Path(__file__).parent.parent / "data"
STRESS = {
    "canal": {"disruption"},
    "supplier": {"degraded", "defunct"},
    "demand": {"promo_spike", "seasonal_lift", "structural_decline"},
    "freight": {"spike"},
    "port": {"congested", "customs_hold"},
    "quality": {"out_of_control"},
}


def counted(weeks: list[dict[str, Any]]) -> tuple[int, int, int]:
    """Most factors at once, the longest port blockage, weeks of demand stress: from the names of the regimes."""
    stressed = [{name for name, regimes in STRESS.items() if week[name]["regime"] in regimes} for week in weeks]
    port = "".join("x" if "port" in week else " " for week in stressed)
    return max(map(len, stressed)), max(map(len, port.split(" "))), sum("demand" in week for week in stressed)


@pytest.fixture(scope="module")
def profiles() -> dict[int, Profile]:
    return {seed: classify_seed(seed) for seed in published_seeds()}


def test_the_fifty_labels_are_reproduced(profiles: dict[int, Profile]) -> None:
    assert {seed: p.profile for seed, p in profiles.items()} == {r.seed: r.profile for r in published_references()}
    assert published_seeds() == tuple(sorted(published_seeds())) and len(published_seeds()) == 50


def test_early_seeds_were_labelled_under_a_stricter_rule(profiles: dict[int, Profile]) -> None:
    assert len(EARLY_SEEDS) == 20 and set(published_seeds()) > EARLY_SEEDS
    assert [s for s in sorted(EARLY_SEEDS) if classify(Tape.published(s)).profile != profiles[s].profile] == [
        44,
        85,
        99,
    ]
    assert THRESHOLD == 4


def test_counts_against_the_names_of_the_regimes(profiles: dict[int, Profile]) -> None:
    with gzip.open(DATA / "tapes.jsonl.gz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            p = profiles[row["seed"]]
            assert (p.max_overlap, p.port_block_longest, p.demand_stress_weeks) == counted(row["weeks"])


def test_another_world_has_other_profiles() -> None:
    calm = World.paper().replace({"port.build_onset": 0.0, "port.customs_onset": 0.0})
    assert classify_seed(1).port_block_longest > 0
    assert classify_seed(1, calm).port_block_longest == 0


def test_a_batch_of_tapes_has_no_profile() -> None:
    with pytest.raises(InputError, match="one tape"):
        classify(Tape.published_batch([0, 1]))


def test_lists_of_seeds() -> None:
    assert parse_seeds("1,5-9, 3") == (1, 5, 6, 7, 8, 9, 3)
    assert parse_seeds("7-7") == (7,)
    assert parse_seeds(str(2**32 - 1)) == (2**32 - 1,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "''"),
        ("a", "'a'"),
        ("1,,2", "''"),
        ("-3", "'-3'"),
        ("3-", "'3-'"),
        ("1.5", "'1.5'"),
        ("²", "'²'"),
        ("9-5", "write 5-9"),
        ("1,2,1", "seed 1 is listed"),
        ("1-3,2", "seed 2 is listed"),
        ("0-1000000", "too much"),
        (str(2**32), "below 2\\^32"),
        ("0-9999,5", "seed 5 is listed"),
    ],
)
def test_what_is_no_list_of_seeds(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_seeds(text)


def test_samples_of_seeds() -> None:
    assert uncurated_seeds(3) == (1000, 1001, 1002)
    with pytest.raises(InputError, match="curated seed 194"):
        uncurated_seeds(10, first=190)
    drawn = fresh_seeds(100, key=jax.random.key(1))
    assert len(set(drawn)) == 100 and min(drawn) >= 1000
    assert fresh_seeds(100, key=jax.random.key(1)) == drawn != fresh_seeds(100, key=jax.random.key(2))
    for sample in (uncurated_seeds, lambda n: fresh_seeds(n, key=jax.random.key(0))):
        with pytest.raises(InputError, match="at least 1"):
            sample(0)
    with pytest.raises(InputError, match="at least one"):
        check_seeds(())
