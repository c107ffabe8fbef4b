"""The prompt: what it must say, what it must not, and its arms."""

from __future__ import annotations

import json
import re

import pytest

from stocktake_jax.agents.prompt import ARMS, NUDGE, PERCENT, RENAMED, arm_tools, prompt_hash, rename, system_prompt
from stocktake_jax.desk import TOOLS
from stocktake_jax.desk.tools import tools
from stocktake_jax.errors import InputError
from stocktake_jax.models import FACTORS, World

REAL_NAMES = re.compile(r"suez|\bbab\b|mandeb|red sea|(?<![a-z])cape(?![a-z])|houthi|asia|europe", re.IGNORECASE)


def everything(arm: str) -> str:
    specs = [[t.name, t.description, t.schema()] for t in arm_tools(TOOLS, arm).values()]
    return system_prompt(arm) + json.dumps(specs)


@pytest.mark.parametrize("arm", ARMS)
def test_every_tool_factor_price_and_channel_is_told(arm: str) -> None:
    text = system_prompt(arm)
    names = [*TOOLS, *FACTORS, "contract_action", "otif", "realized_fill", "pos_units", "berth_wait", "aql_result"]
    assert [name for name in names if name not in text] == []
    for price in ("15 each", "costs 40", "costs 30", "costs 25", "20 for each unit of demand", "60 for each unit"):
        assert price in text
    assert "26 weeks" in text and "0 to 100 units" in text


@pytest.mark.parametrize("arm", ["rules", "belief", "anonymous"])
def test_no_advice_and_no_worked_example(arm: str) -> None:
    text = system_prompt(arm).lower()
    for word in (
        "you should",
        "recommend",
        "strategy",
        "for example",
        "e.g.",
        "wise",
        "best to",
        "tip:",
        "safety stock",
    ):
        assert word not in text


def test_prices_come_from_the_world_that_is_played_and_hidden_parameters_do_not() -> None:
    dear = World.paper().replace({"costs.air": 99.5, "logistics.order_cap": 55})
    assert "99.5 each" in system_prompt("rules", dear) and "0 to 55 units" in system_prompt("rules", dear)
    wild = World.paper().replace({"port.congest_persist": 0.5, "port.wait_blocked": 30.0, "canal.watch_onset": 0.5})
    assert system_prompt("rules", wild) == system_prompt()
    assert prompt_hash("rules", wild) == prompt_hash()


def test_the_hash_covers_prompt_tools_rules_and_arm() -> None:
    hashes = {prompt_hash(arm, rules=rules) for arm in ARMS for rules in ("paper", "strict")}
    assert len(hashes) == 2 * len(ARMS)
    assert prompt_hash("rules", World.paper().replace({"costs.audit": 26.0})) not in hashes
    assert prompt_hash() == prompt_hash("rules", World.paper(), "paper")
    assert NUDGE not in system_prompt()


def test_strict_rules_are_told_where_they_differ() -> None:
    paper, strict = system_prompt(), system_prompt(rules="strict")
    assert "not billed" in paper and "bills its break fee" in strict
    assert "lapse ends all of them" in strict and "leaves a live contract as it is" in paper


def test_the_anonymous_arm_names_no_real_place() -> None:
    assert REAL_NAMES.search(everything("rules"))
    assert not REAL_NAMES.search(everything("anonymous"))
    assert len(system_prompt("anonymous").split()) == pytest.approx(len(system_prompt().split()), abs=5)


def test_renaming_goes_through_keys_values_and_words() -> None:
    seen = {"suez_count": 70, "rows": [{"status": "queued_at_suez"}, "the Cape, the Suez Canal; escape, landscape"]}
    assert rename(seen) == {
        "arran_count": 70,
        "rows": [{"status": "queued_at_arran"}, "the Morrow, the Arran Canal; escape, landscape"],
    }
    assert set(RENAMED) == {"suez", "bab", "cape"}


def test_the_belief_arm_asks_for_a_probability_of_each_factor() -> None:
    spec = arm_tools(TOOLS, "belief")["place_order"]
    assert set(PERCENT.values()) <= set(spec.schema()["required"])
    stated = dict.fromkeys(PERCENT.values(), 50)
    assert spec.validate({"rationale": "x", "qty": 0} | stated)["stress_port"] == 50
    for wrong in (101, -1, 0.5, "50", True, None):
        with pytest.raises(InputError, match="stress_port must be a whole number from 0 to 100"):
            spec.validate({"rationale": "x", "qty": 0} | stated | {"stress_port": wrong})
    assert "Under stress means" in system_prompt("belief")


def test_other_arms_leave_the_tools_alone() -> None:
    for arm in ("rules", "coached"):
        assert arm_tools(TOOLS, arm) == TOOLS
    assert arm_tools(tools(World.paper()), "anonymous").keys() == TOOLS.keys()
    assert "(1) repeat what you believed" in system_prompt("coached")


def test_an_unknown_arm_is_refused() -> None:
    with pytest.raises(InputError, match="rules, belief, coached, anonymous, not 'faithful'"):
        system_prompt("faithful")
