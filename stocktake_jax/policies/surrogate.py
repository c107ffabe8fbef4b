"""The oracle's surrogate: what a candidate decision would cost on one sampled future, held to a base-stock continuation.

`cost_of` is the definition, and what every fast path runs. What depends on the future alone is worked out once per
future by `outlook_of`, not once per candidate.

Time here is relative: week 0 is the first week that the decision touches, and a future has `weeks` of them.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from stocktake_jax.models import FACTORS, World
from stocktake_jax.policies.posterior import draws_of

QUALIFIED, SPOT, BACKUP = 0, 1, 2
SUEZ, CAPE, NO_ROUTE = 0, 1, -1
LOCK_WEEKS = 4
"""Weeks of the freight lock on the oracle's menu."""


class Candidate(eqx.Module):
    """One decision on the menu; supplier and route are -1 if nothing is ordered."""

    qty: Int[Array, "*batch"]
    route: Int[Array, "*batch"]
    supplier: Int[Array, "*batch"]
    sign: Bool[Array, "*batch"]
    lock: Bool[Array, "*batch"]
    air: Int[Array, "*batch"]
    inspect: Bool[Array, "*batch"]


class Situation(eqx.Module):
    """What the planner sees of the desk.

    Attributes:
        inventory: units on the shelf.
        arriving: (register,) units at sea by the week in which they are due, relative.
        losses: (register, quality regime) units that would be lost to defects if all that is due in a week landed under a
            regime: ships are rounded one by one, so this cannot be had from their sum.
        inspected: (quality regime,) the same for what is due in the first week, if it is inspected.
        live: (supplier,) who is under contract now.
    """

    inventory: Float[Array, "*batch"]
    arriving: Int[Array, "*batch register"]
    losses: Int[Array, "*batch register regime"]
    inspected: Int[Array, "*batch regime"]
    live: Bool[Array, "*batch supplier"]


class Outlook(eqx.Module):
    """Sampled futures, in the terms of the books.

    The axes are (week, future), or without the future axis for the one future that `cost_of` takes. What is said of
    things due goes on for some weeks beyond the last, where nothing waits and nothing is lost.

    Attributes:
        demand, rate, fill: mean demand, mean multiplier, mean fill of spot.
        crisis: whether the canal makes a shortfall of spot a crisis.
        blocked: whether the port holds what is due.
        late: whether a ship that leaves via Suez takes a week more.
        hold: (due) what a unit due in the week costs from week 0 until it lands, at sea and held by the port.
        defect: (due) the defect fraction with which it lands; zero if it does not before the end.
        due, lost: (register) units at sea now that will land, and that defects will take, by week due.
        lost_inspected: units that defects will take from the first week's arrivals, if these are inspected.
        fixed: what the units at sea now will cost whatever is decided.
    """

    demand: Float[Array, "week *future"]
    rate: Float[Array, "week *future"]
    fill: Float[Array, "week *future"]
    crisis: Bool[Array, "week *future"]
    blocked: Bool[Array, "week *future"]
    late: Bool[Array, "week *future"]
    hold: Float[Array, "due *future"]
    defect: Float[Array, "due *future"]
    due: Int[Array, "register *future"]
    lost: Int[Array, "register *future"]
    lost_inspected: Int[Array, "*future"]
    fixed: Float[Array, "*future"]


class Tables(eqx.Module):
    """What the surrogate needs of a world, by state and by price."""

    demand: Float[Array, " demand_state"]
    rate: Float[Array, " freight_state"]
    fill: Float[Array, " supplier_state"]
    crisis: Bool[Array, " canal_state"]
    closed: Bool[Array, " canal_state"]
    blocked: Bool[Array, " port_state"]
    defect: Float[Array, " regime"]
    regime: Int[Array, " quality_state"]
    base: Float[Array, " route"]
    delta: Float[Array, " supplier"]
    stockout: Float[Array, ""]
    holding: Float[Array, ""]
    in_transit: Float[Array, ""]
    demurrage: Float[Array, ""]
    rework: Float[Array, ""]
    short: Float[Array, ""]
    dual_source: Float[Array, ""]
    inspection: Float[Array, ""]
    air: Float[Array, ""]
    passed: Float[Array, ""]
    safety: Float[Array, " route"]
    cap: int = eqx.field(static=True)
    leads: tuple[int, int] = eqx.field(static=True)

    @property
    def register(self) -> int:
        """Weeks ahead within which everything at sea is due: Suez may take one more than its lead."""
        return max(self.leads[SUEZ] + 1, self.leads[CAPE])


_BY_STATE = ("demand", "rate", "fill", "crisis", "closed", "blocked", "defect")
"""Tables that learned parameters change, or that have an entry a state; the others are prices, which are known."""


def safety_factor(stockout: Any, holding: Any) -> Any:
    """z of the newsvendor's critical ratio, stockout / (stockout + holding)."""
    return jax.scipy.special.ndtri(jnp.asarray(stockout) / (jnp.asarray(stockout) + jnp.asarray(holding)))


def tables(world: World, dtype: Any = jnp.float32) -> Tables:
    """The surrogate's tables of a world, at a precision; of a posterior, whose states are (draw, state)."""
    draws = draws_of(world)
    if draws is not None:
        each = jax.vmap(lambda w: tables(w, dtype))(world.cast(dtype))
        flat = {name: getattr(each, name).reshape(-1) for name in _BY_STATE}
        # The regimes of a draw follow those of the draw before.
        regimes = each.defect.shape[1] * jnp.arange(draws, dtype=jnp.int32)[:, None]
        flat["regime"] = (each.regime + regimes).reshape(-1)
        prices = jax.tree.map(lambda x: x[0], each)
        return dataclasses.replace(prices, **flat)
    w, costs, logistics = world, world.costs, world.logistics
    leads = (logistics.lead_suez, logistics.lead_cape)

    def real(x: Any) -> Array:
        return jnp.asarray(x, dtype)

    supplier = w.supplier.by_regime(
        reliable=w.supplier.fill_reliable,
        wobbling=w.supplier.fill_wobbling,
        degraded=w.supplier.fill_degraded,
        defunct=w.supplier.fill_defunct,
    )
    z = safety_factor(real(costs.stockout), real(costs.holding))
    return Tables(
        demand=real(w.demand.means),
        rate=real(w.freight.means),
        fill=real(supplier),
        crisis=jnp.asarray(w.canal.mask(bands=("watch", "crash", "blockage", "crisis"))),
        closed=jnp.asarray(w.canal.mask(label="disruption")),
        blocked=jnp.asarray(w.port.stress_mask),
        defect=jnp.stack(
            [real(x) for x in (w.quality.defect_control, w.quality.defect_drifting, w.quality.defect_out)]
        ),
        regime=jnp.asarray([w.quality.labels.index(r.label) for r in w.quality.state_regimes], jnp.int32),
        base=jnp.stack([real(costs.base_suez), real(costs.base_cape)]),
        delta=jnp.stack([real(costs.delta_qualified), real(costs.delta_spot), real(costs.delta_backup)]),
        stockout=real(costs.stockout),
        holding=real(costs.holding),
        in_transit=real(costs.in_transit),
        demurrage=real(costs.demurrage),
        rework=real(costs.rework),
        short=real(costs.crisis),
        dual_source=real(costs.dual_source),
        inspection=real(costs.inspection),
        air=real(costs.air),
        passed=real(logistics.defects_passed),
        safety=jnp.stack([z * real(logistics.demand_sd) * real(np.sqrt(lead + 1)) for lead in leads]),
        cap=logistics.order_cap,
        leads=leads,
    )


def situation(
    t: Tables, inventory: Array, units: Int[Array, " ship"], due: Int[Array, " ship"], live: Bool[Array, " supplier"]
) -> Situation:
    """The planner's view of the desk: `due` is each ship's week of arrival as shown, relative to next week."""
    real = units.astype(t.demand.dtype)
    loss = jnp.round(real[:, None] * t.defect[None, :]).astype(jnp.int32)
    inspected = jnp.round(real[:, None] * (t.defect * t.passed)[None, :]).astype(jnp.int32)
    hit = due[None, :] == jnp.arange(t.register)[:, None]
    return Situation(
        inventory.astype(t.demand.dtype),
        jnp.sum(jnp.where(hit, units[None, :], 0), axis=1),
        jnp.sum(jnp.where(hit[:, :, None], loss[None], 0), axis=1),
        jnp.sum(jnp.where(hit[0][:, None], inspected, 0), axis=0),
        live,
    )


def outlook_of(t: Tables, desk: Situation, states: Int[Array, "week factor future"], weeks: Int[Array, ""]) -> Outlook:
    """Sampled futures in the terms of the books.

    Args:
        t: the world's tables.
        desk: what is at sea now.
        states: state index of each factor, in their fixed order, in each relative week; weeks beyond the end are not read.
        weeks: how many weeks there are until the end.
    """
    length, _, futures = states.shape
    dtype, pad = t.demand.dtype, t.register + 1

    # Going back in time: how many weeks something due this week still waits for the port, and the quality regime under
    # which it lands (-1: not before the end). With these, all that a ship will cost is known when it leaves. A loop, so
    # that the weeks beyond the end cost nothing.
    def back(step: Array, carry: Any) -> Any:
        h = weeks - 1 - step
        now = dict(zip(FACTORS, states[h].astype(jnp.int32), strict=True))
        blocked = t.blocked[now["port"]]
        week = {
            "demand": t.demand[now["demand"]],
            "rate": t.rate[now["freight"]],
            "fill": t.fill[now["supplier"]],
            "crisis": t.crisis[now["canal"]],
            "late": t.closed[now["canal"]],
            "blocked": blocked,
            "wait": jnp.where(blocked, carry["wait"][h + 1] + 1.0, 0.0),
            "lands": jnp.where(blocked, carry["lands"][h + 1], t.regime[now["quality"]]),
        }
        return {name: series.at[h].set(week[name]) for name, series in carry.items()}

    def empty(rows: int, kind: Any) -> Array:
        return jnp.zeros((rows, futures), kind)

    series = {name: empty(length, dtype) for name in ("demand", "rate", "fill")}
    series |= {name: empty(length, bool) for name in ("crisis", "late", "blocked")}
    series |= {"wait": empty(length + pad, dtype), "lands": empty(length + pad, jnp.int32) - 1}
    series = jax.lax.fori_loop(0, weeks, back, series)
    wait, lands, blocked = series.pop("wait"), series.pop("lands"), series["blocked"]

    under = lands[: t.register]
    lost = jnp.where(under >= 0, jnp.take_along_axis(desk.losses, jnp.maximum(under, 0), axis=1), 0)
    arriving = desk.arriving[:, None]
    at_sea = jnp.minimum(jnp.arange(length + pad), weeks).astype(dtype)[:, None]
    hold = t.in_transit * at_sea + (t.in_transit + t.demurrage) * wait
    return Outlook(
        **series,
        hold=hold,
        defect=jnp.where(lands >= 0, t.defect[lands], 0.0),
        due=arriving - lost,
        lost=lost,
        lost_inspected=jnp.where(blocked[0], lost[0], desk.inspected[jnp.maximum(under[0], 0)]),
        fixed=jnp.sum(arriving.astype(dtype) * hold[: t.register] + t.rework * lost.astype(dtype), axis=0),
    )


def _pack(units: Array, lost: Array) -> Int[Array, "..."]:
    """Two whole numbers below 2^15 in one: half the registers to carry through the weeks. They add as pairs do."""
    return units.astype(jnp.int32) + (lost.astype(jnp.int32) << 16)


def _by_lead(cases: list[tuple[int, Array]]) -> dict[int, Array]:
    """Lead time to where it holds; cases of one lead, known when the program is compiled, are joined."""
    out: dict[int, Array] = {}
    for lead, where in cases:
        out[lead] = out[lead] | where if lead in out else where
    return out


def cost_of(
    t: Tables, desk: Situation, candidate: Candidate, future: Outlook, weeks: Int[Array, ""]
) -> Float[Array, ""]:
    """What a candidate costs on one future, from the first week it touches to the end.

    The first week executes the candidate; later weeks order up to round(d (L + 1) + z sd sqrt(L + 1)) by its route
    (Suez, if it orders nothing), from qualified if under contract, else spot, else anybody. All that a shipment will cost
    at sea, at a blocked port and in rework is charged when it leaves, since the future says when and how it lands.
    Defects are rounded per shipment, ties to even.

    Args:
        t: the world's tables.
        desk: the desk before the decision.
        candidate: the decision.
        future: one future; see `outlook_of`.
        weeks: how many weeks there are until the end, at least 1.
    """
    dtype = t.demand.dtype
    live = desk.live.at[QUALIFIED].set(desk.live[QUALIFIED] | candidate.sign)
    via_cape = candidate.route == CAPE
    suez, cape = t.leads
    base = jnp.where(via_cape, t.base[CAPE], t.base[SUEZ])
    cover = jnp.where(via_cape, cape + 1, suez + 1).astype(dtype)
    safety = jnp.where(via_cape, t.safety[CAPE], t.safety[SUEZ])

    continued = jnp.argmax(live)

    def week(h: Array, carry: Any) -> Any:
        shelf, register, cost = carry
        at_sea = functools.reduce(lambda a, b: a + b, register)
        position = shelf + ((at_sea & 0xFFFF) + (at_sea >> 16)).astype(dtype)
        first = h == 0
        # Dispatch: pay for the goods and for all that will become of them.
        target = jnp.round(future.demand[h] * cover + safety)
        qty = jnp.where(first, candidate.qty.astype(dtype), jnp.clip(target - position, 0.0, float(t.cap)))
        supplier = jnp.where(first, candidate.supplier, continued)
        shipped = jnp.where(supplier == SPOT, jnp.round(qty * future.fill[h]), qty)
        late = future.late[h]
        transit = _by_lead([(cape, via_cape), (suez, ~via_cape & ~late), (suez + 1, ~via_cape & late)])

        def at_due(series: Array) -> Array:
            return functools.reduce(lambda x, lead: jnp.where(transit[lead], series[h + lead], x), transit, series[h])

        spoiled = jnp.round(shipped * at_due(future.defect))
        rate = jnp.where(candidate.lock & (h < LOCK_WEEKS), future.rate[0], future.rate[h])
        price = base * rate + t.delta[jnp.maximum(supplier, 0)] + at_due(future.hold) - t.in_transit * h.astype(dtype)
        short = jnp.where(future.crisis[h], t.short, 0.0)
        cost = cost + shipped * price + (qty - shipped) * short + t.rework * spoiled
        # Arrival: all that is due or, if the port is blocked, nothing; what was held is due next week.
        landed = jnp.where(future.blocked[h], 0, register[0])
        register = [register[1] + register[0] - landed, *register[2:], jnp.zeros_like(landed)]
        for lead, taken in transit.items():
            register[lead - 1] = register[lead - 1] + jnp.where(taken, _pack(shipped - spoiled, spoiled), 0)
        air = jnp.where(first, candidate.air, 0).astype(dtype)
        shelf = shelf + (landed & 0xFFFF).astype(dtype) + air
        # Demand.
        served = jnp.minimum(shelf, future.demand[h])
        shelf = shelf - served
        cost = cost + t.stockout * (future.demand[h] - served) + t.holding * shelf
        return shelf, register, cost

    lost_first = jnp.where(candidate.inspect, future.lost_inspected, future.lost[0])
    spared = future.lost[0] - lost_first
    register = [_pack(future.due[j], future.lost[j]) for j in range(t.register)]
    register[0] = _pack(future.due[0] + spared, lost_first)
    cost = (
        future.fixed
        - t.rework * spared.astype(dtype)
        + jnp.where(candidate.inspect, t.inspection, 0.0)
        + t.air * candidate.air.astype(dtype)
        + jnp.where(jnp.sum(live) >= 2, t.dual_source, 0.0) * weeks.astype(dtype)
    )
    return jax.lax.fori_loop(0, weeks, week, (desk.inventory, register, cost))[2]
