"""Who decides: the floor, the fair oracle, and the protocol that any other policy follows."""

from stocktake_jax.policies.base_stock import BaseStock, base_stock_level
from stocktake_jax.policies.oracle import Oracle, protocol_futures
from stocktake_jax.policies.protocol import BatchPolicy, Policy, Runs, Shown
from stocktake_jax.policies.rollout import Layout

__all__ = [
    "BaseStock",
    "BatchPolicy",
    "Layout",
    "Oracle",
    "Policy",
    "Runs",
    "Shown",
    "base_stock_level",
    "protocol_futures",
]
