"""Rows of JSON lines: floors, filters and surrogate cases in their exchange shapes, and the reader for such files."""

from __future__ import annotations

import functools
import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from stocktake_jax.desk import ROUTES, SUPPLIERS, Bill, Rules
from stocktake_jax.desk.replay import compare
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.simulate import ITEMS, Trajectories, simulate
from stocktake_jax.inference import filter_factor, spot_alive_before
from stocktake_jax.models import FACTORS, HORIZON, Factor, Initial, Likelihood, Tape, World
from stocktake_jax.policies import BaseStock, Runs
from stocktake_jax.policies.surrogate import Candidate, Tables, cost_of, outlook_of, situation, tables

CHUNK = 256
"""Seeds that are worked on at a time."""

FILTER_POLICIES = ("idle", "spot20")
"""What is ordered while the filters watch: nothing, or 20 units a week from spot via Suez while that has a contract."""

_SHIPS = HORIZON + 1


# ---- files ----------------------------------------------------------------------------------------------------------


def read_rows(path: str | Path) -> Iterator[tuple[str, Any]]:
    """The rows of a file of JSON lines, plain or gzip, each with its place ("FILE, line N"); empty lines are skipped.

    Raises:
        InputError: if the file cannot be read, holds no row, or a line is no JSON.
    """
    name, found = str(path), False
    for number, line in enumerate(_lines(path, name), start=1):
        if not line.strip():
            continue
        found = True
        where = f"{name}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not a line of JSON ({error})") from None
        yield where, row
    if not found:
        raise InputError(f"{name}: no rows in it; give one JSON object a line")


def _lines(path: str | Path, name: str) -> Iterator[str]:
    try:
        with Path(path).open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else Path(path).open("rb") as lines:
            for line in lines:
                yield line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8 text ({error.reason} at byte {error.start} of a line)") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name}: cannot be read ({reason})") from None


def _chunks(seeds: Sequence[int]) -> Iterator[tuple[list[int], int]]:
    """Seeds in batches of one size, the last filled up with its last seed, each with how many of it count."""
    size = min(CHUNK, len(seeds))
    for start in range(0, len(seeds), size):
        part = list(seeds[start : start + size])
        yield part + part[-1:] * (size - len(part)), len(part)


# ---- floor ----------------------------------------------------------------------------------------------------------


def floor_rows(seeds: Sequence[int], world: World | None = None, rules: Rules = "paper") -> Iterator[dict[str, Any]]:
    """The floor week by week: per seed the total and, for weeks 0 .. 26, order, units, cost and the items of the bill.

    Args:
        seeds: whose published tapes.
        world: the true world.
        rules: of the books.
    """
    world = world or World.paper()
    for batch, count in _chunks(seeds):
        runs = Runs(np.array(batch), np.ones(len(batch), np.int64))
        tapes = Tape.published_batch(batch, world)
        played = simulate(BaseStock(world), tapes, runs, np.arange(len(batch)), world, rules)
        for i in range(count):
            yield {"seed": batch[i], "total": float(played.cost[i]), "weeks": _floor_weeks(played, i, world)}


def _floor_weeks(played: Trajectories, i: int, world: World) -> list[dict[str, Any]]:
    start = {"week": 0, "order": None, "inventory": world.logistics.start_inventory, "arrived": 0, "on_order": 0}
    weeks: list[dict[str, Any]] = [start | {"cost": 0.0, "breakdown": {}}]
    for w in range(HORIZON):
        bill = bill_of(played, i, w)
        units = {name: int(played.books[name][i, w]) for name in ("inventory", "arrived", "on_order")}
        order = {"week": w + 1, "order": int(played.decision["qty"][i, w])}
        weeks.append(order | units | {"cost": sum(bill.values()), "breakdown": bill})
    return weeks


def bill_of(played: Trajectories, i: int, w: int) -> dict[str, float]:
    """Week w + 1's bill of episode i as an observation shows it: items of every week, then others that are billed."""
    amounts = {name: float(played.bill[name][i, w]) for name in ITEMS}
    return {name: amount for name, amount in amounts.items() if name in Bill.ALWAYS or amount != 0.0}


# ---- filters --------------------------------------------------------------------------------------------------------


def filter_rows(
    seeds: Sequence[int],
    policy: str = "idle",
    *,
    model: World | None = None,
    true_world: World | None = None,
    likelihood: Likelihood = "paper",
    initial: Initial = "uniform",
) -> Iterator[dict[str, Any]]:
    """The exact filters in float64: per seed, week and factor the regimes' posterior and the reading's evidence.

    Args:
        seeds: whose published tapes are read.
        policy: one of `FILTER_POLICIES`; with `spot20`, spot's fill is read as well.
        model: the filters' world.
        true_world: the tapes' world.
        likelihood: how the filters read.
        initial: how they start.

    Raises:
        InputError: for an unknown policy.
    """
    if policy not in FILTER_POLICIES:
        raise InputError(f"the policy must be one of {', '.join(FILTER_POLICIES)}, not {policy!r}")
    model, true_world = model or World.paper(), true_world or World.paper()
    for batch, count in _chunks(seeds):
        tapes = Tape.published_batch(batch, true_world)
        sourced: Any = spot_alive_before(true_world, tapes) if policy == "spot20" else None
        readings = tapes.readings(true_world, sourced)
        found = {}
        with jax.enable_x64(True):
            for name, factor in model.factors.items():
                found[name] = jax.tree.map(np.asarray, _filtered(factor, readings[name], likelihood, initial))
        for i in range(count):
            weeks = [
                {name: _posterior(model.factors[name], *(part[i, w] for part in found[name])) for name in FACTORS}
                for w in range(HORIZON + 1)
            ]
            yield {"seed": batch[i], "policy": policy, "weeks": weeks}


@eqx.filter_jit
def _filtered(
    factor: Factor, readings: dict[str, Float[Array, "series week"]], likelihood: Likelihood, initial: Initial
) -> tuple[Float[Array, "series week regime"], Float[Array, "series week"]]:
    def one(series: dict[str, Array]) -> tuple[Array, Array]:
        filtered = filter_factor(factor, series, likelihood, initial)
        return factor.regime_probabilities(filtered.belief), jnp.exp(filtered.log_evidence)

    return jax.vmap(one)(readings)


def _posterior(factor: Factor, regimes: np.ndarray, evidence: Any) -> dict[str, Any]:
    return {"regime": dict(zip(factor.labels, regimes.tolist(), strict=True)), "evidence": float(evidence)}


# ---- surrogate ------------------------------------------------------------------------------------------------------


def surrogate_row(row: Any, where: str, model: World | None = None) -> tuple[dict[str, Any], list[str]]:
    """A row of surrogate cases with the costs that this package computes, in float64, and what the row has otherwise.

    A row has `week` (of the decision), `inventory`, `pipeline` ([units, week of arrival] per ship), `live` (suppliers),
    `future` (factor -> one state per week from the next to the last: [regime], [regime, age] or
    ["disruption", kind, age]; the age "persist" means any later one) and `cases` (a `candidate` each, and its `cost`).

    Args:
        row: the row, as JSON gives it.
        where: how messages call it.
        model: the oracle's world.

    Raises:
        InputError: if the row has not this shape.
    """
    model = model or World.paper()
    week = _whole(_get(row, "week", where), 0, HORIZON - 1, f"{where}, week")
    inventory = _whole(_get(row, "inventory", where), 0, 1_000_000, f"{where}, inventory")
    live = _live(_get(row, "live", where), where)
    differences: list[str] = []
    with jax.enable_x64(True):
        t = _tables(model)
        units, due = _pipeline(_get(row, "pipeline", where), week, t.register, where)
        states = _future(_get(row, "future", where), week, model, where)
        cases = []
        for number, case in enumerate(_list(_get(row, "cases", where), f"{where}, cases")):
            here = f"{where}, cases[{number}]"
            candidate = _candidate(_get(case, "candidate", here), model, f"{here}, candidate")
            weeks = np.int64(HORIZON - week)
            cost = float(_cost(t, np.float64(inventory), units, due, live, states, candidate, weeks))
            cases.append(case | {"cost": cost})
            if "cost" in case:
                differences += compare(cost, case["cost"], f"{here} cost")
    return row | {"cases": cases}, differences


def _tables(model: World) -> Tables:
    # A model is not hashable, and its tables take longer than a case; the cache keeps the last one.
    return _tables_of(model.to_toml())


@functools.lru_cache(maxsize=1)
def _tables_of(toml: str) -> Tables:
    return tables(World.from_toml(toml), jnp.float64)


@jax.jit
def _cost(
    t: Tables,
    inventory: Float[Array, ""],
    units: Int[Array, " ship"],
    due: Int[Array, " ship"],
    live: Bool[Array, " supplier"],
    states: Int[Array, "week factor"],
    candidate: Candidate,
    weeks: Int[Array, ""],
) -> Float[Array, ""]:
    desk = situation(t, inventory, units, due, live)
    outlook = outlook_of(t, desk, states[..., None], weeks)
    return jax.vmap(lambda future: cost_of(t, desk, candidate, future, weeks), in_axes=-1)(outlook)[0]


def _get(row: Any, key: str, where: str) -> Any:
    if not isinstance(row, dict):
        raise InputError(f"{where}: an object is wanted here, not {type(row).__name__}")
    if key not in row:
        raise InputError(f"{where}: there is no {key!r}")
    return row[key]


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{where}: a list is wanted here, not {value!r}")
    return value


def _whole(value: Any, low: int, high: int, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{where} is {value!r}; it must be a whole number in [{low}, {high}]")
    return value


def _known(value: Any, known: Sequence[str], where: str) -> int:
    if value not in known:
        raise InputError(f"{where} is {value!r}; it must be one of {', '.join(known)}")
    return known.index(value)


def _live(value: Any, where: str) -> np.ndarray:
    live = np.zeros(len(SUPPLIERS), bool)
    for name in _list(value, f"{where}, live"):
        live[_known(name, SUPPLIERS, f"{where}, live")] = True
    return live


def _pipeline(value: Any, week: int, register: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    ships = _list(value, f"{where}, pipeline")
    size = max(_SHIPS, len(ships))
    units, due = np.zeros(size, np.int64), np.full(size, -1, np.int64)
    for i, ship in enumerate(ships):
        here = f"{where}, pipeline[{i}]"
        if not isinstance(ship, list) or len(ship) != 2:
            raise InputError(f"{here} is {ship!r}; it must be [units, week of arrival]")
        units[i] = _whole(ship[0], 0, 30_000, f"{here} units")
        due[i] = _whole(ship[1], week + 1, week + register, f"{here} week of arrival") - week - 1
    return units, due


def _future(value: Any, week: int, model: World, where: str) -> np.ndarray:
    states = np.zeros((HORIZON, len(FACTORS)), np.int64)
    for column, (name, factor) in enumerate(model.factors.items()):
        here = f"{where}, future {name}"
        path = _list(_get(value, name, f"{where}, future"), here)
        if len(path) != HORIZON - week:
            raise InputError(f"{here}: {len(path)} states; give one for each of weeks {week + 1} to {HORIZON}")
        states[: len(path), column] = [_state(factor, s, f"{here}[{i}]") for i, s in enumerate(path)]
    return states


def _state(factor: Factor, value: Any, where: str) -> int:
    kinds = [r.name for r in factor.regimes]
    parts = list(value) if isinstance(value, list) else []
    if parts[:1] == ["disruption"]:
        parts = parts[1:]
    if len(parts) not in (1, 2) or parts[0] not in kinds:
        raise InputError(
            f"{where} is {value!r}; it must be [regime] or [regime, age], the regime one of {', '.join(kinds)}"
        )
    age = parts[1] if len(parts) == 2 else 0
    return factor.index(parts[0], HORIZON if age == "persist" else _whole(age, 0, HORIZON, f"{where} age"))


def _candidate(value: Any, model: World, where: str) -> Candidate:
    qty = _whole(_get(value, "qty", where), 0, model.logistics.order_cap, f"{where}, qty")
    route, supplier = _get(value, "route", where), _get(value, "supplier", where)
    if qty or route is not None or supplier is not None:
        route, supplier = _known(route, ROUTES, f"{where}, route"), _known(supplier, SUPPLIERS, f"{where}, supplier")
    else:
        route = supplier = -1
    air = _whole(_get(value, "air_qty", where), 0, model.logistics.air_cap, f"{where}, air_qty")
    flags = {}
    for name in ("sign_qualified", "lock_freight", "inspect"):
        flags[name] = _get(value, name, where)
        if not isinstance(flags[name], bool):
            raise InputError(f"{where}, {name} is {flags[name]!r}; it must be true or false")
    return Candidate(
        qty=jnp.asarray(qty),
        route=jnp.asarray(route),
        supplier=jnp.asarray(supplier),
        sign=jnp.asarray(flags["sign_qualified"]),
        lock=jnp.asarray(flags["lock_freight"]),
        air=jnp.asarray(air),
        inspect=jnp.asarray(flags["inspect"]),
    )
