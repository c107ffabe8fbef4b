"""Reference episodes and floors, played again through the agent's interface."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from stocktake_jax.desk import Episode, replay
from stocktake_jax.errors import InputError


def same_types(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_types(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_types, a, b))
    return type(a) is type(b)


def test_all_reference_episodes(reference_episodes: list[dict[str, Any]], checks: Any) -> None:
    """Every refusal, bill, shipment, contract and observation of 60 episodes, with the order and type of every key."""
    assert len(reference_episodes) == 60
    for i, record in enumerate(reference_episodes):
        checks(i % 10 == 0)
        played = replay(record)
        assert played.differences == ()
        assert same_types(json.loads(json.dumps(played.record)), record)


def test_published_floors_through_episodes(reference_floors: list[dict[str, Any]], checks: Any) -> None:
    for i, row in enumerate(reference_floors):
        checks(i % 10 == 0)
        episode = Episode(row["seed"])
        seen = episode.observe()
        for wanted in row["weeks"][1:]:
            qty = max(0, min(100, 93 - seen["inventory_position"]))
            contract = ("sign", "qualified") if seen["week"] == 0 else ()
            seen = episode.place_order("floor", qty, "suez", "qualified", *contract)
            assert qty == wanted["order"]
            assert [seen[k] for k in ("week", "inventory", "arrived", "on_order")] == [
                wanted[k] for k in ("week", "inventory", "arrived", "on_order")
            ]
            assert list(seen["cost_breakdown"]) == list(wanted["breakdown"])
            assert seen["cost_breakdown"] == pytest.approx(wanted["breakdown"], abs=1e-9)
        assert episode.cost == pytest.approx(row["total"], abs=1e-6)


def first_weeks(record: dict[str, Any], weeks: int = 5) -> dict[str, Any]:
    short = copy.deepcopy(record)
    short["weeks"] = short["weeks"][:weeks]
    del short["total"]
    return short


def test_differences_are_found(reference_episodes: list[dict[str, Any]]) -> None:
    record = first_weeks(reference_episodes[0])
    assert replay(record).differences == ()

    def differences(change: Any) -> list[str]:
        changed = copy.deepcopy(record)
        change(changed["weeks"][1])
        return list(replay(changed).differences)

    def swap(observation: dict[str, Any]) -> None:
        observation["week"] = observation.pop("week")

    assert differences(lambda w: w.update(cost=w["cost"] + 1e-5))[0].startswith("seed 198 week 1 cost: ")
    assert "recorded as accepted" in differences(lambda w: w["calls"][1].update(ok=True))[0]
    assert "recorded as refused" in differences(lambda w: w["calls"][0].update(ok=False))[0]
    assert "rate" in differences(lambda w: w["calls"][0]["result"].update(rate=2.0))[0]
    assert "another order" in differences(lambda w: swap(w["observation"]))[0]
    assert "recorded but not computed: x" in differences(lambda w: w["observation"].update(x=1))[0]
    assert "computed but not recorded: pos_units" in differences(lambda w: w["observation"].pop("pos_units"))[0]
    assert "entries" in differences(lambda w: w["observation"]["pipeline"].clear())[0]
    assert "reject" in differences(lambda w: w["observation"].update(aql_result="reject"))[0]
    assert differences(lambda w: w["observation"].update(inventory=True))
    changed = copy.deepcopy(record) | {"total": 5.0}
    assert "total" in replay(changed).differences[-1]


def test_a_record_that_cannot_be_followed(reference_episodes: list[dict[str, Any]]) -> None:
    record = first_weeks(reference_episodes[0])
    refused = copy.deepcopy(record)
    refused["weeks"][2]["order"] = {"qty": 5, "route": "suez", "supplier": "qualified"}
    played = replay(refused)
    assert "no live contract" in played.differences[-1] and len(played.record["weeks"]) == 3
    early = copy.deepcopy(record)
    early["weeks"][2]["calls"][0] = {"tool": "place_order", "args": {"qty": 0}, "ok": False}
    assert "went through" in replay(early).differences[-1]


def test_strict_rules_and_bare_records(reference_episodes: list[dict[str, Any]]) -> None:
    """What is not recorded is not compared; the strict rules price a contract's terms."""
    orders = [
        {"order": {"qty": 10, "route": "suez", "supplier": "spot"}, "contract": None, "calls": []},
        {
            "order": {"qty": 10, "route": "suez", "supplier": "spot"},
            "contract": {"action": "renew", "supplier": "spot", "terms": "long"},
            "calls": [{"tool": "buy_briefing", "args": {}}, {"tool": "buy_audit", "args": {}}],
        },
    ]
    record = {"seed": 0, "weeks": orders}
    paper, strict = replay(record), replay(record, "strict")
    assert paper.differences == strict.differences == ()
    assert [c["result"] for c in paper.record["weeks"][1]["calls"]] == ["calm", "ontime"]
    bills = [p.record["weeks"][1]["observation"]["cost_breakdown"]["shipping"] for p in (paper, strict)]
    assert bills[0] < bills[1]


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ([], "an object is wanted"),
        ({"weeks": []}, "'seed'"),
        ({"seed": 1}, "'weeks'"),
        ({"seed": "1", "weeks": []}, "seed"),
        ({"seed": 1, "weeks": {}}, "a list"),
        ({"seed": 1, "weeks": [1]}, "week 0"),
        ({"seed": 1, "weeks": [{"calls": []}]}, "'order'"),
        ({"seed": 1, "weeks": [{"calls": 5, "order": None}]}, "list"),
        ({"seed": 1, "weeks": [{"calls": [{"tool": "x"}], "order": {}}]}, "'args'"),
        ({"seed": 1, "weeks": [{"calls": [], "order": {"qty": 0}}]}, "'route'"),
    ],
)
def test_what_is_no_record(record: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        replay(record)
