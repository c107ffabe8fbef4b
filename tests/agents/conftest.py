"""Scripts of calls and hand-made tapes for the agents' tests."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stocktake_jax.models import HORIZON, Tape, World

EXAMPLES = Path(__file__).parent / "rationales.jsonl"

FEW = (24, 157, 99, 1)
FUTURES = 24
"""Seeds and futures that the scripted agents play with in these tests: one size, so that planners are compiled once."""

Call = tuple[str, dict[str, Any]]


def order(week: int, **more: Any) -> Call:
    """A plain order; what it says of the week is true of any seed."""
    base = {"rationale": f"Week {week}: as planned.", "qty": 20, "route": "suez", "supplier": "spot"}
    return ("place_order", base | more)


def scripted_calls() -> list[list[Call]]:
    """26 weeks of calls that use every tool, are refused now and then, and do not depend on what they see."""
    weeks: list[list[Call]] = [[order(week)] for week in range(HORIZON)]
    sign = {"contract_action": "sign", "contract_supplier": "qualified", "contract_terms": "long"}
    weeks[0] = [("place_order", {"qty": 5}), order(0, supplier="qualified", **sign)]
    weeks[1] = [("buy_briefing", {}), ("buy_audit", {}), order(1, supplier="qualified", route="cape", qty=35)]
    weeks[2] = [("lock_freight", {"weeks": "4"}), ("lock_freight", {"weeks": 4}), order(2, supplier="qualified")]
    weeks[3] = [("expedite_air", {"qty": 50}), ("expedite_air", {"qty": 7}), order(3, qty=0, route=None, supplier=None)]
    weeks[4] = [("inspect_batch", {}), ("inspect_batch", {}), order(4, qty=101), order(4, supplier="qualified")]
    weeks[5] = [("no_such_tool", {}), order(5, supplier="backup"), order(5, supplier="qualified", extra=1)]
    weeks[5] += [order(5, supplier="qualified")]
    back = {"contract_action": "sign", "contract_supplier": "backup"}
    weeks[6] = [order(6, supplier="backup", **back)]
    for week in range(7, HORIZON):
        weeks[week] = [order(week, supplier="qualified", qty=(7 * week) % 45)]
    return weeks


@pytest.fixture
def calls() -> list[list[Call]]:
    return scripted_calls()


def twin(tape: Tape, world: World) -> Tape:
    """A tape with the same readings and the same effects on the books, and other hidden states wherever possible."""
    states = {name: np.array(column) for name, column in tape.states.items()}
    ages = {name: np.array(column) for name, column in tape.ages.items()}
    # Demand and freight act through their values alone: any state will do.
    for name in ("demand", "freight", "quality"):
        count = len(world.factors[name].states)
        states[name] = (states[name] + 1 + np.arange(len(states[name]))) % count
        ages[name] = ages[name] + 3
    port, supplier = world.port, world.supplier
    swap_port = {port.index("congested", 1): port.index("customs_hold", 1), port.index("clear"): port.index("building")}
    swap_spot = {
        supplier.index("wobbling"): supplier.index("degraded", 0),
        supplier.index("reliable"): supplier.index("wobbling"),
    }
    for name, swap in (("port", swap_port), ("supplier", swap_spot)):
        both = swap | {b: a for a, b in swap.items()}
        states[name] = np.array([both.get(int(s), int(s)) for s in states[name]], np.int32)
    return dataclasses.replace(tape, states={n: s.astype(np.int32) for n, s in states.items()}, ages=ages)
