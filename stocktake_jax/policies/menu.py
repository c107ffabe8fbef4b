"""The published oracle's menu: a few orders, and each lever where the belief calls for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from stocktake_jax.inference import Belief
from stocktake_jax.models import World
from stocktake_jax.policies.posterior import by_state
from stocktake_jax.policies.surrogate import BACKUP, CAPE, NO_ROUTE, QUALIFIED, SPOT, SUEZ, Candidate

COVER_WEEKS = (4, 6)
"""Orders raise the inventory position to this many weeks of expected demand."""

AIR_UNITS = 20
FREIGHT_RISK, PORT_RISK, QUALITY_RISK = 0.3, 0.3, 0.5
"""Posterior risks above which a lever enters the menu."""


class _Slot(NamedTuple):
    cover: int
    route: int
    supplier: int
    lock: bool
    air: bool
    inspect: bool


def _slots() -> list[_Slot]:
    orders = [(-1, NO_ROUTE, -1)] + [
        (k, route, supplier)
        for k in range(len(COVER_WEEKS))
        for route in (SUEZ, CAPE)
        for supplier in (QUALIFIED, SPOT, BACKUP)
    ]
    levers = itertools.product((False, True), repeat=3)
    return [_Slot(*order, *lever) for order, lever in itertools.product(orders, list(levers))]


_SLOTS = _slots()
MENU_WIDTH = len(_SLOTS)
"""Slots of the full menu: 13 orders times 8 sets of levers; a week's menu is the valid ones, in this order."""


class Risks(eqx.Module):
    """What the menu asks of a belief: expected demand, and the probabilities that open a lever."""

    demand: Float[Array, "*batch"]
    freight: Float[Array, "*batch"]
    port: Float[Array, "*batch"]
    quality: Float[Array, "*batch"]


def risks(world: World, belief: Belief) -> Risks:
    """Expected demand of the week's band, P(tightening or spike), P(port blocked), P(out of control)."""
    p = belief.posteriors
    dtype = p["demand"].dtype

    def mass(factor: str, weights: Callable[[World], Any]) -> Array:
        return jnp.matmul(p[factor], jnp.asarray(by_state(world, weights), dtype), precision="highest")

    return Risks(
        mass("demand", lambda w: w.demand.means),
        mass("freight", lambda w: w.freight.mask(label="tightening") | w.freight.mask(label="spike")),
        mass("port", lambda w: w.port.stress_mask),
        mass("quality", lambda w: w.quality.mask(label="out_of_control")),
    )


def menu(
    r: Risks,
    position: Float[Array, ""],
    live: Bool[Array, " supplier"],
    lands_next: Bool[Array, ""],
    cap: int,
) -> tuple[Candidate, Bool[Array, " slot"]]:
    """The candidates of a week, one per slot, and which slots are on the menu.

    Args:
        r: see `risks`.
        position: inventory position, units.
        live: who is under contract.
        lands_next: whether some shipment is due next week.
        cap: the largest order.
    """
    slots = [np.array(x) for x in zip(*_SLOTS, strict=True)]
    cover, route, supplier, lock, air, inspect = slots
    wanted = jnp.round(jnp.asarray(COVER_WEEKS, position.dtype) * r.demand) - position
    sizes = jnp.clip(wanted, 0.0, float(cap)).astype(jnp.int32)
    # An order of zero units is the first slot; a size that repeats is listed once.
    offered = (sizes > 0) & jnp.array([True, *[False] * (len(COVER_WEEKS) - 1)])
    for k in range(1, len(COVER_WEEKS)):
        offered = offered.at[k].set((sizes[k] > 0) & jnp.all(sizes[k] != sizes[:k]))
    qty = jnp.where(jnp.asarray(cover >= 0), sizes[np.maximum(cover, 0)], 0)
    can_source = live.at[QUALIFIED].set(True)
    order_ok = jnp.where(
        jnp.asarray(cover >= 0), offered[np.maximum(cover, 0)] & can_source[np.maximum(supplier, 0)], True
    )
    lever_ok = (
        (jnp.asarray(~lock) | (r.freight > FREIGHT_RISK))
        & (jnp.asarray(~air) | (r.port > PORT_RISK))
        & (jnp.asarray(~inspect) | ((r.quality > QUALITY_RISK) & lands_next))
    )
    sign = jnp.asarray(supplier == QUALIFIED) & ~live[QUALIFIED]
    candidates = Candidate(
        qty,
        jnp.asarray(route, jnp.int32),
        jnp.asarray(supplier, jnp.int32),
        sign,
        jnp.asarray(lock),
        jnp.asarray(air * AIR_UNITS, jnp.int32),
        jnp.asarray(inspect),
    )
    return candidates, order_ok & lever_ok


def compact(valid: Bool[Array, " slot"]) -> tuple[Int[Array, " slot"], Int[Array, ""]]:
    """The valid slots' indices moved to the front in their order, and how many there are."""
    order = jnp.argsort(~valid, stable=True)
    return order.astype(jnp.int32), jnp.sum(valid).astype(jnp.int32)
