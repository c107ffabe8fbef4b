"""Scores of any number of agents: skill, beliefs, costs and responses, beside the published agents and the oracle.

`score_runs` takes runs from wherever they come (journals, logs, CSV files, the published labels) and returns a
`ScoreBoard`: per agent, metric and stress profile a `Rate`, with intervals and tests over seeds. `ScoreBoard.to_json`
is what `stocktake score --json` prints, `ScoreBoard.text` what it shows.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from stocktake_jax.desk import Rules
from stocktake_jax.desk.contracts import host
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.beliefs import (
    BUDGET,
    FIRST,
    LAST,
    Rate,
    Statements,
    Truth,
    belief_counts,
    pooled,
    split_rationale,
)
from stocktake_jax.evaluation.catalog import classify_seed
from stocktake_jax.evaluation.ledger import (
    Ledger,
    cost_counts,
    loss_counts,
    mean_counts,
    of_trajectories,
    response_counts,
    week_statuses,
)
from stocktake_jax.evaluation.published import PROFILES, parse_beliefs, published_agents, published_beliefs
from stocktake_jax.evaluation.simulate import simulate
from stocktake_jax.evaluation.skill import ALL, BOOTSTRAP_SEED, GROUPS, References, SkillTable, score
from stocktake_jax.evaluation.statistics import LEVEL, NO_INTERVAL, Contrast, Interval, MeanEstimate, holm
from stocktake_jax.inference import filter_world
from stocktake_jax.models import FACTORS, HORIZON, Tape, World
from stocktake_jax.policies import Oracle, Runs

PAPER = World.paper()

Labeller = Callable[[Sequence[str]], Sequence[frozenset[str] | None]]
"""A grader: rationales to the factors that each asserts to be a problem; None for one that it could not grade."""

QUOTED: Mapping[str, Mapping[str, Mapping[str, tuple[float, int | None]]]] = {
    agent: {
        "knowing_doing_quoted": dict(
            zip((*PROFILES, ALL), [(x, None) for x in rates[:3]] + [(rates[3], counts[0])], strict=True)
        ),
        "stockout_undiagnosed_quoted": {ALL: (undiagnosed, counts[1])},
    }
    for agent, rates, undiagnosed, counts in (
        ("claude-sonnet-5", (0.24, 0.43, 0.30, 0.34), 0.19, (515, 162)),
        ("gpt-5.4", (0.08, 0.37, 0.22, 0.26), 0.14, (502, 175)),
        ("deepseek-v4-pro", (0.07, 0.40, 0.22, 0.26), 0.11, (469, 208)),
        ("grok-4.5", (0.09, 0.34, 0.21, 0.24), 0.12, (544, 133)),
    )
}
"""Rates and week counts as the paper prints them (Tables 3 and 4): its stockouts missed units flown in, so that they
cannot be computed from the published labels, which have the books' stockouts."""

TESTED = ("missed", "mean_lag", "precision", "knowing_doing", "stockout_undiagnosed")
"""Rates that are compared between every two agents."""

RESAMPLES = 10_000


@dataclass(frozen=True)
class Run:
    """One episode of one agent, with as much of it as is known.

    Attributes:
        agent, seed, repeat: which run.
        cost: total dollars; nan if the episode was not finished.
        ledger: what it did and paid, or None (a cost alone was given).
        statements: what its rationales assert, or None.
        world: the true world.
        privileged: the agent was shown hidden states. It is marked in every table.
        notes: how the run came about: model, prompt hash, versions, grader.
        rules: of its books.
    """

    agent: str
    seed: int
    cost: float
    repeat: int = 1
    ledger: Ledger | None = None
    statements: Statements | None = None
    world: World = PAPER
    privileged: bool = False
    notes: Mapping[str, Any] = field(default_factory=dict)
    rules: Rules = "paper"


def published_runs() -> tuple[Run, ...]:
    """The 200 runs of the four published agents: total costs and labels."""
    beliefs = published_beliefs()
    return tuple(
        Run(agent, seed, cost, statements=Statements.published(beliefs[agent, seed]))
        for agent, costs in published_agents().items()
        for seed, cost in costs.items()
    )


def labelled(runs: Sequence[Run], grader: Labeller, name: str) -> tuple[Run, ...]:
    """The same runs with their rationales graded; runs without rationales stay as they are.

    The grader is given the words alone: not the tape, not the agent, not the probabilities stated beside them.

    Args:
        runs: any runs.
        grader: see `Labeller`.
        name: its exact identity, for the notes.
    """
    out = []
    for run in runs:
        if run.ledger is None or not any(run.ledger.rationales):
            out.append(run)
            continue
        words, stated = zip(*[split_rationale(text) for text in run.ledger.rationales], strict=True)
        weeks = range(FIRST, LAST + 1)
        labels = dict(zip(weeks, grader([words[week] for week in weeks]), strict=True))
        probability = np.full((HORIZON + 1, len(FACTORS)), math.nan)
        for week in weeks:
            if stated[week] is not None:
                probability[week] = [stated[week][factor] for factor in FACTORS]
        statements = Statements.make(run.agent, run.seed, labels, run.ledger.stockout, probability, run.repeat)
        out.append(replace(run, statements=statements, notes=dict(run.notes) | {"grader": name}))
    # Known once it has answered.
    resolved = tuple(sorted(getattr(grader, "resolved", ())))
    if resolved:
        out = [
            replace(r, notes=dict(r.notes) | {"grader's resolved model": resolved}) if "grader" in r.notes else r
            for r in out
        ]
    return tuple(out)


def read_label_file(path: str | Path) -> tuple[Run, ...]:
    """Runs from a text file in the shape of the published labels, agent|seed|26 tokens; their costs are unknown (nan).

    Raises:
        InputError: naming the file and the line at fault.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the labels {path}: {error}") from None
    return tuple(
        Run(b.agent, b.seed, math.nan, statements=Statements.published(b)) for b in parse_beliefs(text, str(path))
    )


# -- the oracle on the same tapes


def oracle_ledgers(
    seeds: Sequence[int],
    runs: int,
    world: World | None = None,
    rules: Rules = "paper",
    on_week: Callable[[int], None] | None = None,
) -> dict[int, tuple[Ledger, ...]]:
    """The fair oracle's ledgers on some seeds: the first `runs` runs of the published protocol on each."""
    world = world or World.paper()
    tapes = Tape.published_batch(list(seeds), world)
    of = np.repeat(np.arange(len(seeds)), runs)
    which = Runs(np.asarray(seeds)[of], np.tile(np.arange(1, runs + 1), len(seeds)))
    found = of_trajectories(simulate(Oracle(world), tapes, which, of, world, rules, on_week=on_week))
    return {seed: tuple(found[i * runs : (i + 1) * runs]) for i, seed in enumerate(seeds)}


def filter_stress(world: World, tape: Tape, sourced: np.ndarray) -> Float[np.ndarray, "week factor"]:
    """The exact filter's probability of stress in each week, given what a run was shown.

    Args:
        world: its model, the true one.
        tape: a single tape.
        sourced: (week,) weeks in which the run saw spot's fill.
    """
    readings = jax.tree.map(lambda x: np.asarray(x, np.float32), tape.readings(world, host(sourced, np.bool_)))
    # float32 sums of a posterior may exceed 1 in the last digit.
    return np.minimum(np.asarray(_filter_jit(world, readings), np.float64), 1.0)


@jax.jit
def _filter_jit(world: World, readings: Any) -> Any:
    beliefs = filter_world(world, readings, "exact", "baseline")
    return jax.numpy.stack(
        [
            jax.numpy.sum(jax.numpy.where(f.stress_mask, beliefs[n].belief, 0.0), axis=-1)
            for n, f in world.factors.items()
        ],
        axis=-1,
    )


# -- the board


@dataclass(frozen=True)
class RateEstimate:
    """A rate pooled over runs, with the percentile interval of a bootstrap over seeds."""

    rate: Rate
    interval: Interval


@dataclass(frozen=True)
class ScoreBoard:
    """The scores of some agents.

    Attributes:
        agents: in the order given.
        rates: agent -> metric -> stress profile or "all" -> rate with interval.
        quoted: agent -> metric -> profile or "all" -> (value, count) as the paper prints it.
        skill: the skill table.
        contrasts: differences of rates between every two agents, Holm-adjusted within each metric.
        privileged: agents that were shown hidden states.
        runs: agent -> (finished runs, all runs).
        notes: agent -> what is known of how its runs came about, each with its distinct values.
        budget: names a week that the budget-limited detection rate allowed.
    """

    agents: tuple[str, ...]
    rates: Mapping[str, Mapping[str, Mapping[str, RateEstimate]]]
    quoted: Mapping[str, Mapping[str, Mapping[str, tuple[float, int | None]]]]
    skill: SkillTable
    contrasts: Mapping[str, tuple[Contrast, ...]]
    privileged: frozenset[str]
    runs: Mapping[str, tuple[int, int]]
    notes: Mapping[str, Mapping[str, tuple[str, ...]]]
    budget: float = BUDGET

    def rate(self, agent: str, metric: str, group: str = ALL) -> Rate:
        """One rate.

        Raises:
            KeyError: if the agent has no such metric.
        """
        return self.rates[agent][metric][group].rate

    def to_json(self) -> dict[str, dict[str, dict[str, dict[str, float | None]]]]:
        """agent -> metric -> profile or "all" -> {"value", "numerator", "denominator"}; undefined numbers are None."""
        out: dict[str, dict[str, dict[str, dict[str, float | None]]]] = {}
        for agent in self.agents:
            out[agent] = {
                metric: {group: estimate.rate.to_json() for group, estimate in groups.items()}
                for metric, groups in self.rates[agent].items()
            }
            out[agent]["skill_median"] = {
                group: {"value": _none(e.median), "numerator": None, "denominator": e.n}
                for group, e in self.skill[agent].groups.items()
            }
            out[agent] |= {
                metric: {
                    group: {"value": value, "numerator": None, "denominator": count}
                    for group, (value, count) in groups.items()
                }
                for metric, groups in self.quoted.get(agent, {}).items()
            }
        return out

    def rate_rows(self) -> list[dict[str, object]]:
        """One flat row per agent, metric and group, with intervals, for CSV; undefined numbers are None."""
        return [
            {
                "agent": agent,
                "metric": metric,
                "group": group,
                **estimate.rate.to_json(),
                "low": _none(estimate.interval.low),
                "high": _none(estimate.interval.high),
            }
            for agent in self.agents
            for metric, groups in self.rates[agent].items()
            for group, estimate in groups.items()
        ]

    def contrast_rows(self) -> list[dict[str, object]]:
        """One flat row per metric and pair of agents, for CSV; undefined numbers are None."""
        every = {"skill": self.skill.contrasts} | dict(self.contrasts)
        return [
            {
                "metric": metric,
                "first": c.first,
                "second": c.second,
                "seeds": c.estimate.n,
                "difference": _none(c.estimate.mean),
                "low": _none(c.estimate.percentile.low),
                "high": _none(c.estimate.percentile.high),
                "p": _none(c.p_value),
                "p_holm": _none(c.p_holm),
                "family": c.family,
            }
            for metric, contrasts in every.items()
            for c in contrasts
        ]

    def text(self) -> str:
        """All tables, as plain text."""
        from stocktake_jax.evaluation.score_text import board_text

        return board_text(self)


def score_runs(
    runs: Sequence[Run],
    references: References | None = None,
    *,
    oracle: Mapping[int, Sequence[Ledger]] | None = None,
    budget: float = BUDGET,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = BOOTSTRAP_SEED,
) -> ScoreBoard:
    """Score runs.

    Args:
        runs: of any agents, seeds and repeats; (agent, seed, repeat) tells them apart.
        references: floor and oracle costs by seed; by default the published ones, which are of the published world and
            the paper's rules: runs of another world or other rules have no skill then. Nor has a seed without a
            reference; its beliefs count.
        oracle: the oracle's ledgers by seed, for the costs and responses beside which the agents' stand.
        budget: names a week that the budget-limited detection rate allows.
        level: coverage of the intervals.
        resamples: bootstrap samples over seeds, and permutations in the tests of rates.
        seed: of these.

    Raises:
        InputError: for a repeated run, no runs, or runs of several worlds or rules.
    """
    if not runs:
        raise InputError("there are no runs to score")
    if resamples < 1 or not 0 < level < 1:
        raise InputError(f"resamples must be at least 1 and level between 0 and 1, not {resamples} and {level}")
    seen: set[tuple[str, int, int]] = set()
    for run in runs:
        key = (run.agent, run.seed, run.repeat)
        if key in seen:
            raise InputError(f"agent {run.agent}, seed {run.seed}, repeat {run.repeat} is given twice")
        seen.add(key)
    settings = {(run.rules, toml_of(run.world)) for run in runs}
    if len(settings) > 1:
        raise InputError("the runs are of different worlds or rules; score them one by one")
    if references is None:
        references = References.published(None if settings == {("paper", toml_of(PAPER))} else [])
    agents = tuple(dict.fromkeys(run.agent for run in runs))
    skills = score(_costs(runs), references, bootstrap_seed=seed, level=level, resamples=resamples)
    profile_of = dict(zip(references.seeds, references.profiles, strict=True))
    tapes, truths = _truths({run.seed for run in runs}, runs[0].world)
    by_agent: dict[str, dict[int, list[dict[str, Rate]]]] = {agent: {} for agent in agents}
    for run in runs:
        if run.seed not in profile_of:
            profile_of[run.seed] = classify_seed(run.seed, run.world).profile
        counts = _run_counts(run, tapes[run.seed], truths[run.seed], (oracle or {}).get(run.seed), budget)
        by_agent[run.agent].setdefault(run.seed, []).append(counts)
    rates = {
        agent: _estimates(cells, profile_of, level=level, resamples=resamples, seed=seed)
        | _skill_rates(skills, agent, runs)
        for agent, cells in by_agent.items()
    }
    return ScoreBoard(
        agents,
        rates,
        {agent: QUOTED[agent] for agent in agents if agent in QUOTED and _is_published(runs, agent)},
        skills,
        {
            metric: _rate_contrasts(by_agent, metric, level=level, resamples=resamples, seed=seed)
            for metric in TESTED
            if len(agents) > 1
        },
        frozenset(run.agent for run in runs if run.privileged),
        {
            agent: (sum(r.agent == agent and not math.isnan(r.cost) for r in runs), sum(r.agent == agent for r in runs))
            for agent in agents
        },
        {agent: _notes(run for run in runs if run.agent == agent) for agent in agents},
        budget,
    )


_DESCRIBED: dict[int, tuple[World, str]] = {}
"""Describing a world takes longer than scoring a run, and most runs share one: the last few by identity, kept alive."""


def toml_of(world: World) -> str:
    """A world's description, by which two worlds are compared."""
    if id(world) not in _DESCRIBED:
        if len(_DESCRIBED) >= 8:
            _DESCRIBED.clear()
        _DESCRIBED[id(world)] = (world, world.to_toml())
    return _DESCRIBED[id(world)][1]


def _none(x: float) -> float | None:
    return None if math.isnan(x) else float(x)


def _is_published(runs: Sequence[Run], agent: str) -> bool:
    published = published_agents().get(agent)
    mine = {run.seed: run.cost for run in runs if run.agent == agent}
    return published is not None and mine == dict(published)


def _costs(runs: Sequence[Run]) -> dict[str, dict[int, tuple[float, ...]]]:
    costs: dict[str, dict[int, tuple[float, ...]]] = {}
    for run in runs:
        by_seed = costs.setdefault(run.agent, {})
        by_seed[run.seed] = (*by_seed.get(run.seed, ()), run.cost)
    return costs


def _notes(runs: Iterable[Run]) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, value in run.notes.items():
            values = value if isinstance(value, (list, tuple)) else [value]
            found.setdefault(key, {}).update(dict.fromkeys(str(v) for v in values))
    return {key: tuple(values) for key, values in found.items()}


def _truths(seeds: Iterable[int], world: World) -> tuple[dict[int, Tape], dict[int, Truth]]:
    """Tapes and what was true on them, by seed. Drawn together: working a world's tables out takes longer than a tape."""
    known = sorted(seeds)
    batch = Tape.published_batch(known, world)
    tapes = {seed: jax.tree.map(lambda x, i=i: x[i], batch) for i, seed in enumerate(known)}
    return tapes, {seed: Truth.of(tape, world) for seed, tape in tapes.items()}


def _run_counts(run: Run, tape: Tape, truth: Truth, oracle: Sequence[Ledger] | None, budget: float) -> dict[str, Rate]:
    out: dict[str, Rate] = {}
    if run.statements is not None:
        posterior = None
        if run.ledger is not None and not np.isnan(run.statements.probability).all():
            posterior = filter_stress(run.world, tape, run.ledger.sourced)
        out |= belief_counts(run.statements, truth, posterior=posterior, budget=budget)
    if run.ledger is not None:
        out |= response_counts(run.ledger, tape, run.world)
        if run.statements is not None:
            statuses = week_statuses(run.statements, truth)
            out |= cost_counts(run.ledger, statuses)
            if oracle:
                out |= {f"oracle.{k}": v for k, v in mean_counts(cost_counts(o, statuses) for o in oracle).items()}
                out |= loss_counts(run.ledger, oracle, run.statements, truth)
        if oracle:
            theirs = mean_counts(response_counts(o, tape, run.world) for o in oracle)
            out |= {f"oracle.{name}": rate for name, rate in theirs.items()}
    return out


def _estimates(
    cells: Mapping[int, Sequence[Mapping[str, Rate]]],
    profile_of: Mapping[int, str],
    *,
    level: float,
    resamples: int,
    seed: int,
) -> dict[str, dict[str, RateEstimate]]:
    """metric -> group -> rate, pooled over the runs of the group's seeds, with a bootstrap over its seeds."""
    metrics = list(dict.fromkeys(name for several in cells.values() for counts in several for name in counts))
    if not metrics:  # costs alone
        return {}
    seeds, none = sorted(cells), Rate(0, 0)
    # Added up as arrays: there are some hundred metrics, and a rate of each in every run.
    sums = np.array(
        [np.sum([[counts.get(m, none) for m in metrics] for counts in cells[s]], axis=0) for s in seeds], np.float64
    )
    out: dict[str, dict[str, RateEstimate]] = {name: {} for name in metrics}
    for group in GROUPS:
        mine = sums[np.array([group in (ALL, profile_of[s]) for s in seeds])]
        intervals = [NO_INTERVAL] * len(metrics)
        if len(mine) > 1:
            draws = _resampled_ratios(mine[..., 0], mine[..., 1], resamples=resamples, seed=seed)
            intervals = _intervals(draws, level)
        for name, (over, under), interval in zip(metrics, mine.sum(0).tolist(), intervals, strict=True):
            out[name][group] = RateEstimate(Rate(over, under), interval if under else NO_INTERVAL)
    return out


def _intervals(draws: np.ndarray, level: float) -> list[Interval]:
    """Percentile intervals of the columns, over the draws in which they are defined."""
    ends = [(1 - level) / 2, (1 + level) / 2]
    out = [NO_INTERVAL] * draws.shape[1]
    undefined = np.isnan(draws)
    whole = np.flatnonzero(~undefined.any(0))
    # All defined columns at once: quantiles that skip nan are slow.
    for i, (low, high) in zip(whole, np.quantile(draws[:, whole], ends, axis=0).T, strict=True):
        out[i] = Interval(float(low), float(high))
    for i in np.flatnonzero(undefined.any(0) & ~undefined.all(0)):
        out[i] = Interval(*(float(x) for x in np.quantile(draws[~undefined[:, i], i], ends)))
    return out


def _resampled_ratios(over: np.ndarray, under: np.ndarray, *, resamples: int, seed: int) -> np.ndarray:
    """(resample, metric) ratios of sums over seeds drawn with replacement; nan where nothing was drawn to divide by."""
    weights = _resamples(len(over), resamples, seed)
    top, bottom = weights @ over, weights @ under
    return np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1.0), math.nan)


@functools.lru_cache(maxsize=16)
def _resamples(n: int, resamples: int, seed: int) -> np.ndarray:
    """(resample, seed) how often each of n seeds is drawn; the same for every agent and pair, so drawn once."""
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1.0 / n), size=resamples).astype(np.float64)
    weights.flags.writeable = False
    return weights


@functools.lru_cache(maxsize=16)
def _swaps(n: int, resamples: int, seed: int) -> np.ndarray:
    """(resample, seed) 1 where two agents' names are swapped on a seed."""
    flips = np.random.default_rng(seed).integers(0, 2, (resamples, n)).astype(np.float64)
    flips.flags.writeable = False
    return flips


def _rate_contrasts(
    by_agent: Mapping[str, Mapping[int, Sequence[Mapping[str, Rate]]]],
    metric: str,
    *,
    level: float,
    resamples: int,
    seed: int,
) -> tuple[Contrast, ...]:
    """Differences of a pooled rate between every two agents, on the seeds that both have."""
    none = Rate(0, 0)
    counts = {
        agent: {s: pooled(c.get(metric, none) for c in several) for s, several in cells.items()}
        for agent, cells in by_agent.items()
        if any(metric in c for several in cells.values() for c in several)
    }
    rows = []
    for first, second in itertools.combinations(counts, 2):
        seeds = sorted(counts[first].keys() & counts[second].keys())
        if not seeds:
            continue
        a, b = (np.array([counts[x][s] for s in seeds], np.float64) for x in (first, second))
        difference = Rate(*a.sum(0)).value - Rate(*b.sum(0)).value
        p = _swap_p(a, b, resamples=resamples, seed=seed)
        interval = NO_INTERVAL
        if len(seeds) > 1:
            both = np.concatenate([a, b], axis=1)
            ratios = _resampled_ratios(both[:, [0, 2]], both[:, [1, 3]], resamples=resamples, seed=seed)
            (interval,) = _intervals((ratios[:, 0] - ratios[:, 1])[:, None], level)
        estimate = MeanEstimate(len(seeds), difference, math.nan, interval, NO_INTERVAL)
        rows.append(Contrast(first, second, estimate, p))
    adjusted = holm(np.array([row.p_value for row in rows]))
    family = f"{metric}, every pair of agents"
    tested = int(sum(not math.isnan(row.p_value) for row in rows))
    return tuple(
        Contrast(row.first, row.second, row.estimate, row.p_value, family, tested, float(p))
        for row, p in zip(rows, adjusted, strict=True)
    )


def _swap_p(a: np.ndarray, b: np.ndarray, *, resamples: int, seed: int) -> float:
    """Two-sided p of a difference of pooled ratios: the agents' names are swapped on random sets of seeds."""
    observed = abs(Rate(*a.sum(0)).value - Rate(*b.sum(0)).value)
    if math.isnan(observed):
        return math.nan
    flip = _swaps(len(a), resamples, seed)
    one, two = a.sum(0) + flip @ (b - a), b.sum(0) + flip @ (a - b)
    with np.errstate(divide="ignore", invalid="ignore"):
        gaps = np.abs(one[:, 0] / one[:, 1] - two[:, 0] / two[:, 1])
    # The arrangement that was observed is one of those that might have been.
    return float((np.sum(gaps >= observed - 1e-12) + 1) / (resamples + 1))


def _put(
    out: dict[str, dict[str, RateEstimate]],
    metric: str,
    group: str,
    over: float,
    under: float,
    interval: Interval = NO_INTERVAL,
) -> None:
    out.setdefault(metric, {})[group] = RateEstimate(Rate(over, under), interval)


def _skill_rates(skills: SkillTable, agent: str, runs: Sequence[Run]) -> dict[str, dict[str, RateEstimate]]:
    """The skill table in the shape of rates: a mean is a sum and a count."""
    entry, references = skills[agent], skills.references
    mine = [run for run in runs if run.agent == agent]
    out: dict[str, dict[str, RateEstimate]] = {}

    for group in GROUPS:
        chosen = references.in_group(group)
        skill, cost = entry.skill[chosen], entry.cost[chosen]
        known, finished = skill[~np.isnan(skill)], cost[~np.isnan(cost)]
        _put(out, "skill", group, float(known.sum()), len(known), entry.groups[group].percentile)
        _put(out, "below_floor", group, int((known < 0).sum()), len(known))
        _put(out, "above_oracle", group, int((known > 1).sum()), len(known))
        floors = references.floor[chosen][~np.isnan(cost)]
        _put(out, "beats_floor", group, int((finished < floors).sum()), len(finished))
        _put(out, "cost", group, float(finished.sum()), len(finished))
    complete = [not math.isnan(run.cost) for run in mine]
    _put(out, "complete", ALL, sum(complete), len(complete))
    _put(out, "privileged", ALL, sum(run.privileged for run in mine), len(mine))
    return out
