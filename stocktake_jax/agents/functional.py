"""The episode as a pure JAX environment, for training loops: `reset(key)` and `step(key, state, action)`.

Everything can be jitted and vmapped. Numbers are in JAX's default float type; the benchmark's own bills are float64, so
totals agree to about a dollar in float32 and to 1e-6 under `jax.enable_x64(True)`.

An action is a vector of nine whole numbers, `ACTION_SIZES`: qty; route (0 suez, 1 cape); supplier (0 qualified,
1 spot, 2 backup); contract action (0 none, 1 sign, 2 switch, 3 renew, 4 lapse); its supplier; its terms (0 none,
1 short, 2 long, 3 strict, 4 lenient); weeks of freight lock; units by air; inspection (0, 1). Briefings and audits are
left out: their answers come within a week, and a step is a week. An order that names a supplier without a live contract
is dropped, the rest of the action is carried out, and `info["refused"]` says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from stocktake_jax.desk import SUPPLIERS, TERMS, Bill, Books, Decision, Rules, Shocks, shocks, step
from stocktake_jax.desk.contracts import ACTIONS, ONBOARDING, host
from stocktake_jax.models import HORIZON, Readings, Tape, World

FIELDS = ("qty", "route", "supplier", "action", "contract_supplier", "terms", "lock_weeks", "air", "inspect")
"""What the entries of an action are, as fields of `Decision`."""

DUE_WEEKS = 8
"""Shipments are shown by the weeks until they are due, 1 .. 8; later ones count as 8."""

NO_FILL = -1.0
"""Shown in weeks without a reading of spot's fill."""

MOST = 1e6
"""Bound of readings that have none of their own; spaces must be finite."""


def action_sizes(world: World | None = None) -> tuple[int, ...]:
    """How many values each entry of an action has."""
    logistics = (world or World.paper()).logistics
    suppliers = len(SUPPLIERS)
    return (
        logistics.order_cap + 1,
        2,
        suppliers,
        len(ACTIONS) + 1,
        suppliers,
        len(TERMS) + 1,
        HORIZON + 1,
        logistics.air_cap + 1,
        2,
    )


ACTION_SIZES = action_sizes()

SHOWN: Mapping[str, tuple[int, float, float]] = {
    "week": (1, 0.0, float(HORIZON)),
    "inventory": (1, 0.0, MOST),
    "on_order": (1, 0.0, MOST),
    "arrived": (1, 0.0, MOST),
    "due": (DUE_WEEKS, 0.0, MOST),
    "live": (len(SUPPLIERS), 0.0, 1.0),
    "lock_rate": (1, 0.0, MOST),
    "lock_weeks": (1, 0.0, float(HORIZON)),
    "suez_count": (1, 0.0, MOST),
    "bab_count": (1, 0.0, MOST),
    "cape_count": (1, 0.0, MOST),
    "spot_band": (1, 0.0, 3.0),
    "spot_otif": (1, -1.0, 100.0),
    "spot_lead_days": (1, -1.0, MOST),
    "realized_lead_slip": (1, 0.0, MOST),
    "realized_fill": (1, NO_FILL, 1.0),
    "pos_units": (1, 0.0, MOST),
    "demand_forecast": (1, 0.0, MOST),
    "freight_index": (1, 0.0, MOST),
    "freight_outlook": (1, 0.0, MOST),
    "berth_wait": (1, 0.0, MOST),
    "wait_outlook": (1, 0.0, MOST),
    "aql_result": (1, 0.0, 2.0),
}
"""The observation: key -> (entries, lowest, highest). float32 vectors; spot_band counts on time, slipping, failing,
defunct; aql_result accept, marginal, reject; spot_otif and spot_lead_days are -1 once spot is defunct; lock_rate is 0
without a lock."""

_CHANNELS = {
    "suez_count": ("canal", "suez_count"),
    "bab_count": ("canal", "bab_count"),
    "cape_count": ("canal", "cape_count"),
    "spot_band": ("supplier", "band"),
    "spot_otif": ("supplier", "otif"),
    "spot_lead_days": ("supplier", "lead_days"),
    "realized_lead_slip": ("supplier", "realized_lead_slip"),
    "realized_fill": ("supplier", "realized_fill"),
    "pos_units": ("demand", "pos_units"),
    "demand_forecast": ("demand", "demand_forecast"),
    "freight_index": ("freight", "freight_index"),
    "freight_outlook": ("freight", "freight_outlook"),
    "berth_wait": ("port", "berth_wait"),
    "wait_outlook": ("port", "wait_outlook"),
    "aql_result": ("quality", "aql_result"),
}

Shown = dict[str, Float[Array, " entry"]]


class EnvState(eqx.Module):
    """All there is, hidden values included: an agent sees the observation only.

    Attributes:
        books: the desk.
        shocks, readings: of the whole tape.
    """

    books: Books
    shocks: Shocks
    readings: Readings


class Step(NamedTuple):
    """What a step gives: observation, state, reward (minus the week's dollars), terminated, truncated, info."""

    observation: Shown
    state: EnvState
    reward: Float[Array, ""]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]
    info: dict[str, Array]


class Stocktake:
    """The functional environment of a world.

    It is no pytree, so that `jax.jit(env.step)` works; make it inside a transformed function to vary the world.

    Args:
        world: the true one; its parameters may be traced.
        rules: of the books.
    """

    def __init__(self, world: World, rules: Rules = "paper") -> None:
        self.world, self.rules = world, rules

    @classmethod
    def paper(cls, rules: Rules = "paper") -> Stocktake:
        """The published world."""
        return cls(World.paper(), rules)

    def reset(self, key: Array) -> tuple[Shown, EnvState]:
        """A fresh episode on a tape drawn from the key."""
        return self.reset_on(Tape.sample(self.world, key=key))

    def reset_on(self, tape: Tape) -> tuple[Shown, EnvState]:
        """A fresh episode on a given tape."""
        books = jax.tree.map(jnp.asarray, Books.start(self.world))
        books = _typed(books)
        hits = jax.tree.map(jnp.asarray, shocks(self.world, tape))
        everything = tape.readings(self.world, host(np.ones(np.shape(tape.states["canal"])), np.bool_))
        readings = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), everything)
        state = EnvState(books, hits, readings)
        return self.observe(state), state

    def step(self, key: Array, state: EnvState, action: Int[Array, " entry"]) -> Step:
        """One week. The key is there for the usual shape: the tape is drawn already.

        After the last week nothing changes any more, and the reward is 0.
        """
        decision, refused = self._decision(state.books, action)
        after, bill = step(self.world, state.books, decision, state.shocks.week(state.books.week + 1), self.rules)
        over = state.books.week >= HORIZON
        books = jax.tree.map(lambda old, new: jnp.where(over, old, new.astype(old.dtype)), state.books, after)
        new = EnvState(books, state.shocks, state.readings)
        reward = jnp.where(over, jnp.zeros_like(bill.total), -bill.total)
        info = {name: getattr(bill, name) for name in (*Bill.ALWAYS, *Bill.SOMETIMES)} | {"refused": refused & ~over}
        return Step(self.observe(new), new, reward, books.week >= HORIZON, jnp.zeros((), bool), info)

    def observe(self, state: EnvState) -> Shown:
        """What the week shows; see `SHOWN`."""
        books, week = state.books, state.books.week
        values: dict[str, Any] = {
            "week": week,
            "inventory": books.on_hand,
            "on_order": books.on_order,
            "arrived": books.arrived,
            "due": _due(self.world, books),
            "live": books.live(),
            "lock_rate": jnp.where(books.lock_weeks > 0, books.lock_rate, jnp.zeros_like(books.lock_rate)),
            "lock_weeks": books.lock_weeks,
        }
        for key, (factor, channel) in _CHANNELS.items():
            values[key] = state.readings[factor][channel][week]
        values["realized_fill"] = jnp.where(books.sourced_spot, values["realized_fill"], jnp.float32(NO_FILL))
        return {key: jnp.atleast_1d(jnp.asarray(values[key])).astype(jnp.float32) for key in SHOWN}

    def _decision(self, books: Books, action: Int[Array, " entry"]) -> tuple[Decision, Bool[Array, ""]]:
        """An action as a legal decision, and whether its order had to be dropped."""
        top = jnp.asarray(action_sizes(self.world), jnp.int32) - 1
        entry = dict(zip(FIELDS, jnp.clip(jnp.asarray(action, jnp.int32), 0, top), strict=True))
        contracts, _ = books.contracts.resolve(
            books.week, books.defunct, entry["action"], entry["contract_supplier"], entry["terms"], self.rules
        )
        live = contracts.suppliers(contracts.live(books.week, books.defunct))
        allowed = live[entry["supplier"]]
        if self.rules == "strict":
            ready = contracts.since[entry["supplier"]] + jnp.asarray(ONBOARDING, jnp.int32)[entry["supplier"]]
            allowed = allowed & (books.week >= ready)
        refused = (entry["qty"] > 0) & ~allowed
        entry["qty"] = jnp.where(refused, 0, entry["qty"])
        return Decision.make(**entry), refused


def _typed(books: Books) -> Books:
    """Numbers of money in the default float type, so that a step keeps every type."""
    real = jnp.result_type(float)
    return jax.tree.map(lambda x: x.astype(real) if jnp.issubdtype(x.dtype, jnp.floating) else x, books)


def _due(world: World, books: Books) -> Int[Array, " entry"]:
    ahead = jnp.clip(books.eta(world) - books.week, 1, DUE_WEEKS)
    units = jnp.where(books.ships.at_sea, books.ships.qty, 0)
    hit = ahead[None, :] == jnp.arange(1, DUE_WEEKS + 1, dtype=jnp.int32)[:, None]
    return jnp.sum(jnp.where(hit, units[None, :], 0), axis=1)


def encode(observation: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """An episode's report as the same vectors."""
    week = observation["week"]
    spot = next(row for row in observation["suppliers"] if row["id"] == "spot")
    due = np.zeros(DUE_WEEKS)
    for ship in observation["pipeline"]:
        due[int(np.clip(ship["eta"] - week, 1, DUE_WEEKS)) - 1] += ship["qty"]
    live = np.zeros(len(SUPPLIERS))
    for contract in observation["contracts"]:
        # Not from contract_open, which also names a supplier one of whose contracts has ended while another one lives.
        ended = contract["end_week"] is not None and contract["end_week"] <= week
        gone = contract["supplier"] == "spot" and spot["band"] == "defunct"
        if not (ended or gone):
            live[SUPPLIERS.index(contract["supplier"])] = 1.0
    lock = observation.get("freight_lock", {"rate": 0.0, "weeks_left": 0})
    values: dict[str, Any] = {
        "week": week,
        "inventory": observation["inventory"],
        "on_order": observation["on_order"],
        "arrived": observation["arrived"],
        "due": due,
        "live": live,
        "lock_rate": lock["rate"],
        "lock_weeks": lock["weeks_left"],
        "spot_band": ("ontime", "slipping", "failing", "defunct").index(spot["band"]),
        "spot_otif": -1 if spot["otif"] is None else spot["otif"],
        "spot_lead_days": -1 if spot["lead_days"] is None else spot["lead_days"],
        "realized_lead_slip": spot["realized_lead_slip"],
        "realized_fill": observation.get("realized_fill", NO_FILL),
        "aql_result": ("accept", "marginal", "reject").index(observation["aql_result"]),
    }
    plain = {key: observation[key] for key in SHOWN if key not in values}
    return {key: np.atleast_1d(np.asarray((values | plain)[key], np.float32)) for key in SHOWN}
