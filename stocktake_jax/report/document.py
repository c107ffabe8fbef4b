"""The data that a page carries: every seed's episode as plain lists of whole numbers, small enough for one file.

Money is in cents, probabilities are in thousandths. Tapes and posteriors are computed again from the seeds, which is
deterministic; the books of floor and oracle are those that the benchmark saved, those of agents are their journals'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from stocktake_jax.desk import ACTIONS, ROUTES, SPOT, SUPPLIERS, TERMS
from stocktake_jax.desk.contracts import host
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.beliefs import FIRST, LAST, WEEKS, Statements, Truth, split_rationale, stress_episodes
from stocktake_jax.evaluation.benchmark import BenchResult, SeedResult
from stocktake_jax.evaluation.published import published_agents, published_beliefs
from stocktake_jax.evaluation.scoring import Run
from stocktake_jax.evaluation.simulate import ITEMS
from stocktake_jax.inference import filter_world
from stocktake_jax.models import FACTORS, HORIZON, Initial, Likelihood, Readings, Tape, World
from stocktake_jax.models.quality import RESULTS

MOST_CHARACTERS = 2000
"""A rationale longer than this is cut on the page, which says so; it keeps long ones from filling the file."""

CHANNELS: Mapping[str, Mapping[str, str]] = {
    "canal": {
        "suez_count": "Suez transits, ships",
        "bab_count": "Bab-el-Mandeb transits, ships",
        "cape_count": "Cape transits, ships",
    },
    "supplier": {
        "realized_lead_slip": "spot's lead slip, days",
        "otif": "spot's scorecard OTIF, %",
        "lead_days": "spot's scorecard lead, days",
        "realized_fill": "spot's fill of an order (seen if one was placed)",
    },
    "demand": {"pos_units": "demand, units", "demand_forecast": "demand forecast, units"},
    "freight": {"freight_index": "freight index", "freight_outlook": "freight outlook, index"},
    "port": {"berth_wait": "berth wait, days", "wait_outlook": "berth wait outlook, days"},
    "quality": {
        "aql_result": "inspection (0 accept, 1 marginal, 2 reject)",
        "defect_fraction": "defective share (hidden)",
    },
}
"""What a tape's strip can show: factor -> channel -> how it is called. The first one is drawn, the second one dashed."""

DASHED = ("demand_forecast", "freight_outlook", "wait_outlook")
"""Second channels in the same unit as the first one."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "goods and freight": ("shipping",),
    "stock on the shelf": ("holding",),
    "stock at sea": ("in_transit",),
    "air": ("air",),
    "protection bought": ("briefing", "audit", "inspect", "dual_source", "break_fee"),
    "fees of trouble": ("surcharge", "couple", "demurrage", "rework"),
    "demand lost": ("stockout",),
}
"""How the items of a bill are pooled in the chart of the weekly bill; its table has every item."""

BATCH = 64
"""Series that are filtered together."""

BOOKS = ("inventory", "on_order", "arrived", "unmet")
FIELDS = (
    *("qty", "route", "supplier", "action", "contract_supplier", "terms"),
    *("lock_weeks", "air", "inspect", "briefing", "audit"),
)
_NOTHING = {"qty": 0, "route": -1, "supplier": -1, "action": 0, "contract_supplier": -1, "terms": 0}


def episodes(result: BenchResult, runs: Sequence[Run] = (), most: int = MOST_CHARACTERS) -> dict[str, Any]:
    """The episodes of all seeds of a benchmark: tapes, posteriors, books, and what agents wrote.

    A seed on which one of `runs` is unfinished keeps its costs, and nothing else of it: whoever plays on must not find
    there what is hidden from him.

    Args:
        result: what `run_benchmark` or `read_results` gave.
        runs: agents' runs; those with a ledger, on a seed of the results, are drawn.
        most: characters of a rationale that are kept.

    Returns:
        A document of strings, whole numbers, short decimals, lists and dicts; see docs/report.md.
    """
    world, seeds = result.options.true_world, [r.seed for r in result.seeds]
    hidden = unfinished_seeds(runs)
    drawn = [run for run in runs if run.ledger is not None and run.seed in seeds and run.seed not in hidden]
    tapes = Tape.published_batch(seeds, world)
    books = [_books(of_seed) for of_seed in result.seeds]
    sourced = [_oracle_sourced(r) for r in result.seeds] + [_sourced(run) for run in drawn]
    tape_of = np.array([*range(len(seeds)), *(seeds.index(run.seed) for run in drawn)])
    posteriors = _filters(result, jax.tree.map(lambda x: x[tape_of], tapes), np.array(sourced))
    values, published = _values(world, tapes), has_published_agents(result)
    out = []
    for i, of_seed in enumerate(result.seeds):
        row = _head(of_seed, result, i)
        if of_seed.seed in hidden:
            out.append(row | {"withheld": True})
            continue
        tape = jax.tree.map(lambda x, i=i: x[i], tapes)
        truth = Truth.of(tape, world)
        row["stress"] = [[e.factor, e.onset, e.end] for e in stress_episodes(truth)]
        row["regime"] = [_labels_of(world, name, tape) for name in FACTORS]
        row["age"] = [tape.ages[name].tolist() for name in FACTORS]
        row["values"] = [[_numbers(values[name][c][i]) for c in CHANNELS[name]] for name in FACTORS]
        row["filter"] = [_thousandths(posteriors[name][i]) for name in FACTORS]
        row["runs"] = books[i]
        for j, run in enumerate(drawn, start=len(seeds)):
            if run.seed == of_seed.seed:
                row["runs"].append(_agent(run, _thousandths(posteriors["supplier"][j]), most))
        row["published"] = _published(of_seed.seed) if published else []
        out.append(row)
    return {
        "factors": [_factor(world, name) for name in FACTORS],
        "items": list(ITEMS),
        "groups": [[title, list(items)] for title, items in GROUPS.items()],
        "words": {"route": ROUTES, "supplier": SUPPLIERS, "action": ACTIONS, "terms": TERMS},
        "horizon": HORIZON,
        "oracle_runs": result.options.replications,
        "filter": f"{result.options.likelihood} likelihood, {result.options.initial} start",
        "seeds": out,
    }


def unfinished_seeds(runs: Sequence[Run]) -> frozenset[int]:
    """The seeds on which an episode is not finished."""
    return frozenset(run.seed for run in runs if math.isnan(run.cost) and run.statements is None)


def has_published_agents(result: BenchResult) -> bool:
    """Whether the tapes and rules are those that the four published agents played."""
    options = result.options
    return options.rules == "paper" and options.true_world.to_toml() == World.paper().to_toml()


def clean(text: str, most: int | None = None) -> str:
    """Text that can be written as UTF-8, cut if it is longer than `most`, which it then says."""
    text = text.encode("utf-8", "replace").decode()  # a journal may hold half a surrogate pair
    if most is None or len(text) <= most:
        return text
    return f"{text[:most].rstrip()} […] (cut here; {len(text):,} characters in the journal)"


def cents(dollars: float) -> int:
    """Dollars in whole cents."""
    return round(100 * dollars)


# ---- what the page must know of the world ---------------------------------------------------------------------------


def _factor(world: World, name: str) -> dict[str, Any]:
    factor = world.factors[name]

    def any_of(kind: str) -> list[int]:
        return [
            int(any(getattr(r, kind) for r in factor.regimes if r.label == label)) for label in factor.labels
        ]  # regimes of one label are of one kind

    channels = CHANNELS[name]
    return {
        "name": name,
        "labels": list(factor.labels),
        "trouble": any_of("stress"),
        "brewing": any_of("brewing"),
        "channels": list(channels.values()),
        "dashed": int(len(channels) > 1 and list(channels)[1] in DASHED),
        "words": RESULTS if name == "quality" else None,
    }


def _labels_of(world: World, name: str, tape: Tape) -> list[int]:
    factor = world.factors[name]
    place = np.array([factor.labels.index(r.label) for r in factor.state_regimes])
    return place[np.asarray(tape.states[name])].tolist()


def _values(world: World, tapes: Tape) -> dict[str, dict[str, np.ndarray]]:
    """factor -> channel -> (seed, week) what is shown; what is never shown as it is."""
    shown = tapes.readings(world, host(np.ones(np.shape(tapes.states["canal"])), np.bool_))
    return {
        name: {c: np.asarray(shown[name].get(c, tapes.values[name].get(c)), np.float64) for c in channels}
        for name, channels in CHANNELS.items()
    }


# ---- posteriors -----------------------------------------------------------------------------------------------------


def _oracle_sourced(of_seed: SeedResult) -> np.ndarray:
    decided = [week["decision"] for week in of_seed.weeks["oracle"]]
    return np.array([False, *(d["qty"] > 0 and d["supplier"] == SUPPLIERS[SPOT] for d in decided)])


def _sourced(run: Run) -> np.ndarray:
    assert run.ledger is not None
    return np.asarray(run.ledger.sourced)


def _filters(result: BenchResult, tapes: Tape, sourced: Bool[np.ndarray, "run week"]) -> dict[str, np.ndarray]:
    """factor -> (run, week, label) posteriors of the filters that the benchmark's oracle uses, in float64."""
    options, count = result.options, len(sourced)
    readings = tapes.readings(options.true_world, host(sourced, np.bool_))
    # Filled up to whole batches, so that one compiled program serves most numbers of journals.
    fill = (0, -count % BATCH)
    readings = jax.tree.map(lambda x: np.pad(np.asarray(x), (fill, (0, 0)), mode="edge"), readings)
    with jax.enable_x64(True):
        found = _filter_jit(options.model, readings, options.likelihood, options.initial)
        return {name: np.asarray(p)[:count] for name, p in found.items()}


@eqx.filter_jit
def _filter_jit(
    world: World, readings: Readings, likelihood: Likelihood, initial: Initial
) -> dict[str, Float[Array, "run week label"]]:
    def one(series: Readings) -> dict[str, Array]:
        found = filter_world(world, series, likelihood, initial)
        return {name: f.regime_probabilities(found[name].belief) for name, f in world.factors.items()}

    return jax.vmap(one)(readings)


def _thousandths(posterior: Float[np.ndarray, "week label"]) -> list[list[int]]:
    """By label and week."""
    return np.round(1000 * posterior.T).astype(int).tolist()


def _numbers(column: Float[np.ndarray, " week"]) -> list[int | float | None]:
    out: list[int | float | None] = []
    for x in column.tolist():
        out.append(None if math.isnan(x) else int(x) if x == int(x) else round(x, 5))
    return out


# ---- books ----------------------------------------------------------------------------------------------------------


def _head(of_seed: SeedResult, result: BenchResult, i: int) -> dict[str, Any]:
    error = float(result.references.oracle_se[i])
    return {
        "seed": of_seed.seed,
        "profile": of_seed.profile,
        "floor": cents(of_seed.floor),
        "oracle": {
            "mean": cents(float(result.references.oracle[i])),
            "se": None if math.isnan(error) else cents(error),
            "min": cents(min(of_seed.oracle)),
            "max": cents(max(of_seed.oracle)),
        },
    }


def _books(of_seed: SeedResult) -> list[dict[str, Any]]:
    """Run 1 of the floor, which has no other, and of the oracle."""
    try:
        floor, oracle = (_saved(of_seed.weeks[name]) for name in ("floor", "oracle"))
        assert len(floor["weekly"]) == len(oracle["weekly"]) == HORIZON
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"seeds/{of_seed.seed}.json of the results is damaged ({type(error).__name__}: {error}); delete it, and run "
            "the benchmark again"
        ) from None
    return [
        {"who": "floor", "name": "floor", "cost": cents(of_seed.floor)} | floor,
        {"who": "oracle", "name": f"oracle, run 1 of {len(of_seed.oracle)}", "cost": cents(of_seed.oracle[0])} | oracle,
    ]


def _saved(weeks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Run 1 of floor or oracle from the benchmark's file."""
    bill = {item: [float(w["bill"].get(item, 0.0)) for w in weeks] for item in ITEMS}
    books = {name: [int(w["books"][name]) for w in weeks] for name in BOOKS}
    return _booked(bill, books, [_decision(w["decision"]) for w in weeks])


def _decision(d: Mapping[str, Any]) -> dict[str, int]:
    """A decision in the tools' words as whole numbers, as `Decision` has them."""

    def place(names: Sequence[str], word: str | None) -> int:
        return -1 if word is None else names.index(word)

    return {
        "qty": d["qty"],
        "route": place(ROUTES, d["route"]),
        "supplier": place(SUPPLIERS, d["supplier"]),
        "action": place(ACTIONS, d["contract_action"]) + 1,
        "contract_supplier": place(SUPPLIERS, d["contract_supplier"]),
        "terms": place(TERMS, d["contract_terms"]) + 1,
        **{name: int(d[name]) for name in ("lock_weeks", "air", "inspect", "briefing", "audit")},
    }


def _booked(
    bill: Mapping[str, Sequence[float]], books: Mapping[str, Sequence[int]], decided: Sequence[Mapping[str, int]]
) -> dict[str, Any]:
    """Weeks 1 .. 26 in the document's numbers; items and fields that never happen are left out."""
    columns = {name: [d[name] for d in decided] for name in FIELDS}
    return {
        "weekly": [cents(sum(week)) for week in zip(*bill.values(), strict=True)],
        "bill": {item: [cents(x) for x in amounts] for item, amounts in bill.items() if any(amounts)},
        "books": {name: list(units) for name, units in books.items()},
        "decision": {n: c for n, c in columns.items() if n == "qty" or any(x != _NOTHING.get(n, 0) for x in c)},
    }


def _agent(run: Run, supplier: list[list[int]], most: int) -> dict[str, Any]:
    """An agent's run. `supplier` is the filter's belief about spot on what this run was shown of it."""
    ledger = run.ledger
    assert ledger is not None
    bill = {item: ledger.bill[item][1:].tolist() for item in ITEMS}
    books = {name: np.asarray(ledger.books[name]).tolist() for name in BOOKS[:-1]}
    books["unmet"] = ledger.unmet[1:].tolist()
    decided = [{name: int(ledger.decision[name][week]) for name in FIELDS} for week in range(HORIZON)]
    out: dict[str, Any] = {
        "who": "agent",
        "name": clean(run.agent),
        "repeat": run.repeat,
        "cost": cents(run.cost),
        "supplier": supplier,
    }
    out |= _booked(bill, books, decided)
    if run.privileged:
        out["privileged"] = 1
    words = [split_rationale(text)[0] for text in ledger.rationales]
    if any(words):
        out["rationale"] = [clean(text, most) for text in words]
    if run.statements is not None:
        out["named"] = _masks(run.statements)
        if not np.isnan(run.statements.probability).all():
            out["stated"] = [
                [None if math.isnan(p) else round(1000 * p) for p in week]
                for week in run.statements.probability.tolist()
            ]
    return out


def _masks(statements: Statements) -> list[int]:
    """Weeks 0 .. 26: the named factors as bits in the order of `FACTORS`; -1 for weeks without a label."""
    bits = 1 << np.arange(len(FACTORS))
    masks = [
        int(bits[named].sum()) if good else -1 for named, good in zip(statements.named, statements.graded, strict=True)
    ]
    return [mask if FIRST <= week <= LAST else -1 for week, mask in enumerate(masks)]


def _published(seed: int) -> list[dict[str, Any]]:
    """The four published agents on a seed: labels and stockouts; their books are not public."""
    out = []
    for (agent, of), stated in published_beliefs().items():
        if of == seed:
            statements = Statements.published(stated)
            out.append(
                {
                    "name": agent,
                    "cost": cents(published_agents()[agent][seed]),
                    "named": _masks(statements),
                    "stockout": statements.stockout.astype(int).tolist(),
                }
            )
    assert all(len(row["named"]) == WEEKS for row in out)
    return out
