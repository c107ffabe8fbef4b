"""The oracle's menu and surrogate in plain Python, from their description alone, to test the real ones against."""

from __future__ import annotations

import gzip
import json
import math
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SUPPLIERS = ("qualified", "spot", "backup")
STORM = {"watch", "false_alarm", "disruption"}
DEMAND = {"normal": 20, "promo_spike": 26, "structural_decline": 14}
RATE = {"slack": 0.7, "normal": 1.0, "tightening": 1.8}
FILL = {"reliable": 0.95, "wobbling": 0.6, "degraded": 0.15, "defunct": 0.0}
DEFECT = {"in_control": 0.001, "drifting": 0.02, "out_of_control": 0.06}


def menu(
    expected: float, freight: bool, port: bool, quality: bool, position: int, live: set[str], lands_next: bool
) -> list[dict[str, Any]]:
    """All candidates of a week; the three flags say whether a risk is above its threshold."""
    quantities = [0]
    for cover in (4, 6):
        quantity = min(max(round(cover * expected) - position, 0), 100)
        if quantity not in quantities:
            quantities.append(quantity)
    out = []
    for quantity in quantities:
        orders = [(route, name) for route in ("suez", "cape") for name in SUPPLIERS if name in live | {"qualified"}]
        for route, supplier in orders if quantity else [(None, None)]:
            for lock in (False, True)[: 1 + freight]:
                for air in (0, 20)[: 1 + port]:
                    for inspect in (False, True)[: 1 + (quality and lands_next)]:
                        out.append(
                            {
                                "qty": quantity,
                                "route": route,
                                "supplier": supplier,
                                "sign_qualified": supplier == "qualified" and "qualified" not in live,
                                "lock_freight": lock,
                                "air_qty": air,
                                "inspect": inspect,
                            }
                        )
    return out


def cost(
    week: int,
    inventory: int,
    pipeline: list[list[int]],
    live: set[str],
    future: dict[str, list[list[Any]]],
    c: dict[str, Any],
) -> float:
    """What a candidate costs on one future (factor -> state of weeks week + 1 .. 26), held to order-up-to."""
    live = live | ({"qualified"} if c["sign_qualified"] else set())
    later = next(name for name in SUPPLIERS if name in live)
    cape = c["route"] == "cape"
    lead, base = (4, 6.0) if cape else (3, 4.0)
    z = statistics.NormalDist().inv_cdf(20 / 21)
    weeks = 26 - week
    total = 40.0 * c["inspect"] + 15.0 * c["air_qty"] + 4.0 * weeks * (len(live) >= 2)
    ships = [list(ship) for ship in pipeline]
    shelf = inventory

    def rate(t: int) -> float:
        regime, *age = future["freight"][t]
        return (1.8 if age == [0] else 4.0) if regime == "spike" else RATE[regime]

    for t in range(weeks):
        now = week + 1 + t
        canal, supplier, port, quality = (future[f][t][0] for f in ("canal", "supplier", "port", "quality"))
        regime, *age = future["demand"][t]
        demand = (26 if age == [0] else 30) if regime == "seasonal_lift" else DEMAND[regime]
        if t == 0:
            qty, source = c["qty"], c["supplier"]
        else:
            target = round(demand * (lead + 1) + z * 4 * math.sqrt(lead + 1))
            qty, source = min(max(target - shelf - sum(units for units, _ in ships), 0), 100), later
        shipped = round(qty * FILL[supplier]) if source == "spot" else qty
        if qty:
            delta = {"qualified": 1.0, "spot": -1.5, "backup": 0.3}[source]
            total += shipped * (base * rate(0 if c["lock_freight"] and t < 4 else t) + delta)
            total += 60 * (qty - shipped) * (canal in STORM)
            ships.append([shipped, now + lead + (not cape and canal == "disruption")])
        shelf += c["air_qty"] if t == 0 else 0
        for ship in [s for s in ships if s[1] == now]:
            if port in ("congested", "customs_hold"):
                ship[1] += 1
                total += 2 * ship[0]
            else:
                ships.remove(ship)
                lost = round(ship[0] * DEFECT[quality] * (0.3 if t == 0 and c["inspect"] else 1))
                total += 15 * lost
                shelf += ship[0] - lost
        served = min(shelf, demand)
        shelf -= served
        total += 20 * (demand - served) + shelf + sum(units for units, _ in ships)
    return total


@pytest.fixture(scope="session")
def plain() -> Any:
    """`plain.menu` and `plain.cost`."""
    return SimpleNamespace(menu=menu, cost=cost)


@pytest.fixture(scope="session")
def rows() -> list[dict[str, Any]]:
    """The reference cases of the surrogate."""
    path = Path(__file__).parent.parent / "data" / "surrogate.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
