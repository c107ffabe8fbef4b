"""What an agent meets: validation, arms, turns; and that nothing hidden is ever shown."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stocktake_jax.agents.prompt import ARMS, PERCENT
from stocktake_jax.agents.session import OVER, Answer, Session
from stocktake_jax.desk import Episode, Refusal
from stocktake_jax.desk.observation import readings_from
from stocktake_jax.evaluation.beliefs import split_rationale
from stocktake_jax.models import HORIZON, Tape, World
from tests.agents.conftest import Call, order, twin

SEED = 987654321  # a number that no text could hold by accident


def in_arm(arm: str, call: Call) -> Call:
    """A call of the rules arm in the words of another."""
    name, arguments = call
    arguments = dict(arguments)
    if name == "place_order" and arm == "belief":
        arguments |= dict.fromkeys(PERCENT.values(), 7)
    if arm == "anonymous" and arguments.get("route"):
        arguments["route"] = {"suez": "arran", "cape": "morrow"}[arguments["route"]]
    return name, arguments


def play_through(session: Session, calls: list[list[Call]]) -> list[Answer]:
    return [session.answer(*in_arm(session.arm, call)) for week in calls for call in week]


@pytest.mark.parametrize("arm", ARMS)
def test_a_scripted_episode_costs_the_same_in_every_arm(arm: str, calls: list[list[Call]]) -> None:
    session, plain = Session(Episode(3), arm), Session(Episode(3))
    answers, expected = play_through(session, calls), play_through(plain, calls)
    assert session.done and session.episode.cost == plain.episode.cost
    assert [a.ok for a in answers] == [a.ok for a in expected]
    assert answers[-1].text.endswith(OVER) and not any(a.text.endswith(OVER) for a in answers[:-1])
    assert all((a.data is None) != a.ok for a in answers)
    assert session.answer("place_order", {}).text == plain.answer("place_order", {}).text


def test_wrong_types_and_unknown_arguments_are_refused_with_the_right_call() -> None:
    session = Session(Episode(3))
    refused = session.answer("place_order", {"rationale": "x", "qty": "5", "via": "suez"})
    assert not refused.ok
    for part in (
        "place_order(rationale, qty, [route]",
        "unknown argument 'via'",
        "a whole number from 0 to 100, not '5'",
    ):
        assert part in refused.text
    for arguments in ([], "qty=5", 5, {1: 2}):
        assert not session.answer("place_order", arguments).ok
    assert session.episode.week == 0


def test_the_anonymous_arm_speaks_its_own_words_only(calls: list[list[Call]]) -> None:
    session = Session(Episode(3), "anonymous")
    refused = session.answer("place_order", {"rationale": "x", "qty": 5, "route": "suez", "supplier": "spot"})
    assert refused.text.endswith("route must be one of 'arran', 'morrow', or left out, not 'suez'")
    texts = [session.prompt, session.opening(), *(a.text for a in play_through(session, calls))]
    shown = "\n".join(texts[:2] + texts[3:])
    for name in ("suez", "bab_", "cape", "Suez", "Cape", "Red Sea"):
        assert name not in shown.replace("escape", "")
    assert '"arran_count"' in shown and "queued_at_arran" not in texts[0]


def test_the_rationale_is_kept_as_it_was_written() -> None:
    session = Session(Episode(3), "anonymous")
    session.call("place_order", {"rationale": "The Suez lane? Cape!", "qty": 0})
    while not session.done:
        session.call("place_order", {"rationale": "x", "qty": 0})
    assert session.episode.result()["weeks"][0]["rationale"] == "The Suez lane? Cape!"


def test_stated_probabilities_are_recorded_and_graders_do_not_see_them() -> None:
    session = Session(Episode(3), "belief")
    stated = dict(zip(PERCENT.values(), (0, 1, 50, 99, 100, 7), strict=True))
    while not session.done:
        session.call("place_order", {"rationale": "Port jammed.", "qty": 0} | stated)
    words, found = split_rationale(session.episode.result()["weeks"][5]["rationale"])
    assert words == "Port jammed."
    assert found == {"canal": 0.0, "supplier": 0.01, "demand": 0.5, "freight": 0.99, "port": 1.0, "quality": 0.07}


def test_an_empty_rationale_is_refused_under_strict_rules_in_the_belief_arm_too() -> None:
    session = Session(Episode(3, rules="strict"), "belief")
    stated = dict.fromkeys(PERCENT.values(), 1)
    assert "rationale is empty" in session.answer("place_order", {"rationale": " ", "qty": 0} | stated).text


def test_one_order_a_turn_and_nothing_after_it() -> None:
    session = Session(Episode(3))
    session.begin_turn()
    assert not session.answer("place_order", {"qty": 5}).ok  # a refused order does not use the turn up
    assert session.answer(*order(0)).ok
    for call in (order(1), ("lock_freight", {"weeks": 2}), ("buy_audit", {})):
        assert "new message" in session.answer(*call).text
    assert session.episode.week == 1
    session.begin_turn()
    assert session.answer("lock_freight", {"weeks": 2}).ok
    assert session.answer(*order(1)).ok


def test_a_resumed_session_opens_with_the_week_it_has_come_to(tmp_path: Any) -> None:
    path = tmp_path / "j.jsonl"
    session = Session(Episode(3, journal=path), "coached")
    session.call(*order(0))
    opening = session.opening()
    session.episode.close()
    assert Session(Episode.resume(path), "coached").opening() == opening


# -- nothing hidden is shown


@pytest.mark.parametrize("arm", ARMS)
def test_twin_tapes_give_the_same_text(arm: str, calls: list[list[Call]]) -> None:
    world = World.paper()
    kept = [[c for c in week if c[0] not in ("buy_briefing", "buy_audit")] for week in calls]
    for seed in (0, 157) if arm == "rules" else (157,):
        tape = Tape.published(seed, world)
        other = twin(tape, world)
        assert all(
            (np.asarray(tape.states[n]) != np.asarray(other.states[n])).any() for n in ("demand", "port", "supplier")
        )
        texts = []
        for one in (tape, other):
            session = Session(Episode(tape=one), arm)
            texts.append([session.prompt, session.opening(), *(a.text for a in play_through(session, kept))])
        assert texts[0] == texts[1]


@pytest.mark.parametrize("arm", ARMS)
def test_the_seed_is_shown_nowhere(arm: str, calls: list[list[Call]]) -> None:
    session = Session(Episode(SEED), arm)
    before_end = play_through(session, calls)[:-1]
    shown = [session.prompt, session.opening(), repr(session.episode), *(a.text for a in before_end)]
    assert str(SEED) not in "\n".join(shown) and "seed" not in "\n".join(shown).lower()


REGIMES = {r.name for f in World.paper().factors.values() for r in f.regimes} | {
    "promo_spike",
    "customs_hold",
    "out_of_control",
}


def malformed(rng: random.Random, depth: int = 0) -> Any:
    """Anything at all."""
    kinds = 13 if depth < 3 else 9
    match rng.randrange(kinds):
        case 0:
            return None
        case 1:
            return rng.choice([True, False])
        case 2:
            return rng.choice([-1, 0, 1, 20, 101, 10**30, -(10**400), 2**31, rng.randrange(-1000, 1000)])
        case 3:
            return rng.choice([0.5, -0.0, float("nan"), float("inf"), 1e308, 20.0])
        case 4:
            return "".join(rng.choice(string.printable) for _ in range(rng.randrange(40)))
        case 5:
            return rng.choice(
                ["suez", "SUEZ", "spot", "cape ", "qualified", "sign", "lapse", "short", "20", "\ud800", "\x00"]
            )
        case 6:
            return rng.choice([b"suez", 1 + 2j, object(), {1, 2}, range(3), np.int64(5), np.float32(5), np.array([1])])
        case 7:
            return "x" * rng.choice([1, 1000, 100_000])
        case 8:
            return rng.choice([(), [], {}])
        case 9 | 10:
            return [malformed(rng, depth + 1) for _ in range(rng.randrange(4))]
        case _:
            return {rng.choice(KEYS): malformed(rng, depth + 1) for _ in range(rng.randrange(8))}


KEYS = ["rationale", "qty", "route", "supplier", "contract_action", "contract_supplier", "contract_terms", "weeks"]
KEYS += ["seed", "tape", "__class__", "", "stress_port"]
NAMES = ["place_order", "lock_freight", "expedite_air", "inspect_batch", "buy_briefing", "buy_audit"]
NAMES += ["Place_Order", "__init__", "result", "observe", "", "eval"]


def fuzz(arm: str, count: int, checks: Callable[[bool], None]) -> None:
    """Malformed calls on an episode and on its twin, which shows the same and hides other states."""
    rng, world = random.Random(5), World.paper()

    def begin() -> tuple[Session, Session]:
        tape = Tape.published(SEED, world)
        return Session(Episode(SEED), arm), Session(Episode(tape=twin(tape, world)), arm)

    session, other = begin()
    refused, shown = 0, json.dumps(session.report())
    for number in range(count):
        checks(number < 500)
        if session.done:
            session, other = begin()
        tool = rng.choice(NAMES) if rng.random() < 0.8 else malformed(rng)
        if tool in ("buy_briefing", "buy_audit"):
            tool = "inspect_batch"
        arguments = (
            malformed(rng) if rng.random() < 0.5 else {k: malformed(rng, 2) for k in rng.sample(KEYS, rng.randrange(5))}
        )
        before = session.episode._desk().state
        answer = session.answer(tool, arguments)
        # Whatever it says can be said without the seed and the hidden states.
        assert answer == other.answer(tool, arguments)
        assert str(SEED) not in answer.text
        if answer.ok:
            shown = json.dumps(session.report())
            continue
        refused += 1
        assert session.episode._desk().state is before
        assert number % 10 or json.dumps(session.report()) == shown
        assert "\n" not in answer.text and len(answer.text) < 1500
        assert not [regime for regime in REGIMES if "_" in regime and regime in answer.text]
    assert refused > count * 0.8


@pytest.mark.parametrize("arm", ["rules", "anonymous", "belief"])
def test_malformed_calls_are_refused_alike_on_twin_tapes_and_change_nothing(arm: str, checks: Any) -> None:
    fuzz(arm, 2_000 if arm == "rules" else 500, checks)


@pytest.mark.slow
@pytest.mark.parametrize("arm", ARMS)
def test_ten_thousand_malformed_calls(arm: str, checks: Any) -> None:
    fuzz(arm, 10_000, checks)


def test_refusals_raise_and_answers_do_not() -> None:
    session = Session(Episode(3))
    with pytest.raises(Refusal):
        session.call("place_order", {})
    assert session.answer("place_order", {}) == Answer(False, session.answer("place_order", {}).text, None)
    assert readings_from(session.report())["demand"]["pos_units"] == 20
    assert HORIZON == 26
