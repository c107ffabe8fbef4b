"""Observations: keys and types, texts, and the way back to readings."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from stocktake_jax.desk import Episode, readings_from
from stocktake_jax.desk.observation import AUDITS, BRIEFINGS, BULLETINS
from stocktake_jax.errors import InputError
from stocktake_jax.models import Tape, World

KEYS = [
    "week",
    "inventory",
    "on_order",
    "inventory_position",
    "arrived",
    "components",
    "served",
    "pipeline",
    "cost_breakdown",
    "contracts",
    "contract_open",
    "term_menu",
    "freight_lock",
    "suez_count",
    "bab_count",
    "cape_count",
    "bulletin",
    "suppliers",
    "pos_units",
    "demand_forecast",
    "freight_index",
    "freight_outlook",
    "berth_wait",
    "wait_outlook",
    "aql_result",
    "realized_fill",
]


def native(value: Any) -> bool:
    """Whether a value consists of Python's own types only."""
    if isinstance(value, dict):
        return type(value) is dict and all(type(k) is str and native(v) for k, v in value.items())
    if isinstance(value, list):
        return type(value) is list and all(map(native, value))
    return value is None or type(value) in (int, float, str)


def test_week_0(world: World) -> None:
    seen = Episode(4).observe()
    assert list(seen) == [k for k in KEYS if k not in ("freight_lock", "realized_fill")]
    assert (seen["inventory"], seen["pipeline"], seen["cost_breakdown"], seen["served"]) == (80, [], {}, {"unit": 0})
    assert seen["contracts"] == [
        {"supplier": "spot", "start_week": 0, "end_week": None, "unit_price": 4.0, "otif_floor": 85, "break_fee": 10.0}
    ]
    assert (seen["suez_count"], seen["pos_units"], seen["freight_index"], seen["aql_result"]) == (70, 20, 100, "accept")


def test_keys_order_and_types() -> None:
    episode = Episode(58)
    episode.place_order("r", 40, "suez", "spot", "sign", "backup", "short")
    episode.lock_freight(3)
    episode.expedite_air(2)
    seen = episode.place_order("r", 30, "cape", "spot")
    assert list(seen) == KEYS
    assert native(seen)
    assert list(seen["pipeline"][0]) == ["qty", "route", "supplier", "component", "dispatched_week", "status", "eta"]
    assert list(seen["components"]["unit"]) == ["on_hand", "on_order", "inventory_position", "arrived"]
    unit = seen["components"]["unit"]
    assert [unit[k] for k in ("on_hand", "on_order")] == [seen["inventory"], seen["on_order"]]
    assert seen["inventory_position"] == seen["inventory"] + seen["on_order"]
    assert list(seen["cost_breakdown"])[8:] == ["air", "dual_source"]
    assert seen["freight_lock"]["weeks_left"] == 2
    assert json.loads(json.dumps(seen)) == seen
    # with no order from spot there is no fill to see
    assert "realized_fill" not in episode.place_order("r", 0)


def test_the_paper_s_example_week() -> None:
    """Seed 1, week 10, of a base-stock policy that sources spot (paper, Appendix): all that the page shows of it."""
    episode = Episode(1)
    seen = episode.observe()
    while seen["week"] < 10:
        seen = episode.place_order("r", max(0, min(100, 93 - seen["inventory_position"])), "suez", "spot")
    shown = {k: seen[k] for k in ("inventory", "on_order", "arrived", "pos_units", "demand_forecast", "berth_wait")}
    assert shown == {
        "inventory": 0,
        "on_order": 66,
        "arrived": 27,
        "pos_units": 29,
        "demand_forecast": 28,
        "berth_wait": 0,
    }
    assert [(s["qty"], s["eta"]) for s in seen["pipeline"]] == [(23, 11), (15, 12), (28, 13)]
    assert seen["served"] == {"unit": 27}
    bill = {"shipping": 80.192, "in_transit": 66.0, "stockout": 40.0}
    for item, amount in seen["cost_breakdown"].items():
        assert amount == pytest.approx(bill.get(item, 0.0))
    assert (seen["freight_index"], seen["freight_outlook"], seen["realized_fill"]) == (109, 85, 1.0)


def test_bulletins_tell_the_counts_and_nothing_else(world: World) -> None:
    """Whatever the hidden regime, equal counts give equal text, and each band has its own."""
    by_counts: dict[tuple[int, int], set[str]] = {}
    regimes: dict[str, set[str]] = {}
    for seed in (21, 24, 25, 29, 58, 60, 85, 86):
        tape, episode = Tape.published(seed, world), Episode(seed)
        for week in range(27):
            seen = episode.observe()
            by_counts.setdefault((seen["suez_count"], seen["bab_count"]), set()).add(seen["bulletin"])
            state = world.canal.states[tape.states["canal"][week]]
            regimes.setdefault(seen["bulletin"], set()).add(state.regime)
            if week < 26:
                episode.place_order("r", 0)
    assert all(len(texts) == 1 for texts in by_counts.values())
    assert len(by_counts) == 6
    assert regimes[BULLETINS["crash"]] == {"false_alarm", "short", "long"}


def test_texts_differ() -> None:
    for texts, keys in (
        (BULLETINS, {"calm", "watch", "crash", "blockage", "crisis", "recovery"}),
        (BRIEFINGS, {"calm", "watch", "false_alarm", "short", "long", "recovery"}),
        (AUDITS, {"ontime", "slipping", "failing", "defunct"}),
    ):
        assert set(texts) == keys
        assert len(set(texts.values())) == len(texts)


@pytest.mark.parametrize("seed", [157, 170])
def test_readings_are_the_tape_s(world: World, seed: int) -> None:
    """What a policy reads from observations is what the filters get from the tape, death of spot included."""
    episode, tape = Episode(seed), Tape.published(seed, world)
    sourced = np.zeros(27, np.bool_)
    seen = [episode.observe()]
    for week in range(26):
        live = any(c["supplier"] == "spot" for c in seen[-1]["contracts"]) and "spot" not in seen[-1]["contract_open"]
        sourced[week + 1] = live and week % 3 > 0
        order = (10, "suez", "spot") if sourced[week + 1] else (0,)
        seen.append(episode.place_order("r", *order))
    wanted = tape.readings(world, sourced)
    for week, observation in enumerate(seen):
        got = readings_from(json.loads(json.dumps(observation)))
        assert list(got) == list(wanted)
        for name, channels in wanted.items():
            assert set(got[name]) == set(channels)
            for channel, values in channels.items():
                np.testing.assert_array_equal(got[name][channel], np.asarray(values[week], np.float64), err_msg=channel)
    assert sourced.sum() > 5


def test_counts_between_whole_numbers_are_shown_as_they_are() -> None:
    other = World.paper().replace({"canal.cape": [60.5, 60, 66, 72, 96, 69]})
    episode = Episode(3, other)
    seen = episode.place_order("r", 0)
    assert seen["cape_count"] in (60.5, 81.5)
    assert float(readings_from(seen)["canal"]["cape_count"]) == seen["cape_count"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda o: o.pop("berth_wait"), "berth_wait"),
        (lambda o: o.update(aql_result="splendid"), "splendid"),
        (lambda o: o.update(suppliers=[]), "spot"),
        (lambda o: o.update(pos_units="many"), "many"),
    ],
)
def test_what_is_no_observation(change: Any, says: str) -> None:
    seen = Episode(1).observe()
    change(seen)
    with pytest.raises(InputError, match=says):
        readings_from(seen)
