"""The agent's interface: validation, turns, levers, and what it must never tell."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stocktake_jax.desk import TOOLS, Episode, Refusal, Rules, tools
from stocktake_jax.errors import InputError
from stocktake_jax.models import Tape, World


def refused(episode: Episode, tool: Any, arguments: Any) -> str:
    """Make a call that must be refused; nothing may have changed. Returns the message."""
    before = (json.dumps(episode.observe()), episode.week, episode.cost)
    with pytest.raises(Refusal) as info:
        episode.call(tool, arguments)
    assert (json.dumps(episode.observe()), episode.week, episode.cost) == before
    message = str(info.value)
    assert message and "\n" not in message
    return message


ORDER = {"rationale": "r", "qty": 5, "route": "suez", "supplier": "spot"}


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("sell_everything", {}, "no tool 'sell_everything'; call one of lock_freight, expedite_air"),
        (None, {}, "no tool null"),
        (["place_order"], {}, "no tool a list"),
        ("inspect_batch", {"qty": 1}, "inspect_batch(): unknown argument 'qty'"),
        ("inspect_batch", [], "must be an object, not a list"),
        ("inspect_batch", "{}", "must be an object, not '{}'"),
        ("lock_freight", {}, "lock_freight(weeks): weeks is missing"),
        ("lock_freight", {"weeks": 0}, "from 1 to 2147483647, not 0"),
        ("lock_freight", {"weeks": -1}, "not -1"),
        ("lock_freight", {"weeks": "5"}, "not '5'"),
        ("lock_freight", {"weeks": 5.0}, "not 5.0"),
        ("lock_freight", {"weeks": True}, "not true"),
        ("lock_freight", {"weeks": None}, "not null"),
        ("lock_freight", {"weeks": float("nan")}, "not nan"),
        ("lock_freight", {"weeks": 10**5000}, "not a number of 16610 bits"),
        ("lock_freight", {"weeks": [4]}, "not a list"),
        ("lock_freight", {"weeks": 2**31}, "not 2147483648"),
        ("expedite_air", {"qty": 0}, "from 1"),
        ("expedite_air", {"qty": -3}, "not -3"),
        ("expedite_air", {"qty": 5, "why": "x"}, "unknown argument 'why'"),
        ("place_order", {}, "rationale is missing; qty is missing"),
        ("place_order", {"qty": 0}, "rationale is missing"),
        ("place_order", {"rationale": 5, "qty": 0}, "rationale must be a text, not 5"),
        ("place_order", {"rationale": None, "qty": 0}, "rationale must be a text, not null"),
        ("place_order", ORDER | {"qty": 101}, "qty must be a whole number from 0 to 100, not 101"),
        ("place_order", ORDER | {"qty": -1}, "not -1"),
        ("place_order", ORDER | {"qty": 5.0}, "not 5.0"),
        ("place_order", ORDER | {"qty": "5"}, "not '5'"),
        ("place_order", ORDER | {"qty": True}, "not true"),
        ("place_order", ORDER | {"qty": None}, "not null"),
        ("place_order", ORDER | {"route": None}, "needs a route: 'suez' or 'cape'"),
        ("place_order", ORDER | {"route": "panama"}, "route must be one of 'suez', 'cape', or left out, not 'panama'"),
        ("place_order", ORDER | {"route": "Suez"}, "not 'Suez'"),
        ("place_order", ORDER | {"qty": 0, "route": "panama"}, "not 'panama'"),
        ("place_order", ORDER | {"route": 0}, "not 0"),
        ("place_order", ORDER | {"supplier": None}, "needs a supplier"),
        ("place_order", ORDER | {"supplier": "acme"}, "not 'acme'"),
        ("place_order", ORDER | {"supplier": "qualified"}, "qualified has no live contract in week 0: sign it"),
        ("place_order", ORDER | {"speed": 1}, "unknown argument 'speed'"),
        ("place_order", ORDER | {1: 2}, "unknown argument 1"),
        ("place_order", ORDER | {"contract_action": "steal", "contract_supplier": "spot"}, "'renew', 'lapse'"),
        ("place_order", ORDER | {"contract_action": "sign"}, "'sign' needs contract_supplier"),
        ("place_order", ORDER | {"contract_action": "sign", "contract_supplier": "acme"}, "not 'acme'"),
        ("place_order", ORDER | {"contract_supplier": "spot"}, "contract_supplier without contract_action"),
        ("place_order", ORDER | {"contract_terms": "long"}, "contract_terms without contract_action"),
        (
            "place_order",
            ORDER | {"contract_action": "sign", "contract_supplier": "spot", "contract_terms": "eternal"},
            "contract_terms must be one of 'short', 'long', 'strict', 'lenient'",
        ),
        (
            "place_order",
            ORDER | {"contract_action": "lapse", "contract_supplier": "spot", "contract_terms": "long"},
            "'lapse' takes no contract_terms",
        ),
        # the contract would be fine, the order is not: neither happens
        (
            "place_order",
            ORDER | {"supplier": "qualified", "contract_action": "sign", "contract_supplier": "backup"},
            "no live contract in week 0: sign it in the same order",
        ),
        ("place_order", {f"a{i}": i for i in range(50)}, "and 47 more"),
    ],
)
def test_refusals(tool: Any, arguments: Any, says: str) -> None:
    assert says in refused(Episode(2), tool, arguments)


def test_what_is_accepted() -> None:
    episode = Episode(2)
    assert episode.call("lock_freight", {"weeks": np.int64(4)}) == {"rate": 1.0, "weeks_left": 4}
    assert episode.call("expedite_air", {"qty": 90}) == {"qty": 20, "unit_cost": 15.0}
    assert episode.call("inspect_batch") == {"fee": 40.0, "catch_rate": 0.7}
    # without an order, route and supplier mean nothing; null is the same as left out; rationale may be empty
    seen = episode.call("place_order", {"rationale": "", "qty": 0, "route": "suez", "supplier": None})
    assert seen["week"] == 1 and seen["pipeline"] == []
    # lapsing where nothing is open changes nothing (the reference episodes have many)
    assert episode.place_order("r", 0, contract_action="lapse", contract_supplier="backup")["week"] == 2
    # an order and a contract for one's own supplier in one call
    seen = episode.place_order("r", 5, "cape", "qualified", "sign", "qualified", "short")
    assert [c["supplier"] for c in seen["contracts"]] == ["spot", "qualified"]


def test_levers_are_billed_once_and_replaced() -> None:
    episode = Episode(2)
    assert "freight_lock" not in episode.observe()
    for _ in range(3):
        episode.buy_briefing()
        episode.buy_audit()
        episode.inspect_batch()
    episode.expedite_air(15)
    episode.expedite_air(4)
    episode.lock_freight(9)
    episode.lock_freight(2)
    assert episode.observe()["freight_lock"] == {"rate": 1.0, "weeks_left": 2}
    assert (episode.cost, episode.week) == (0.0, 0)
    bill = episode.place_order("r", 0)["cost_breakdown"]
    assert {k: bill[k] for k in list(bill)[8:]} == {"briefing": 30.0, "audit": 25.0, "air": 60.0, "inspect": 40.0}
    bill = episode.place_order("r", 0)["cost_breakdown"]
    assert list(bill)[8:] == []
    assert "freight_lock" not in episode.observe()


def test_paid_words_tell_the_truth(world: World) -> None:
    for seed in (25, 157, 170):
        episode, tape = Episode(seed), Tape.published(seed, world)
        for week in range(26):
            briefing, audit = episode.buy_briefing(), episode.buy_audit()
            canal, supplier = (int(tape.states[f][week]) for f in ("canal", "supplier"))
            assert briefing["regime"] == world.canal.states[canal].regime
            assert audit["band"] == world.supplier.state_bands[supplier]
            assert briefing["fee"] == 30.0 and audit["fee"] == 25.0 and briefing["text"] and audit["text"]
            episode.place_order("r", 0)


def test_strict_wants_a_rationale() -> None:
    for text in ("", "  \n\t"):
        assert "rationale is empty" in refused(Episode(1, rules="strict"), "place_order", {"rationale": text, "qty": 0})
        assert Episode(1).place_order(text, 0)["week"] == 1
    assert Episode(1, rules="strict").place_order("stock is fine", 0)["week"] == 1


def test_strict_rules_reach_the_agent() -> None:
    episode = Episode(1, rules="strict")
    signed = ORDER | {"supplier": "backup", "contract_action": "sign", "contract_supplier": "backup"}
    assert "in week 1" in refused(episode, "place_order", signed)
    episode.place_order("r", 0, contract_action="sign", contract_supplier="backup")
    seen = episode.place_order("r", 5, "suez", "backup", "lapse", "spot")
    assert list(seen["cost_breakdown"])[-1] == "break_fee" and seen["cost_breakdown"]["break_fee"] == 10.0
    assert [c["supplier"] for c in seen["contracts"]] == ["backup"]


def test_one_order_a_turn() -> None:
    episode = Episode(2)
    assert episode.place_order("direct callers need no turns", 0)["week"] == 1
    episode.begin_turn()
    refused(episode, "place_order", ORDER | {"qty": 500})  # does not use the permit up
    episode.lock_freight(1)
    assert episode.place_order("r", 0)["week"] == 2
    assert "this turn's order has been placed" in refused(episode, "place_order", ORDER)
    episode.observe()
    refused(episode, "place_order", ORDER)
    episode.inspect_batch()
    episode.begin_turn()
    episode.begin_turn()  # permits do not add up
    assert episode.place_order("r", 0)["week"] == 3
    refused(episode, "place_order", ORDER)


def test_the_end() -> None:
    episode = Episode(2)
    with pytest.raises(InputError, match="in week 0 of 26"):
        episode.result()
    total = 0.0
    while not episode.done:
        total += sum(episode.place_order("r", 20, "suez", "spot")["cost_breakdown"].values())
    assert episode.week == 26 and episode.observe()["week"] == 26
    assert episode.cost == pytest.approx(total)
    for name, arguments in (
        ("place_order", ORDER),
        ("lock_freight", {"weeks": 1}),
        ("expedite_air", {"qty": 1}),
        ("inspect_batch", {}),
        ("buy_briefing", {}),
        ("buy_audit", {}),
    ):
        assert "the episode is over" in refused(episode, name, arguments)
    with pytest.raises(Refusal, match="the episode is over"):
        episode.begin_turn()
    result = episode.result()
    assert (result["seed"], result["rules"], result["total"]) == (2, "paper", episode.cost)
    assert len(result["weeks"]) == 26 and len(result["truth"]) == 27
    assert result["weeks"][3]["order"] == {"qty": 20, "route": "suez", "supplier": "spot"}
    json.dumps(result)


def test_bad_episodes(world: World) -> None:
    tape = Tape.published_batch([1, 2], world)
    for arguments, says in (
        ({}, "a seed or a tape"),
        ({"seed": 1, "tape": tape}, "a seed or a tape"),
        ({"seed": -1}, "not -1"),
        ({"seed": "1"}, "not '1'"),
        ({"seed": True}, "not true"),
        ({"seed": 1, "rules": "harsh"}, "'paper' or 'strict'"),
        ({"tape": tape}, "one tape of 27 weeks"),
    ):
        with pytest.raises(InputError, match=says):
            Episode(**arguments)  # type: ignore[arg-type]


# -- random play


VALUES = st.one_of(
    st.integers(-5, 120),
    st.sampled_from([None, True, "", "5", "suez", "cape", "spot", "qualified", "backup", "sign", "lapse", "short"]),
    st.floats(),
    st.lists(st.integers(), max_size=2),
)
CALLS = st.one_of(
    st.tuples(st.just("lock_freight"), st.fixed_dictionaries({"weeks": st.integers(-1, 9)})),
    st.tuples(st.just("expedite_air"), st.fixed_dictionaries({"qty": st.integers(-1, 30)})),
    st.tuples(st.sampled_from(["inspect_batch", "buy_briefing", "buy_audit"]), st.just({})),
    st.tuples(
        st.just("place_order"),
        st.fixed_dictionaries(
            {"rationale": st.sampled_from(["", "why not"]), "qty": st.one_of(st.just(0), st.integers(-1, 101))},
            optional={
                "route": st.sampled_from(["suez", "cape", None]),
                "supplier": st.sampled_from(["spot", "spot", "qualified", "backup"]),
                "contract_action": st.sampled_from(["sign", "switch", "renew", "lapse"]),
                "contract_supplier": st.sampled_from(["spot", "qualified", "backup"]),
                "contract_terms": st.sampled_from(["short", "long", "strict", "lenient", None]),
            },
        ),
    ),
    st.tuples(
        st.sampled_from([*TOOLS, "observe", ""]),
        st.dictionaries(st.sampled_from(["weeks", "qty", "route", "supplier", "rationale", "x"]), VALUES, max_size=4),
    ),
)


@settings(
    max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # `checks` is set anew each time
@given(
    seed=st.integers(0, 10_000),
    calls=st.lists(CALLS, min_size=30, max_size=90),
    rules=st.sampled_from(["paper", "strict"]),
)
def test_any_sequence_of_calls(checks: Any, seed: int, calls: list[tuple[str, dict[str, Any]]], rules: Rules) -> None:
    """No crash; refused calls leave no trace, then or later; units are conserved; only shipping can be negative."""
    checks(len(calls) % 4 == 0)
    episode = Episode(seed, rules=rules)
    accepted = []
    air = served = shipped = arrived = 0
    flying = 0
    for tool, arguments in calls:
        before, cost = json.dumps(episode.observe()), episode.cost
        try:
            out = episode.call(tool, arguments)
        except Refusal:
            assert (json.dumps(episode.observe()), episode.cost) == (before, cost)
            continue
        accepted.append((tool, arguments))
        if tool == "expedite_air":
            flying = out["qty"]
        if tool == "place_order":
            air, flying = air + flying, 0
            served += out["served"]["unit"]
            arrived += out["arrived"]
            shipped += sum(s["qty"] for s in out["pipeline"] if s["dispatched_week"] == out["week"])
            assert out["inventory"] == 80 + air + arrived - served
            assert shipped - arrived - out["on_order"] >= 0  # what is missing was defective
            assert all(v >= 0 for k, v in out["cost_breakdown"].items() if k != "shipping")
    again = Episode(seed, rules=rules)
    for tool, arguments in accepted:
        again.call(tool, arguments)
    assert json.dumps(again.observe()) == json.dumps(episode.observe())
    assert again.cost == episode.cost


def test_ten_weeks_of_nonsense(checks: Any) -> None:
    """Malformed calls of every kind, thousands of them: each is refused with one line, and nothing moves."""
    rng, episode = random.Random(0), Episode(11)
    junk = [None, True, -1, 0.5, float("inf"), "", "spot", "\ud800", "é" * 500, 10**400, [], {}, b"x", object(), 1j]
    names = [*TOOLS, "observe", "", "\n", None, 3, ("place_order",)]
    keys = ["qty", "weeks", "route", "supplier", "rationale", "contract_action", "seed", "\x00", 5, None]
    endless: list[Any] = []
    endless.append(endless)
    for week in range(10):
        checks(week == 0)
        before = json.dumps(episode.observe())
        for _ in range(300):
            arguments: Any = {rng.choice(keys): rng.choice([*junk, endless]) for _ in range(rng.randrange(1, 5))}
            if rng.random() < 0.1:
                arguments = rng.choice(junk[1:])
            name = rng.choice(names)
            if name in ("inspect_batch", "buy_briefing", "buy_audit") and arguments == {}:
                continue
            with pytest.raises(Refusal) as info:
                episode.call(name, arguments)
            assert len(str(info.value)) < 1000 and str(info.value).isprintable()
        assert json.dumps(episode.observe()) == before
        assert episode.place_order("r", 1, "suez", "spot")["week"] == week + 1


# -- what must stay hidden


LOGISTIC = {
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
    "freight_lock",
    "realized_fill",
}


def random_play(episode: Episode, rng: random.Random) -> list[dict[str, Any]]:
    """Some legal play or other; the observations of all weeks."""
    seen = [episode.observe()]
    while not episode.done:
        if rng.random() < 0.2:
            episode.lock_freight(rng.randrange(1, 6))
        if rng.random() < 0.2:
            episode.expedite_air(rng.randrange(1, 30))
        if rng.random() < 0.2:
            rng.choice([episode.buy_briefing, episode.buy_audit, episode.inspect_batch])()
        supplier = rng.choice(["spot", "qualified", "backup"])
        live = {c["supplier"] for c in seen[-1]["contracts"]} - set(seen[-1]["contract_open"])
        dead = supplier == "spot" and "spot" not in live
        contract = () if supplier in live or dead else ("sign", supplier, rng.choice(["short", "lenient", None]))
        qty = 0 if dead else rng.choice([0, 10, 30, 60])
        seen.append(episode.place_order("r", qty, rng.choice(["suez", "cape"]), supplier, *contract))
    return seen


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000), first=st.integers(0, 99), second=st.integers(100, 199))
def test_what_is_seen_does_not_depend_on_orders(checks: Any, seed: int, first: int, second: int) -> None:
    """But for stocks, ships, contracts and bills, two policies on one seed see the same stream, byte for byte."""
    checks(first % 4 == 0)
    streams = [random_play(Episode(seed), random.Random(policy)) for policy in (first, second)]
    for one, other in zip(*streams, strict=True):
        shared = [{k: v for k, v in seen.items() if k not in LOGISTIC} for seen in (one, other)]
        assert json.dumps(shared[0]) == json.dumps(shared[1])
        assert len(shared[0]) == 14
    assert json.dumps(streams[0]) != json.dumps(streams[1])


def twin_of(tape: Tape, world: World, rng: np.random.Generator) -> Tape:
    """A tape with the same readings and the same effects on ships via the Cape, and other hidden states.

    Only what an agent cannot read may change: the regimes of demand, freight and quality at will; a congested port for
    one under a customs hold; spot's regimes but its death; a false alarm for the first week of a short disruption.
    """
    states, ages = ({k: np.array(v) for k, v in tree.items()} for tree in (tape.states, tape.ages))
    for name in ("demand", "freight", "quality"):
        states[name] = rng.integers(0, len(world.factors[name].states), 27).astype(np.int32)
    swap = {
        "canal": [("false_alarm", 0, "short", 0), ("recovery", 1, "recovery", 0), ("recovery", 2, "recovery", 0)],
        "port": [("congested", 0, "customs_hold", 0), ("congested", 1, "customs_hold", 1), ("clear", 0, "building", 0)],
        "supplier": [("wobbling", 0, "degraded", 0), ("degraded", 1, "reliable", 0), ("degraded", 2, "wobbling", 0)],
    }
    for name, pairs in swap.items():
        factor, new = world.factors[name], states[name].copy()
        for one, one_age, other, other_age in pairs:
            a, b = factor.index(one, one_age), factor.index(other, other_age)
            new[states[name] == a], new[states[name] == b] = b, a
        states[name] = new
    ages = {k: rng.integers(0, 9, 27).astype(np.int32) for k in ages}
    return Tape(states, ages, tape.values)


def transcript(episode: Episode) -> list[str]:
    """Everything an agent is shown in an episode that ships via the Cape, refusals included, paid reports apart."""
    lines = [repr(episode), json.dumps({name: t.schema() for name, t in episode.tools.items()})]
    rng = random.Random(1)

    def call(tool: str, **arguments: Any) -> None:
        try:
            lines.append(json.dumps(episode.call(tool, arguments)))
        except InputError as refusal:
            lines.append(f"{type(refusal).__name__}: {refusal}")

    while not episode.done:
        lines.append(json.dumps(episode.observe()))
        try:
            episode.result()
        except InputError as early:
            lines.append(str(early))
        for name in ("lock_freight", "expedite_air", "inspect_batch", "place_order", "buy_luck"):
            call(name, qty=rng.randrange(-5, 200), weeks=3)
        call(
            "place_order", rationale="r", qty=rng.randrange(200), route="cape", supplier=rng.choice(["spot", "backup"])
        )
        if rng.random() < 0.3:
            call("lock_freight", weeks=rng.randrange(4))
        if rng.random() < 0.3:
            call("expedite_air", qty=rng.randrange(30))
        if rng.random() < 0.3:
            call("inspect_batch")
        supplier = rng.choice(["spot", "qualified", "backup"])
        order = {"qty": rng.randrange(60), "route": "cape", "supplier": supplier}
        call("place_order", rationale="r", contract_action="sign", contract_supplier=supplier, **order)
        call("place_order", rationale="r", qty=0)
    call("place_order", **ORDER)
    lines.append(f"{episode!r} {episode.cost} {episode.week}")
    return lines


@pytest.mark.parametrize("seed", [25, 58, 157, 170])
def test_twins_are_not_told_apart(world: World, seed: int, checks: Any) -> None:
    """Equal readings, other hidden states: whatever is shown is the same, byte for byte."""
    checks(seed == 25)
    tape = Tape.published(seed, world)
    twin = twin_of(tape, world, np.random.default_rng(seed))
    changed = [n for n in tape.states if not np.array_equal(tape.states[n], twin.states[n])]
    assert {"demand", "freight", "quality", "port", "supplier"} <= set(changed)
    one, other = (transcript(Episode(tape=t)) for t in (tape, twin))
    assert one == other
    assert one == transcript(Episode(seed))
    # paid reports do tell, which shows that the twins differ where it matters
    told = []
    for t in (tape, twin):
        episode = Episode(tape=t)
        told.append([])
        while not episode.done:
            told[-1].append((episode.buy_briefing()["regime"], episode.buy_audit()["band"]))
            episode.place_order("r", 0)
    assert told[0] != told[1]


def reachable(thing: Any, depth: int = 4) -> list[Any]:
    """Everything found by following public attributes, items and properties."""
    found, queue = [], [(thing, depth)]
    while queue:
        value, left = queue.pop()
        found.append(value)
        if left == 0 or isinstance(value, (str, bytes, int, float, type(None))):
            continue
        parts = [getattr(value, n) for n in dir(value) if not n.startswith("_") and n != "result"]
        parts += list(vars(value).values()) if hasattr(value, "__dict__") and value is thing else []
        parts += list(value.values()) if isinstance(value, dict) else []
        parts += list(value) if isinstance(value, (list, tuple)) else []
        queue += [(part, left - 1) for part in parts]
    return found


def test_nothing_public_leads_to_the_tape(tmp_path: Any) -> None:
    seed = 987654321
    episode = Episode(seed, journal=tmp_path / "j.jsonl")
    episode.place_order("r", 5, "suez", "spot")
    for value in reachable(episode):
        assert not isinstance(value, (Tape, World, np.ndarray))
        assert type(value).__module__ != "stocktake_jax.desk.books"
        assert str(seed) not in f"{value!r} {value!s}"
    shown = [json.dumps(episode.observe()), repr(episode), json.dumps(episode.buy_briefing())]
    shown += [refused(episode, "place_order", {"rationale": "r", "qty": seed}).replace(f"not {seed}", "")]
    assert not any(str(seed) in text for text in shown)
    for copier in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            copier(episode)


def test_what_is_returned_is_the_caller_s() -> None:
    episode = Episode(2)
    seen = episode.place_order("r", 9, "suez", "spot")
    before = json.dumps(seen)
    seen["pipeline"].clear()
    seen["contracts"][0]["end_week"] = 1
    seen["suppliers"].clear()
    seen["cost_breakdown"]["shipping"] = 0.0
    assert json.dumps(episode.observe()) == before


# -- schemas


def test_schemas_say_what_is_validated() -> None:
    """The JSON schema and the validation agree on every kind of value for every argument."""
    good = {
        "rationale": "r",
        "qty": 1,
        "weeks": 1,
        "route": "suez",
        "supplier": "spot",
        "contract_action": "sign",
        "contract_supplier": "spot",
        "contract_terms": "long",
    }
    trials = [None, True, -1, 0, 1, 5, 100, 101, 2**31 - 1, 2**31, 1.0, "", "5", "suez", "cape", "spot", "sign", "long"]
    python = {"integer": int, "string": str, "null": type(None)}
    assert list(TOOLS) == [
        "lock_freight",
        "expedite_air",
        "inspect_batch",
        "buy_briefing",
        "buy_audit",
        "place_order",
    ]
    for tool in TOOLS.values():
        schema = tool.schema()
        assert schema["additionalProperties"] is False and tool.description
        assert json.loads(json.dumps(schema)) == schema
        arguments = {a.name: good[a.name] for a in tool.arguments}
        assert tool.validate(arguments) == arguments
        for name, rule in schema["properties"].items():
            assert rule["description"]
            kinds = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
            for value in trials:
                fits = any(type(value) is python[k] for k in kinds) and value in rule.get("enum", [value])
                if fits and isinstance(value, int) and "integer" in kinds:
                    fits = rule["minimum"] <= value <= rule["maximum"]
                assert (tool.arguments[list(arguments).index(name)].problem(value) is None) == fits, (name, value)
            if name in schema["required"]:
                with pytest.raises(Refusal, match=f"{name} is missing"):
                    tool.validate({k: v for k, v in arguments.items() if k != name})
            else:
                assert tool.validate({k: v for k, v in arguments.items() if k != name})[name] is None


def test_tools_follow_the_world() -> None:
    world = World.from_toml("[logistics]\norder_cap = 30\nair_cap = 3\n[costs]\nbriefing = 12.5")
    specs = tools(world)
    assert specs["place_order"].schema()["properties"]["qty"]["maximum"] == 30
    assert "12.5" in specs["buy_briefing"].description
    episode = Episode(1, world)
    assert "from 0 to 30" in refused(episode, "place_order", ORDER | {"qty": 31})
    assert episode.expedite_air(9)["qty"] == 3
    assert episode.tools == specs
    assert dataclasses.is_dataclass(specs["place_order"])
