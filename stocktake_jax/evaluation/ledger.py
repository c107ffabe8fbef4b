"""What one run did and paid, week by week, and what that says of its responses (paper, section 5).

A run is compared with the fair oracle on the same weeks of the same tape. Costs of week t are the bill that week t
brings; they stand beside the rationale of week t, as stockouts do in the knowing-doing rate.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from stocktake_jax.desk import ACTIONS, CAPE, ROUTES, SPOT, SUPPLIERS, TERMS, Episode, Refusal, Rules
from stocktake_jax.desk.journal import Journal
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.beliefs import FIRST, LAST, WEEKS, Rate, Statements, Truth, share
from stocktake_jax.evaluation.simulate import ITEMS, Trajectories
from stocktake_jax.models import HORIZON, Tape, World

HARM = ("stockout", "couple", "surcharge", "demurrage", "rework")
"""Items of a bill that trouble causes: what is too much here is under-response."""

PROTECTION = tuple(item for item in ITEMS if item not in HARM)
"""Items that are bought: goods, stock and levers. What is too much here is over-response."""

AFTERMATH = 4
"""Weeks after stress whose costs are still put down to it: the lead time via the Cape."""

BOOKS = ("inventory", "on_order", "arrived")
"""Columns of `Ledger.books`."""

STATUSES = ("diagnosed", "undiagnosed", "calm", "ungraded", "last")
"""What a week is by its rationale; `last` is week 26, which has none."""

LOSSES = ("perception", "control", "other")
"""Where a loss against the oracle falls: after stress that was not named, after stress that was, anywhere else."""


@dataclass(frozen=True)
class Ledger:
    """What a run decided, paid and wrote.

    Attributes:
        bill: item -> dollars billed by each week; week 0 bills nothing.
        decision: field of `Decision` -> what was decided in weeks 0 .. 25.
        unmet: demand that was lost in each week, units.
        rationales: what was written in weeks 0 .. 25; empty texts for policies that write nothing.
        books: inventory, on_order, arrived -> units at the end of weeks 1 .. 26; empty where they are not known.
    """

    bill: Mapping[str, Float[np.ndarray, " week"]]
    decision: Mapping[str, Int[np.ndarray, " decision"]]
    unmet: Int[np.ndarray, " week"]
    rationales: tuple[str, ...]
    books: Mapping[str, Int[np.ndarray, " decision"]] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        """Total dollars, added up as an episode does it, to the last digit."""
        weeks = zip(*(self.bill[item].tolist() for item in ITEMS), strict=True)
        return float(sum(sum(week) for week in list(weeks)[1:]))

    @property
    def stockout(self) -> Bool[np.ndarray, " week"]:
        """Weeks with unmet demand, by the books."""
        return self.unmet > 0

    @property
    def sourced(self) -> Bool[np.ndarray, " week"]:
        """Weeks in which an order with spot was dispatched, so that its fill was seen."""
        ordered = (self.decision["qty"] > 0) & (self.decision["supplier"] == SPOT)
        return np.concatenate([[False], ordered])


def of_trajectories(runs: Trajectories) -> tuple[Ledger, ...]:
    """The ledgers of a batch of simulated episodes."""

    def weekly(column: np.ndarray) -> np.ndarray:
        return np.concatenate([np.zeros_like(column[:1]), column])

    return tuple(
        Ledger(
            {item: weekly(runs.bill[item][i].astype(np.float64)) for item in ITEMS},
            {name: column[i] for name, column in runs.decision.items()},
            weekly(runs.books["unmet"][i]),
            ("",) * HORIZON,
            {name: runs.books[name][i] for name in BOOKS},
        )
        for i in range(len(runs.runs.seed))
    )


@dataclass(frozen=True)
class Record:
    """A recorded episode: enough to make it again.

    Attributes:
        seed: of its tape.
        rules: of its books.
        world: the true world.
        calls: (tool, arguments) of every call that was accepted, in order.
        costs: what the record says that each of them was billed; None: it does not say.
        name: how messages call it.
    """

    seed: int
    rules: Rules
    world: World
    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    costs: tuple[float | None, ...] = ()
    name: str = "the record"

    def play(self) -> Ledger | None:
        """Make the episode again; None if it does not reach its end.

        Raises:
            InputError: if a call that was accepted is refused now, or is billed otherwise.
        """
        episode = Episode(self.seed, self.world, self.rules)
        unmet = [0]
        books: dict[str, list[int]] = {name: [] for name in BOOKS}
        recorded = self.costs or (None,) * len(self.calls)
        for (tool, arguments), cost in zip(self.calls, recorded, strict=True):
            where, before = f"{self.name}, week {episode.week}", episode.cost
            try:
                result = episode.call(tool, dict(arguments))
            except Refusal as refusal:
                raise InputError(f"{where}: {tool} was accepted and is refused now: {refusal}") from None
            if tool == "place_order":
                unmet.append(int(result["pos_units"]) - int(result["served"]["unit"]))
                for name, column in books.items():
                    column.append(int(result[name]))
                if cost is not None and not abs(episode.cost - before - cost) < 1e-6:
                    raise InputError(f"{where}: the week is billed {episode.cost - before} now and {cost} there")
        if not episode.done:
            return None
        weeks = episode.result()["weeks"]
        return Ledger(
            {item: np.array([0.0] + [w["breakdown"].get(item, 0.0) for w in weeks]) for item in ITEMS},
            _decisions(weeks),
            np.array(unmet, np.int64),
            tuple(w["rationale"] for w in weeks),
            {name: np.array(column, np.int64) for name, column in books.items()},
        )


def _decisions(weeks: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    def index(names: Sequence[str], name: str | None) -> int:
        return -1 if name is None else names.index(name)

    rows = []
    for w in weeks:
        order, contract = w["order"], w["contract"] or {}
        row = {
            "qty": order["qty"],
            "route": index(ROUTES, order["route"]),
            "supplier": index(SUPPLIERS, order["supplier"]),
            "action": index(ACTIONS, contract.get("action")) + 1,
            "contract_supplier": index(SUPPLIERS, contract.get("supplier")),
            "terms": index(TERMS, contract.get("terms")) + 1,
        }
        rows.append(row | {lever: w["levers"].get(lever, 0) for lever in LEVERS})
    return {name: np.array([row[name] for row in rows], np.int64) for name in rows[0]}


LEVERS = ("lock_weeks", "air", "inspect", "briefing", "audit")


def read_journal(path: str | Path) -> Record:
    """The record in an episode's journal, finished or not. The file is checked, and left as it is.

    Raises:
        InputError: if it is no journal, is damaged, or its tape has no seed. Whether it agrees with what this package
            computes is found when it is played.
    """
    path = Path(path)
    # From a copy: opening a journal takes it away from whoever is playing it.
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "journal"
        try:
            shutil.copyfile(path, copy)
            journal, header, entries = Journal.reopen(copy)
            journal.close()
        except OSError as error:
            raise InputError(f"cannot read the journal {path}: {error.strerror}") from None
        except InputError as error:
            raise InputError(str(error).replace(str(copy), str(path))) from None
    try:
        if header["seed"] is None:
            raise InputError(f"{path}: its tape has no seed, so it cannot be scored")
        world = _PAPER if header["world"] is None else World.from_toml(header["world"])
        accepted = [(e["tool"], e["args"], e.get("cost")) for e in entries if e.get("ok")]
        calls, costs = tuple((tool, args) for tool, args, _ in accepted), tuple(cost for *_, cost in accepted)
        return Record(int(header["seed"]), header["rules"], world, calls, costs, str(path))
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: not the journal of an episode ({error})") from None


_PAPER = World.paper()


# -- costs beside the truth


def week_statuses(run: Statements, truth: Truth) -> tuple[str, ...]:
    """What each week 0 .. 26 is, one of `STATUSES`. Week 0 is calm."""
    stress = np.asarray(truth.stressed.any(1))
    right = np.asarray((run.named & truth.stressed).any(1))
    out = ["calm"]
    for week in range(FIRST, LAST + 1):
        if not run.graded[week]:
            out.append("ungraded")
        else:
            out.append(("diagnosed" if right[week] else "undiagnosed") if stress[week] else "calm")
    return (*out, "last")


def cost_counts(ledger: Ledger, statuses: Sequence[str]) -> dict[str, Rate]:
    """`cost.<status>.<item>` and `cost.<status>.total`, dollars and weeks; week 0 bills nothing and is left out."""
    out: dict[str, Rate] = {}
    of = np.array(statuses)[1:]
    for status in STATUSES:
        chosen = of == status
        amounts = {item: float(ledger.bill[item][1:][chosen].sum()) for item in ITEMS}
        weeks = int(chosen.sum())
        out |= {f"cost.{status}.{item}": Rate(amount, weeks) for item, amount in amounts.items()}
        out[f"cost.{status}.total"] = Rate(sum(amounts.values()), weeks)
    return out


def loss_counts(ledger: Ledger, oracle: Sequence[Ledger], run: Statements, truth: Truth) -> dict[str, Rate]:
    """`loss.<where>.<kind>`: dollars above the oracle's mean bill, per run.

    Where: a week belongs to the last week with stress among itself and the `AFTERMATH` weeks before it: `perception` if
    nothing under stress was named in that week, `control` if something was, `other` if there is no such week, or it is
    ungraded. Kind: `under` for items that trouble causes, `over` for items that are bought, `total`. A description, not
    a proof: a stockout can have its root in an order of weeks before.
    """
    status = week_statuses(run, truth)
    where = []
    for week in range(WEEKS):
        recent = [status[w] for w in range(week, max(week - AFTERMATH, 0) - 1, -1)]
        found = next((s for s in recent if s not in ("calm", "last")), "calm")
        where.append({"undiagnosed": "perception", "diagnosed": "control"}.get(found, "other"))
    places, out = np.array(where), {}
    for kind, items in (("under", HARM), ("over", PROTECTION), ("total", ITEMS)):
        mine = sum(ledger.bill[i] for i in items)
        theirs = sum(sum(o.bill[i] for i in items) for o in oracle) / len(oracle)
        excess = np.asarray(mine - theirs)
        for place in LOSSES:
            out[f"loss.{place}.{kind}"] = Rate(float(excess[places == place].sum()), 1)
        out[f"loss.all.{kind}"] = Rate(float(excess.sum()), 1)
    return out


RESPONSES: dict[str, str] = {
    "lock_called": "weeks with freight tightening or at its spike and a lock in force for the next week",
    "lock_uncalled": "other weeks with a lock in force",
    "lock_in_spike_runs": "runs whose tape has a freight spike, in which freight is locked at least once",
    "lock_cost": "dollars paid above the spot rate because of locks, per run; negative: saved",
    "air_called": "weeks with a blocked port in which units are flown in",
    "air_uncalled": "other weeks in which units are flown in",
    "air_in_stress": "air orders in weeks with any stress, of all air orders",
    "air_spend": "dollars for air, per run",
    "inspect_called": "weeks with quality out of control in which the batch is inspected",
    "inspect_uncalled": "other weeks in which a batch is inspected",
    "inspect_in_escape_runs": "runs whose tape has quality out of control, in which a batch is inspected at least once",
    "cape_called": "sea orders in weeks with the canal disrupted that go by the Cape",
    "cape_uncalled": "sea orders in other weeks that go by the Cape",
    "leaves_spot_called": "sea orders in weeks with spot degraded or defunct that go to somebody else",
    "no_order_blocked": "weeks with a blocked port in which nothing is ordered by sea",
    "no_order_open": "other weeks in which nothing is ordered by sea",
    "briefings": "briefings bought, per run",
    "audits": "audits bought, per run",
}
"""The response taxonomy. Decisions of weeks 1 .. 25, against the truth of the week they are taken in."""


def response_counts(ledger: Ledger, tape: Tape, world: World) -> dict[str, Rate]:
    """Every entry of `RESPONSES`, of one run."""
    d = {name: np.asarray(column) for name, column in ledger.decision.items()}

    rates, lock_cost = _locks(ledger, tape, world)
    held = np.isfinite(rates[1:])
    freight, spike = (
        _in_regimes(tape, world, "freight", "tightening", "spike"),
        _in_regimes(tape, world, "freight", "spike"),
    )
    blocked = _in_regimes(tape, world, "port", "congested", "customs_hold")
    escape, closed = (
        _in_regimes(tape, world, "quality", "out_of_control"),
        _in_regimes(tape, world, "canal", "disruption"),
    )
    spot_bad = _in_regimes(tape, world, "supplier", "degraded", "defunct")
    stress = np.asarray(Truth.of(tape, world).stressed.any(1))
    air, inspects, orders = d["air"] > 0, d["inspect"] > 0, d["qty"] > 0
    cape, away = d["route"] == CAPE, d["supplier"] != SPOT

    decided = slice(FIRST, LAST + 1)
    spike, escaped, bought = spike[:HORIZON], escape[:HORIZON], d["inspect"] > 0
    freight, blocked, escape, closed, spot_bad, stress = (
        x[decided] for x in (freight, blocked, escape, closed, spot_bad, stress)
    )
    held, air, inspects, orders, cape, away = (x[decided] for x in (held, air, inspects, orders, cape, away))
    return {
        "lock_called": share(held, freight),
        "lock_uncalled": share(held, ~freight),
        "lock_in_spike_runs": Rate(int((d["lock_weeks"] > 0).any()), 1) if spike.any() else Rate(0, 0),
        "lock_cost": Rate(lock_cost, 1),
        "air_called": share(air, blocked),
        "air_uncalled": share(air, ~blocked),
        "air_in_stress": share(stress, air),
        "air_spend": Rate(float(ledger.bill["air"].sum()), 1),
        "inspect_called": share(inspects, escape),
        "inspect_uncalled": share(inspects, ~escape),
        "inspect_in_escape_runs": Rate(int(bought.any()), 1) if escaped.any() else Rate(0, 0),
        "cape_called": share(cape, closed & orders),
        "cape_uncalled": share(cape, ~closed & orders),
        "leaves_spot_called": share(away, spot_bad & orders),
        "no_order_blocked": share(~orders, blocked),
        "no_order_open": share(~orders, ~blocked),
        "briefings": Rate(int(d["briefing"].sum()), 1),
        "audits": Rate(int(d["audit"].sum()), 1),
    }


def _in_regimes(tape: Tape, world: World, factor: str, *labels: str) -> np.ndarray:
    """(week,) True where a factor is in one of some regimes."""
    f = world.factors[factor]
    mask = np.logical_or.reduce([f.mask(label=label) for label in labels])
    return np.asarray(mask[np.asarray(tape.states[factor])])


def _locks(ledger: Ledger, tape: Tape, world: World) -> tuple[np.ndarray, float]:
    """The locked multiplier of each week (nan: none), and what the locks cost above the spot rate."""
    multiplier = np.asarray(tape.values["freight"]["freight_index"], np.float64)
    fill = np.asarray(tape.values["supplier"]["realized_fill"], np.float64)
    deltas = [float(x) for x in (world.costs.delta_qualified, world.costs.delta_spot, world.costs.delta_backup)]
    rates, rate, left, cost = np.full(WEEKS, math.nan), math.nan, 0, 0.0
    for week in range(1, WEEKS):
        bought = int(ledger.decision["lock_weeks"][week - 1])
        if bought:
            rate, left = float(multiplier[week - 1]), bought
        if left > 0:
            left -= 1
            rates[week] = rate
            qty, supplier = int(ledger.decision["qty"][week - 1]), int(ledger.decision["supplier"][week - 1])
            if qty:
                shipped = float(np.round(qty * fill[week])) if supplier == SPOT else float(qty)
                freight = float(ledger.bill["shipping"][week]) - shipped * deltas[supplier] if shipped else 0.0
                cost += freight * (1 - float(multiplier[week]) / rate)
    return rates, cost


def mean_counts(several: Iterable[Mapping[str, Rate]]) -> dict[str, Rate]:
    """Counts of several runs averaged, so that an oracle of many runs weighs as much as one run of an agent."""
    rows = list(several)
    return {
        name: Rate(sum(r[name].numerator for r in rows) / len(rows), sum(r[name].denominator for r in rows) / len(rows))
        for name in rows[0]
    }
