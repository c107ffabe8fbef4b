"""The prompt: what it must say, what it must not, and its arms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stocktake_jax.agents.prompt import ARMS, NUDGE, PERCENT, RENAMED, arm_tools, prompt_hash, rename, system_prompt
from stocktake_jax.desk import TOOLS, Episode
from stocktake_jax.desk.tools import tools
from stocktake_jax.errors import InputError
from stocktake_jax.models import FACTORS, Tape, World

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


@pytest.mark.parametrize("rules", ["paper", "strict"])
@pytest.mark.parametrize("arm", ARMS)
def test_every_line_is_whole(arm: str, rules: str) -> None:
    """The source wraps its sentences: no space may be lost or doubled, no line broken, where two parts meet."""
    text = system_prompt(arm, rules=rules)
    assert text.isascii() and "  " not in text and "{" not in text and "\\" not in text
    for line in text.splitlines():
        assert line == line.strip()
        if not line or line.startswith("# "):
            continue
        assert line.endswith("."), line
        assert line.startswith("- ") or line[0].isupper(), line
        assert line.count("(") == line.count(")"), line
        assert not re.search(r"[a-z][.,;:][A-Za-z]|[.,;:]{2}| [.,;:)]|\( ", line), line
    assert not re.search(r"\b([A-Za-z]+) \1\b", text)


def test_what_is_told_of_the_world_is_true_of_it() -> None:
    """Where a sentence and the world's parameters say the same, they must agree."""
    world, text = World.paper(), system_prompt()
    canal, supplier, demand, freight, port = world.canal, world.supplier, world.demand, world.freight, world.port

    def mean(factor: Any, channel: str, regime: str, age: int = 0) -> float:
        row = next(c for c in factor.channels() if c.name == channel)
        return float(np.asarray(row.mean)[factor.index(regime, age)])

    assert "either kind and a false alarm show the same readings" in text
    first = [canal.state_bands[canal.index(*state)] for state in (("short", 0), ("long", 0), ("false_alarm", 0))]
    assert len(set(first)) == 1
    assert "wobbling (ships a good half" in text and 0.5 < mean(supplier, "realized_fill", "wobbling") < 0.75
    assert "degraded (ships next to nothing" in text and mean(supplier, "realized_fill", "degraded") < 0.2
    bands = supplier.state_bands
    assert "the first week of degraded looks like wobbling" in text
    assert (
        bands[supplier.index("degraded", 0)]
        == bands[supplier.index("wobbling")]
        != bands[supplier.index("degraded", 1)]
    )
    assert "A promotion and a lift begin alike" in text
    assert mean(demand, "pos_units", "promo_spike") == mean(demand, "pos_units", "seasonal_lift")
    assert "a spike begins like tightening" in text
    assert mean(freight, "freight_index", "spike") == mean(freight, "freight_index", "tightening")
    assert "several times the normal rate" in text and mean(freight, "freight_index", "spike", 1) > 2
    assert "The readings of both are alike" in text
    for age in (0, 1):
        assert mean(port, "berth_wait", "congested", age) == mean(port, "berth_wait", "customs_hold", age)


def test_an_order_pays_the_multiplier_of_the_week_that_it_begins() -> None:
    assert "An order leaves in the week that it begins, and pays that week's freight multiplier." in system_prompt()
    episode = Episode(24)
    for _ in range(6):
        seen = episode.place_order("x", 20, "cape", "spot")
        shipped = round(20 * seen["realized_fill"])
        paid = 6 * seen["freight_index"] / 100 - 1.5
        assert seen["cost_breakdown"]["shipping"] == pytest.approx(shipped * paid, rel=0.01)


def test_units_that_spot_leaves_out_are_billed_from_watch_on(checks: Callable[[bool], None]) -> None:
    assert "with the canal at watch, in a false alarm or disrupted" in system_prompt()
    billed: set[str] = set()
    free: set[str] = set()
    for seed in range(30):
        checks(seed < 2)
        regimes = Tape.published(seed).regimes(World.paper())["canal"]
        episode = Episode(seed)
        while not episode.done and "spot" not in episode.observe()["contract_open"]:
            seen = episode.place_order("x", 20, "suez", "spot")
            if seen["realized_fill"] < 0.9:
                (billed if seen["cost_breakdown"]["couple"] else free).add(regimes[seen["week"]])
    assert billed == {"watch", "false_alarm", "disruption"} and free == {"calm", "recovery"}


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
    # The report shows that backup needs a week; whether it does is a matter of the rules.
    assert "onboard_lead is shown but delays nothing" in paper
    assert "backup takes its first order one week after" in strict and "onboard_lead" not in strict


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
