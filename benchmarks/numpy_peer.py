"""The rollout oracle as a competent user would write it in numpy: the peer that the package is measured against.

Vectorised over candidates and futures, one episode after the other; filters, futures, menu and surrogate are written
anew here, from the parameters alone. It shares with the package the tapes, the books and the transition matrices. Same
protocol, other random numbers: costs of given futures agree to rounding, totals of runs statistically.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from stocktake_jax.desk import Decision
from stocktake_jax.models import FACTORS, HORIZON, Gaussian, Index, World
from stocktake_jax.policies import Runs, Shown

QUALIFIED, SPOT = 0, 1
SUEZ, CAPE, NOTHING = 0, 1, -1
LOCK_WEEKS = 4


@dataclass(frozen=True)
class Candidates:
    """The menu of a week, one entry per candidate."""

    qty: np.ndarray
    route: np.ndarray
    supplier: np.ndarray
    sign: np.ndarray
    lock: np.ndarray
    air: np.ndarray
    inspect: np.ndarray

    @classmethod
    def of(cls, rows: list[tuple[Any, ...]]) -> Candidates:
        """From rows in the order of the fields."""
        return cls(*(np.array(column) for column in zip(*rows, strict=True)))


class Surrogate:
    """The books with band means instead of draws, on sampled futures.

    Args:
        world: whose costs, lead times and means.
    """

    def __init__(self, world: World) -> None:
        w, c, logistics = world, world.costs, world.logistics
        self.demand = np.asarray(w.demand.means)
        self.rate = np.asarray(w.freight.means)
        s = w.supplier
        self.fill = np.asarray(
            s.by_regime(
                reliable=s.fill_reliable, wobbling=s.fill_wobbling, degraded=s.fill_degraded, defunct=s.fill_defunct
            )
        )
        self.defect = np.asarray(w.quality.defect_means)
        self.closed = w.canal.mask(label="disruption")
        self.crisis = w.canal.mask(bands=("watch", "crash", "blockage", "crisis"))
        self.blocked = w.port.stress_mask
        self.base = np.array([c.base_suez, c.base_cape], float)
        self.delta = np.array([c.delta_qualified, c.delta_spot, c.delta_backup], float)
        self.lead = np.array([logistics.lead_suez, logistics.lead_cape])
        z = statistics.NormalDist().inv_cdf(float(c.stockout / (c.stockout + c.holding)))
        self.safety = z * float(logistics.demand_sd) * np.sqrt(self.lead + 1)
        self.costs, self.cap, self.passed = c, logistics.order_cap, float(logistics.defects_passed)
        self.dear = w.freight.mask(label="tightening") | w.freight.mask(label="spike")
        self.tainted = w.quality.mask(label="out_of_control")

    def cost(
        self,
        inventory: float,
        ships: list[tuple[int, int]],
        live: np.ndarray,
        candidates: Candidates,
        futures: dict[str, np.ndarray],
    ) -> np.ndarray:
        """(candidate, future) the cost of each candidate on each future, from next week to the end.

        Args:
            inventory: units on the shelf.
            ships: units and week due of each ship at sea, next week being 0.
            live: (supplier,) who is under contract.
            candidates: the menu.
            futures: factor -> (week, future) state, from next week on.
        """
        c = self.costs
        weeks, count = futures["demand"].shape
        shape = (len(candidates.qty), count)
        row, column = np.indices(shape)
        demand, rate, fill = (
            self.demand[futures["demand"]],
            self.rate[futures["freight"]],
            self.fill[futures["supplier"]],
        )
        crisis, closed = self.crisis[futures["canal"]], self.closed[futures["canal"]]
        # The week in which something due lands: the first from then on in which the port is open; `weeks` means never.
        lands = np.full((weeks + 6, count), weeks)
        for week in reversed(range(weeks)):
            lands[week] = np.where(self.blocked[futures["port"][week]], lands[week + 1], week)
        defect = np.concatenate([self.defect[futures["quality"]], np.zeros((1, count))])

        total = np.zeros(shape)
        arriving, leaving = np.zeros((weeks + 1, *shape)), np.zeros((weeks + 1, *shape))
        at_sea = np.zeros(shape)
        inspect = candidates.inspect[:, None]

        def dispatch(units: Any, due: Any, now: int) -> None:
            """Charge a ship for everything that will become of it, and note when it lands."""
            due = np.broadcast_to(due, shape)
            when = lands[np.minimum(due, weeks), column]
            spoiled = np.where(inspect & (when == 0), self.passed, 1.0) * defect[when, column]
            spoiled = np.round(units * spoiled)
            waits = np.maximum(when - due, 0)
            total[...] += units * (float(c.in_transit) * (when - now) + float(c.demurrage) * waits)
            total[...] += float(c.rework) * spoiled
            arriving[when, row, column] += units - spoiled
            leaving[when, row, column] += units
            at_sea[...] += units

        for units, due in ships:
            dispatch(np.full(shape, float(units)), due, 0)

        under_contract = np.tile(live, (shape[0], 1))
        under_contract[:, QUALIFIED] |= candidates.sign
        continued = under_contract.argmax(axis=1)
        route = np.where(candidates.route == CAPE, CAPE, SUEZ)
        shelf = np.full(shape, float(inventory))
        for week in range(weeks):
            if week == 0:
                qty = np.broadcast_to(candidates.qty[:, None].astype(float), shape)
                supplier = candidates.supplier
            else:
                target = np.round(demand[week] * (self.lead[route] + 1)[:, None] + self.safety[route][:, None])
                qty = np.clip(target - (shelf + at_sea), 0, self.cap)
                supplier = continued
            shipped = np.where((supplier == SPOT)[:, None], np.round(qty * fill[week]), qty)
            locked = candidates.lock & (week < LOCK_WEEKS)
            multiplier = np.where(locked[:, None], rate[0], rate[week])
            price = self.base[route][:, None] * multiplier + self.delta[supplier][:, None]
            total += shipped * price + float(c.crisis) * (qty - shipped) * crisis[week]
            dispatch(shipped, week + self.lead[route][:, None] + ((route == SUEZ)[:, None] & closed[week]), week)
            shelf = shelf + arriving[week]
            at_sea -= leaving[week]
            if week == 0:
                shelf = shelf + candidates.air[:, None]
            served = np.minimum(shelf, demand[week])
            shelf = shelf - served
            total += float(c.stockout) * (demand[week] - served) + float(c.holding) * shelf
        fixed = float(c.inspection) * candidates.inspect + float(c.air) * candidates.air
        fixed = fixed + float(c.dual_source) * weeks * (under_contract.sum(axis=1) >= 2)
        return np.asarray(total + fixed[:, None])


class Filter:
    """The published filter of one factor, for one episode at a time."""

    def __init__(self, factor: Any) -> None:
        self.matrix = np.asarray(factor.transition_matrix())
        self.start = np.asarray(factor.initial("uniform"))
        self.normal, self.listed = [], []
        for c in factor.shown_channels():
            if not c.speaks("paper"):
                continue
            if isinstance(c, Gaussian):
                scale = 100.0 if isinstance(c, Index) else 1.0
                self.normal.append((c.name, scale * np.asarray(c.mean), scale * float(c.sd)))
            else:
                self.listed.append((c.name, np.asarray(c.values), np.asarray(c.probs)))

    def correct(self, predicted: np.ndarray, readings: dict[str, float]) -> np.ndarray:
        """The belief after a week's readings."""
        log_p = np.zeros(len(predicted))
        p = predicted.copy()
        for name, mean, sd in self.normal:
            if not math.isnan(readings[name]):
                log_p -= (readings[name] - mean) ** 2 / (2 * sd**2)
        for name, values, probs in self.listed:
            p *= ((values == readings[name]) * probs).sum(axis=1)
        p *= np.exp(log_p - log_p[p > 0].max())
        return np.asarray(p / p.sum())


def menu(surrogate: Surrogate, belief: dict[str, np.ndarray], position: int, live: np.ndarray, due: bool) -> Candidates:
    """The published menu of a week."""
    expected = float(belief["demand"] @ surrogate.demand)
    sizes = [int(np.clip(round(k * expected) - position, 0, surrogate.cap)) for k in (4, 6)]
    sizes = [q for q in dict.fromkeys(sizes) if q > 0]
    suppliers = [s for s in range(3) if live[s] or s == QUALIFIED]
    orders = [(0, NOTHING, -1), *itertools.product(sizes, (SUEZ, CAPE), suppliers)]
    locks = (False, True) if belief["freight"] @ surrogate.dear > 0.3 else (False,)
    flights = (0, 20) if belief["port"] @ surrogate.blocked > 0.3 else (0,)
    looks = (False, True) if due and belief["quality"] @ surrogate.tainted > 0.5 else (False,)
    return Candidates.of(
        [
            (*order, order[2] == QUALIFIED and not live[QUALIFIED], lock, air, look)
            for order, lock, air, look in itertools.product(orders, locks, flights, looks)
        ]
    )


class NumpyOracle:
    """The fair oracle; a `BatchPolicy` that takes its episodes one by one."""

    name = "numpy oracle"

    def __init__(self, world: World | None = None, futures: int | None = None) -> None:
        self.world = world or World.paper()
        self.futures = futures
        self.surrogate = Surrogate(self.world)
        self.filters = {name: Filter(f) for name, f in self.world.factors.items()}
        self.cumulative = {name: f.matrix.cumsum(axis=1)[:, :-1] for name, f in self.filters.items()}

    def begin(self, runs: Runs) -> Any:
        """See `BatchPolicy.begin`."""
        futures = 190 + np.asarray(runs.replication) if self.futures is None else np.full(len(runs.seed), self.futures)
        predicted = [{name: f.start for name, f in self.filters.items()} for _ in runs.seed]
        generators = [np.random.default_rng(pair) for pair in zip(runs.seed, runs.replication, strict=True)]
        return predicted, futures, generators

    def decide(self, memory: Any, week: int, readings: Any, shown: Shown) -> Any:
        """See `BatchPolicy.decide`."""
        predicted, futures, generators = memory
        units, eta = np.asarray(shown.units), np.asarray(shown.eta)
        inventory, live = np.asarray(shown.inventory), np.asarray(shown.live)
        rows, costs = [], []
        for i, prior in enumerate(predicted):
            read = {n: {k: float(v[i]) for k, v in channels.items()} for n, channels in readings.items()}
            belief = {n: f.correct(prior[n], read[n]) for n, f in self.filters.items()}
            predicted[i] = {n: belief[n] @ f.matrix for n, f in self.filters.items()}
            ships = [(int(q), int(e) - week - 1) for q, e in zip(units[i], eta[i], strict=True) if q > 0]
            position = int(inventory[i]) + sum(q for q, _ in ships)
            candidates = menu(self.surrogate, belief, position, live[i], any(d == 0 for _, d in ships))
            paths = self.sample(belief, HORIZON - week, int(futures[i]), generators[i])
            mean = self.surrogate.cost(float(inventory[i]), ships, live[i], candidates, paths).mean(axis=1)
            best = int(mean.argmin())
            rows.append([int(x[best]) for x in vars(candidates).values()])
            costs.append(float(mean[best]))
        qty, route, supplier, sign, lock, air, inspect = np.array(rows).T
        decision = Decision.make(
            qty=qty,
            route=route,
            supplier=supplier,
            action=sign,
            contract_supplier=np.where(sign == 1, QUALIFIED, -1),
            lock_weeks=LOCK_WEEKS * lock,
            air=air,
            inspect=inspect,
        )
        return memory, decision, {"cost": np.array(costs)}

    def sample(self, belief: dict[str, np.ndarray], weeks: int, count: int, rng: np.random.Generator) -> Any:
        """Futures: factor -> (week, future) state from next week on, the first state drawn from the belief."""
        out = {}
        for name in FACTORS:
            state = np.searchsorted(belief[name].cumsum()[:-1], rng.random(count), side="right")
            path = np.empty((weeks, count), int)
            for week in range(weeks):
                state = (rng.random((count, 1)) >= self.cumulative[name][state]).sum(axis=1)
                path[week] = state
            out[name] = path
        return out
