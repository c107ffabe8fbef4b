"""The floor: a base-stock policy that reads no symptom and uses no lever (paper, section 4 and Appendix B)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from stocktake_jax.desk import Decision, Episode
from stocktake_jax.desk.contracts import QUALIFIED
from stocktake_jax.models import Readings, World
from stocktake_jax.policies.protocol import Runs, Shown

SIGN = 1


def base_stock_level(world: World) -> int:
    """S = round(mean L + z sd sqrt(L)) units, L being the Suez lead plus a week of review, z the newsvendor's."""
    lead = world.logistics.lead_suez + 1
    stockout, holding = float(world.costs.stockout), float(world.costs.holding)
    z = statistics.NormalDist().inv_cdf(stockout / (stockout + holding))
    return round(float(world.logistics.mean_demand) * lead + z * float(world.logistics.demand_sd) * math.sqrt(lead))


class BaseStock:
    """Orders up to a fixed level every week, via Suez, from the qualified supplier, which it signs in week 0.

    It is a `Policy` and a `BatchPolicy`.
    """

    def __init__(self, world: World | None = None) -> None:
        world = world or World.paper()
        self.name = "floor"
        self.level, self.cap = base_stock_level(world), world.logistics.order_cap

    def reset(self, replication: int) -> None:
        """Nothing to forget."""

    def act(self, observation: Mapping[str, Any], desk: Episode) -> None:
        """See `Policy.act`."""
        qty = min(max(self.level - observation["inventory_position"], 0), self.cap)
        sign = {"contract_action": "sign", "contract_supplier": "qualified"} if observation["week"] == 0 else {}
        desk.place_order(f"Order up to {self.level}, as every week.", qty, "suez", "qualified", **sign)

    def begin(self, runs: Runs) -> None:
        """See `BatchPolicy.begin`."""

    def decide(
        self, memory: None, week: int, readings: Readings, shown: Shown
    ) -> tuple[None, Decision, dict[str, np.ndarray]]:
        """See `BatchPolicy.decide`."""
        qty = np.clip(self.level - np.asarray(shown.position), 0, self.cap)
        sign = {"action": SIGN, "contract_supplier": QUALIFIED} if week == 0 else {}
        return memory, Decision.make(qty=qty, route=0, supplier=QUALIFIED, **sign), {}
