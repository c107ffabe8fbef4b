"""The books: what a week does to shelf, ships, contracts and the bill, as one pure function.

The same `step` runs a single agent's week and, vmapped and scanned, whole batches of reference runs (paper, section 3).
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from stocktake_jax.desk.contracts import (
    ACTIONS,
    BACKUP,
    ONBOARDING,
    QUALIFIED,
    RULES,
    SPOT,
    SUPPLIERS,
    TERM_TABLE,
    Contracts,
    Rules,
    host,
    namespace,
)
from stocktake_jax.errors import InputError
from stocktake_jax.models import HORIZON, Costs, Logistics, Tape, World

SUEZ, CAPE = 0, 1
ROUTES = ("suez", "cape")
"""A route is an index into this."""

WEEKS = HORIZON + 1

GATE_SUEZ, GATE_CAPE = 1, 2
"""Weeks before its planned arrival at which a ship meets the canal, or the Cape."""

DIVERSION_WEEKS = 3
"""Weeks to port for a ship that gives up waiting at Suez."""

CRISIS_BANDS = ("watch", "crash", "blockage", "crisis")
"""Canal bands in which units that spot does not ship are billed as crisis back-orders."""


class Decision(eqx.Module):
    """All that a buyer settles in one week; int32, with any leading axes.

    Attributes:
        qty: units ordered; 0 orders nothing, and then route and supplier mean nothing.
        route: index into `ROUTES`, -1 none.
        supplier: index into `SUPPLIERS`, -1 none.
        action: contract action: 0 none, else 1 + index into `ACTIONS`.
        contract_supplier: index into `SUPPLIERS`, -1 none.
        terms: 0 none, else 1 + index into `TERMS`.
        lock_weeks: weeks of the freight lock bought this week, 0 none.
        air: units flown in, at most the cap.
        inspect, briefing, audit: 1 if bought.
    """

    qty: Int[Array, "*batch"]
    route: Int[Array, "*batch"]
    supplier: Int[Array, "*batch"]
    action: Int[Array, "*batch"]
    contract_supplier: Int[Array, "*batch"]
    terms: Int[Array, "*batch"]
    lock_weeks: Int[Array, "*batch"]
    air: Int[Array, "*batch"]
    inspect: Int[Array, "*batch"]
    briefing: Int[Array, "*batch"]
    audit: Int[Array, "*batch"]

    @classmethod
    def make(
        cls,
        qty: Any = 0,
        route: Any = -1,
        supplier: Any = -1,
        action: Any = 0,
        contract_supplier: Any = -1,
        terms: Any = 0,
        lock_weeks: Any = 0,
        air: Any = 0,
        inspect: Any = 0,
        briefing: Any = 0,
        audit: Any = 0,
    ) -> Self:
        """A decision from numbers or arrays, broadcast to their common shape."""
        values = (qty, route, supplier, action, contract_supplier, terms, lock_weeks, air, inspect, briefing, audit)
        xp = namespace(*values)
        arrays = [xp.asarray(v).astype(np.int32) for v in values]
        return cls(*xp.broadcast_arrays(*arrays))


class Shocks(eqx.Module):
    """What the weeks of a tape do to the books, with any leading axes before the weeks (or none left after indexing).

    Attributes:
        demand: units wanted.
        multiplier: freight multiplier of the week.
        fill: share of a spot order that ships; nan in week 0.
        closed: the canal is disrupted.
        recovery: the canal is recovering.
        long: a long disruption is on.
        crisis: the canal's band is one in which spot's shortfalls are crisis back-orders.
        cape_local: congestion at the Cape.
        blocked: the port lands nothing.
        defect: share of the week's arrivals that is defective.
        defunct: spot is gone for good.
    """

    demand: Int[Array, "*weeks"]
    multiplier: Float[Array, "*weeks"]
    fill: Float[Array, "*weeks"]
    closed: Bool[Array, "*weeks"]
    recovery: Bool[Array, "*weeks"]
    long: Bool[Array, "*weeks"]
    crisis: Bool[Array, "*weeks"]
    cape_local: Bool[Array, "*weeks"]
    blocked: Bool[Array, "*weeks"]
    defect: Float[Array, "*weeks"]
    defunct: Bool[Array, "*weeks"]

    def week(self, week: Any) -> Shocks:
        """The shocks of one week: the last axis indexed."""
        return jax.tree.map(lambda x: x[..., week], self)


def shocks(world: World, tape: Tape) -> Shocks:
    """What a tape does to the books, week by week.

    Fresh tapes on a device come as float32 and are snapped to their decimals on the host first, except inside a jax
    transformation, where that is impossible: snap them before if the books are to be exact.
    """
    leaves = jax.tree.leaves(tape)
    if any(isinstance(x, jax.Array) for x in leaves) and not any(isinstance(x, jax.core.Tracer) for x in leaves):
        tape = tape.snapped(world)
    xp = namespace(*jax.tree.leaves(tape))
    canal, values = world.canal, tape.values

    def on(factor: str, mask: np.ndarray) -> Any:
        return xp.asarray(mask)[tape.states[factor]]

    def number(factor: str, channel: str) -> Any:
        return xp.asarray(values[factor][channel]).astype(xp.result_type(float))

    extra, plain = (xp.asarray(column)[tape.states["canal"]] for column in np.asarray(_cape_counts(world)).T)
    cape = number("canal", "cape_count")
    port = world.port
    return Shocks(
        demand=xp.round(number("demand", "pos_units")).astype(np.int32),
        multiplier=number("freight", "freight_index"),
        fill=number("supplier", "realized_fill"),
        closed=on("canal", canal.mask(label="disruption")),
        recovery=on("canal", canal.mask(label="recovery")),
        long=on("canal", np.array([r.name == "long" for r in canal.state_regimes])),
        crisis=on("canal", canal.mask(bands=CRISIS_BANDS)),
        # The nearer of the two counts: a fresh tape's float32 need not hit either exactly.
        cape_local=xp.abs(cape - extra) < xp.abs(cape - plain),
        blocked=on("port", port.mask(label="congested") | port.mask(label="customs_hold")),
        defect=number("quality", "defect_fraction"),
        defunct=on("supplier", world.supplier.mask(label="defunct")),
    )


def _cape_counts(world: World) -> Any:
    """(state, 2) the Cape count with and without local congestion."""
    return next(c for c in world.canal.channels() if c.name == "cape_count").values  # type: ignore[attr-defined]


class Ships(eqx.Module):
    """Every shipment by the week of its dispatch (one order a week, so one ship a week at most).

    Attributes:
        qty: (..., dispatch) units shipped; 0: no ship.
        route, supplier: (..., dispatch) indices into `ROUTES` and `SUPPLIERS`.
        arrival: (..., dispatch) week in which it reaches the port, moved on while the port holds it; -1: not fixed yet.
        queued: (..., dispatch) True while it waits at Suez.
        diverted: (..., dispatch) True once it was sent around the Cape from Suez.
        landed: (..., dispatch) True once it has been unloaded.
    """

    qty: Int[Array, "*batch dispatch"]
    route: Int[Array, "*batch dispatch"]
    supplier: Int[Array, "*batch dispatch"]
    arrival: Int[Array, "*batch dispatch"]
    queued: Bool[Array, "*batch dispatch"]
    diverted: Bool[Array, "*batch dispatch"]
    landed: Bool[Array, "*batch dispatch"]

    @classmethod
    def none(cls) -> Self:
        """No ship yet."""
        zero, no = host(np.zeros(WEEKS)), host(np.zeros(WEEKS), np.bool_)
        return cls(zero, zero, zero, zero - 1, no, no, no)

    @property
    def at_sea(self) -> Bool[Array, "*batch dispatch"]:
        """True for shipments that have left and not landed."""
        return (self.qty > 0) & ~self.landed


class Books(eqx.Module):
    """The desk's state at the start of a decision.

    Attributes:
        week: of the decision, 0 .. 26.
        on_hand: units on the shelf.
        arrived: units that reached the shelf by sea this week.
        served: units of this week's demand that were met.
        ships: every shipment.
        contracts: every contract.
        lock_rate, lock_weeks: the freight lock's multiplier and weeks left, 0 weeks: none.
        multiplier: this week's freight multiplier, which a lock bought now would fix.
        defunct: spot is gone.
        sourced_spot: an order with spot was dispatched this week, be it short or empty; then its fill is seen.
    """

    week: Int[Array, "*batch"]
    on_hand: Int[Array, "*batch"]
    arrived: Int[Array, "*batch"]
    served: Int[Array, "*batch"]
    ships: Ships
    contracts: Contracts
    lock_rate: Float[Array, "*batch"]
    lock_weeks: Int[Array, "*batch"]
    multiplier: Float[Array, "*batch"]
    defunct: Bool[Array, "*batch"]
    sourced_spot: Bool[Array, "*batch"]

    @classmethod
    def start(cls, world: World) -> Self:
        """The books of week 0, in numpy. Broadcast them for a batch, or build them inside the vmapped function."""
        zero, no, one = host(0), host(False, np.bool_), host(1.0, np.float64)
        return cls(
            week=zero,
            on_hand=host(world.logistics.start_inventory),
            arrived=zero,
            served=zero,
            ships=Ships.none(),
            contracts=Contracts.first(),
            lock_rate=one,
            lock_weeks=zero,
            multiplier=one,
            defunct=no,
            sourced_spot=no,
        )

    @property
    def on_order(self) -> Int[Array, "*batch"]:
        """Units at sea."""
        xp = namespace(self.ships.qty)
        return xp.asarray(xp.sum(xp.where(self.ships.at_sea, self.ships.qty, 0), axis=-1), np.int32)

    @property
    def inventory_position(self) -> Int[Array, "*batch"]:
        """Units on the shelf and at sea."""
        return namespace(self.on_hand).asarray(self.on_hand + self.on_order)

    def live(self) -> Bool[Array, " supplier"]:
        """(supplier,) True for suppliers under a live contract, whom an order can name (unbatched books)."""
        return self.contracts.suppliers(self.contracts.live(self.week, self.defunct))

    def open_contracts(self) -> Bool[Array, " slot"]:
        """(slot,) True for listed contracts that have ended or whose supplier is gone (unbatched books)."""
        return self.contracts.open(self.week, self.defunct)

    def eta(self, world: World) -> Int[Array, " dispatch"]:
        """(dispatch,) the arrival week as shown: the one fixed, else the planned one (unbatched books)."""
        xp = namespace(self.ships.qty)
        lead = xp.where(self.ships.route == SUEZ, world.logistics.lead_suez, world.logistics.lead_cape)
        planned = xp.arange(WEEKS, dtype=np.int32) + lead.astype(np.int32)
        return xp.where(self.ships.arrival >= 0, self.ships.arrival, planned)


class Flow(eqx.Module):
    """Where the week's units went; int32.

    Attributes:
        ordered, shipped, short: of the week's order; ordered = shipped + short.
        air: flown in.
        held: kept outside by the port.
        landed: reached the shelf by sea.
        defects: lost on arrival.
        demand, served, unmet: demand = served + unmet.
    """

    ordered: Int[Array, "*batch"]
    shipped: Int[Array, "*batch"]
    short: Int[Array, "*batch"]
    air: Int[Array, "*batch"]
    held: Int[Array, "*batch"]
    landed: Int[Array, "*batch"]
    defects: Int[Array, "*batch"]
    demand: Int[Array, "*batch"]
    served: Int[Array, "*batch"]
    unmet: Int[Array, "*batch"]


class Bill(eqx.Module):
    """A week's costs by item, in dollars (float64 under x64), and the flow of units that they come from.

    Items that an observation lists only when billed are 0 when they are not.
    """

    shipping: Float[Array, "*batch"]
    surcharge: Float[Array, "*batch"]
    holding: Float[Array, "*batch"]
    in_transit: Float[Array, "*batch"]
    stockout: Float[Array, "*batch"]
    couple: Float[Array, "*batch"]
    demurrage: Float[Array, "*batch"]
    rework: Float[Array, "*batch"]
    briefing: Float[Array, "*batch"]
    audit: Float[Array, "*batch"]
    air: Float[Array, "*batch"]
    inspect: Float[Array, "*batch"]
    dual_source: Float[Array, "*batch"]
    break_fee: Float[Array, "*batch"]
    flow: Flow

    ALWAYS: ClassVar[tuple[str, ...]] = (
        "shipping",
        "surcharge",
        "holding",
        "in_transit",
        "stockout",
        "couple",
        "demurrage",
        "rework",
    )
    """Items of every week, in the order in which they are shown."""

    SOMETIMES: ClassVar[tuple[str, ...]] = ("briefing", "audit", "air", "inspect", "dual_source", "break_fee")
    """Items shown after those, and only in weeks that bill them."""

    @property
    def total(self) -> Float[Array, "*batch"]:
        """The sum of all items."""
        amounts = [getattr(self, name) for name in self.ALWAYS + self.SOMETIMES]
        return namespace(*amounts).asarray(functools.reduce(lambda a, b: a + b, amounts))


def step(
    world: World, books: Books, decision: Decision, shocks_of_the_new_week: Shocks, rules: Rules = "paper"
) -> tuple[Books, Bill]:
    """One week: carry out a decision that has been found legal (`decision_error`), and let the new week happen.

    Pure, for one episode; vmap it over books, decisions, shocks and world. Money is in JAX's default float type: trace
    it under `jax.enable_x64(True)` (as `step_jit` does) where bills must agree with the published ones.

    Args:
        world: costs and logistics (leaves may be traced or vmapped).
        books: at the decision, week t.
        decision: unvalidated.
        shocks_of_the_new_week: of week t + 1, without a week axis.
        rules: static.

    Returns:
        The books of week t + 1, and its bill.
    """
    return _week(world.costs, world.logistics, books, decision, shocks_of_the_new_week, rules)


def _week(
    costs: Costs, logistics: Logistics, books: Books, decision: Decision, now: Shocks, rules: Rules
) -> tuple[Books, Bill]:
    check_rules(rules)
    real = jnp.result_type(float)
    cost = jax.tree.map(lambda x: jnp.asarray(x, real), costs)
    books = jax.tree.map(jnp.asarray, books)

    def money(units: Array, price: Array) -> Array:
        return units.astype(real) * price

    def rounded(units: Array, share: Array) -> Array:
        """Units times a share, to the nearest whole number, ties to even."""
        return jnp.round(units.astype(real) * share).astype(jnp.int32)

    contracts, fee = books.contracts.resolve(
        books.week, books.defunct, decision.action, decision.contract_supplier, decision.terms, rules
    )
    live_at_decision = contracts.live(books.week, books.defunct)
    week = books.week + 1
    defunct = jnp.asarray(now.defunct)

    # A new lock replaces the old one and fixes the multiplier of the week in which it was bought.
    buys_lock = decision.lock_weeks > 0
    lock_rate = jnp.where(buys_lock, books.multiplier, books.lock_rate)
    lock_weeks = jnp.where(buys_lock, decision.lock_weeks, books.lock_weeks)
    multiplier = jnp.asarray(now.multiplier, real)
    charged = jnp.where(lock_weeks > 0, lock_rate, multiplier)
    passed = jnp.asarray(logistics.defects_passed, real)
    defect = jnp.asarray(now.defect, real)
    defect = jnp.where(decision.inspect > 0, defect * passed, defect)

    # Dispatch. The fill is nan where no tape has one; an order that spot does not get must not see it.
    orders = decision.qty > 0
    from_spot = orders & (decision.supplier == SPOT)
    ordered = jnp.where(orders, decision.qty, 0)
    fill = jnp.where(from_spot, jnp.asarray(now.fill, real), 1.0)
    shipped = rounded(ordered, fill)
    short = ordered - shipped
    base = jnp.where(decision.route == CAPE, cost.base_cape, cost.base_suez)
    if rules == "strict":
        base = base * contracts.price(decision.supplier, live_at_decision)
    by_supplier = [cost.delta_qualified, cost.delta_spot, cost.delta_backup]
    delta = jnp.select([decision.supplier == s for s in (QUALIFIED, SPOT, BACKUP)], by_supplier, jnp.zeros((), real))
    shipping = jnp.where(shipped > 0, money(shipped, base * charged + delta), 0.0)
    crisis = jnp.where(now.crisis, money(short, cost.crisis), 0.0)

    dispatch = jnp.arange(WEEKS, dtype=jnp.int32)
    new = dispatch == week
    qty = jnp.where(new, shipped, books.ships.qty)
    route = jnp.where(new, decision.route, books.ships.route)
    supplier = jnp.where(new, decision.supplier, books.ships.supplier)

    # Ships whose arrival is not fixed meet the canal or the Cape.
    unfixed = (qty > 0) & (books.ships.arrival < 0)
    queued = books.ships.queued
    lead_suez, lead_cape = logistics.lead_suez, logistics.lead_cape
    at_gate = unfixed & (route == SUEZ) & ~queued & (week == dispatch + max(lead_suez - GATE_SUEZ, 0))
    off_cape = unfixed & (route == CAPE) & (week == dispatch + max(lead_cape - GATE_CAPE, 0))
    waited = unfixed & queued
    diverts = waited & now.closed
    arrival = jnp.select(
        [at_gate & ~now.closed, off_cape, diverts, waited & ~now.closed],
        [
            dispatch + lead_suez + jnp.asarray(now.recovery).astype(jnp.int32),
            dispatch + lead_cape + (now.cape_local | now.long).astype(jnp.int32),
            week + DIVERSION_WEEKS,
            week + 1,
        ],
        books.ships.arrival,
    )
    surcharge = money(jnp.where(diverts, qty, 0).sum(dtype=jnp.int32), cost.surcharge)

    # Arrivals: a blocked port holds all of them for a week, else they land short of their defective units.
    due = (qty > 0) & ~books.ships.landed & (arrival == week)
    held = jnp.where(due & now.blocked, qty, 0).sum(dtype=jnp.int32)
    lands = due & ~now.blocked
    defects = jnp.where(lands, rounded(qty, defect), 0).sum(dtype=jnp.int32)
    landed = jnp.where(lands, qty, 0).sum(dtype=jnp.int32) - defects
    ships = Ships(
        qty=qty,
        route=route,
        supplier=supplier,
        arrival=jnp.where(due & now.blocked, week + 1, arrival),
        queued=(at_gate & now.closed),
        diverted=books.ships.diverted | diverts,
        landed=books.ships.landed | lands,
    )

    demand = jnp.asarray(now.demand)
    available = books.on_hand + decision.air + landed
    served = jnp.minimum(available, demand)
    unmet = demand - served
    on_hand = available - served
    under_contract = contracts.suppliers(contracts.live(week, defunct)).sum(dtype=jnp.int32)

    after = Books(
        week=week,
        on_hand=on_hand,
        arrived=landed,
        served=served,
        ships=ships,
        contracts=contracts,
        lock_rate=lock_rate,
        lock_weeks=jnp.maximum(lock_weeks - 1, 0),
        multiplier=multiplier,
        defunct=defunct,
        sourced_spot=from_spot,
    )
    bill = Bill(
        shipping=shipping,
        surcharge=surcharge,
        holding=money(on_hand, cost.holding),
        in_transit=money(after.on_order, cost.in_transit),
        stockout=money(unmet, cost.stockout),
        couple=crisis,
        demurrage=money(held, cost.demurrage),
        rework=money(defects, cost.rework),
        briefing=money(decision.briefing, cost.briefing),
        audit=money(decision.audit, cost.audit),
        air=money(decision.air, cost.air),
        inspect=money(decision.inspect, cost.inspection),
        dual_source=jnp.where(under_contract > 1, cost.dual_source, 0.0),
        break_fee=fee.astype(real),
        flow=Flow(
            ordered=ordered,
            shipped=shipped,
            short=short,
            air=decision.air,
            held=held,
            landed=landed,
            defects=defects,
            demand=demand,
            served=served,
            unmet=unmet,
        ),
    )
    return after, bill


def step_jit(
    world: World, books: Books, decision: Decision, shocks_of_the_new_week: Shocks, rules: Rules = "paper"
) -> tuple[Books, Bill]:
    """`step` for one episode on the host, compiled once for all, in float64 whatever the global flag says.

    The results are numpy. Batches trace `step` itself, under `jax.enable_x64(True)`.
    """
    # Of the world only the part that the books need; and two arrays each way instead of 60, which cost 20 us apiece.
    spec, numbers = _pack((world.costs, world.logistics, books, decision, shocks_of_the_new_week))
    with jax.enable_x64(True):
        new = jax.device_get(_packed_week(spec, rules, *numbers))
    return _unpack(_new_week_spec(spec, rules), *new)


class _Spec(NamedTuple):
    """Where the leaves of a tree lie in one array of whole numbers and one of floats; static."""

    tree: Any
    leaves: tuple[tuple[str, tuple[int, ...]], ...]


def _pack(tree: Any) -> tuple[_Spec, tuple[Any, Any]]:
    leaves, structure = jax.tree.flatten(tree)
    xp: Any = jnp if any(isinstance(x, jax.core.Tracer) for x in leaves) else np
    leaves = [xp.asarray(x) for x in leaves]
    groups: dict[str, list[Any]] = {"i": [], "f": [], "b": []}
    for leaf in leaves:
        groups[leaf.dtype.kind].append(leaf.reshape(-1))
    whole = xp.concatenate([x.astype(np.int32) for x in groups["i"]] + [x.astype(np.int32) for x in groups["b"]])
    spec = _Spec(structure, tuple((leaf.dtype.kind, leaf.shape) for leaf in leaves))
    return spec, (whole, xp.concatenate([x.astype(np.float64) for x in groups["f"]]))


def _unpack(spec: _Spec, whole: Any, real: Any) -> Any:
    place = {"i": 0, "f": 0, "b": sum(math.prod(shape) for kind, shape in spec.leaves if kind == "i")}
    leaves = []
    for kind, shape in spec.leaves:
        source, start = real if kind == "f" else whole, place[kind]
        place[kind] = start + math.prod(shape)
        leaf = source[start : place[kind]].reshape(shape)
        leaves.append(leaf.astype(np.bool_) if kind == "b" else leaf)
    return jax.tree.unflatten(spec.tree, leaves)


def _packed_step(spec: _Spec, rules: Rules, whole: Array, real: Array) -> tuple[_Spec, tuple[Array, Array]]:
    costs, logistics, books, decision, now = _unpack(spec, whole, real)
    return _pack(_week(costs, logistics, books, decision, now, rules))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _packed_week(spec: _Spec, rules: Rules, whole: Array, real: Array) -> tuple[Array, Array]:
    return _packed_step(spec, rules, whole, real)[1]


@functools.cache
def _new_week_spec(spec: _Spec, rules: Rules) -> _Spec:
    """The layout of what `_packed_week` returns; its shapes alone, so nothing is computed."""
    found = []

    def note(whole: Array, real: Array) -> None:
        found.append(_packed_step(spec, rules, whole, real)[0])

    sizes = [sum(math.prod(shape) for kind, shape in spec.leaves if kind in kinds) for kinds in ("ib", "f")]
    with jax.enable_x64(True):
        jax.eval_shape(note, np.zeros(sizes[0], np.int32), np.zeros(sizes[1]))
    return found[0]


def decision_error(world: World, books: Books, decision: Decision, rules: Rules = "paper") -> str | None:
    """Why a decision is not allowed, as one message that says what to do; None if it is. For host values, unbatched.

    Raises:
        InputError: for rules that do not exist.
    """
    check_rules(rules)
    week, cap = int(books.week), world.logistics.order_cap
    qty, route, supplier = int(decision.qty), int(decision.route), int(decision.supplier)
    if week >= HORIZON:
        return f"the episode is over: week {week} is the last one"
    if not 0 <= qty <= cap:
        return f"qty must be a whole number from 0 to {cap}, not {qty}"
    if not 0 <= int(decision.action) <= len(ACTIONS):
        return f"unknown contract action {int(decision.action)}"
    if int(decision.action) and not 0 <= int(decision.contract_supplier) < len(SUPPLIERS):
        return "a contract action needs contract_supplier: 'qualified', 'spot' or 'backup'"
    if not 0 <= int(decision.terms) < len(TERM_TABLE):
        return f"unknown contract terms {int(decision.terms)}"
    if not 0 <= int(decision.air) <= world.logistics.air_cap:
        return f"at most {world.logistics.air_cap} units fly a week, not {int(decision.air)}"
    if int(decision.lock_weeks) < 0:
        return f"a freight lock lasts at least 1 week, not {int(decision.lock_weeks)}"
    if qty == 0:
        return None
    if not 0 <= route < len(ROUTES):
        return "an order with qty > 0 needs a route: 'suez' or 'cape'"
    if not 0 <= supplier < len(SUPPLIERS):
        return "an order with qty > 0 needs a supplier: 'qualified', 'spot' or 'backup'"
    fields = (decision.action, decision.contract_supplier, decision.terms)
    action, contract_supplier, terms = map(host, fields)
    contracts, _ = books.contracts.resolve(books.week, books.defunct, action, contract_supplier, terms, rules)
    live = contracts.suppliers(contracts.live(books.week, books.defunct))
    name = SUPPLIERS[supplier]
    if not live[supplier]:
        under = [n for n, alive in zip(SUPPLIERS, live, strict=True) if alive]
        if supplier == SPOT and bool(books.defunct):
            fix = "spot is defunct and can never be sourced again"
        else:
            fix = f"sign it in the same order (contract_action 'sign', contract_supplier {name!r})"
        others = f"; live now: {', '.join(under)}" if under else ""
        return f"{name} has no live contract in week {week}: {fix}{others}"
    ready = int(contracts.since[supplier]) + ONBOARDING[supplier]
    if rules == "strict" and week < ready:
        return f"{name} is being onboarded: it can take its first order in week {ready}, not in week {week}"
    return None


def check_rules(rules: str) -> None:
    """Refuse unknown rules.

    Raises:
        InputError: naming the two sets of rules that exist.
    """
    if rules not in RULES:
        raise InputError(f"rules must be {' or '.join(map(repr, RULES))}, not {rules!r}")
