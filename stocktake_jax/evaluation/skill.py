"""Skill: where an agent's cost lies between the symptom-blind floor (0) and the fair oracle (1), paper section 4.

`score` takes costs and references and returns a `SkillTable`; `read_costs` reads a user's CSV file. The headline rule
of the paper holds throughout: a seed on which the floor is no dearer than the oracle has no scale, so it is left out of
every skill, but it still counts when runs are compared with the floor's raw cost.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool, Float, Int

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.published import PROFILES, published_references
from stocktake_jax.evaluation.statistics import (
    LEVEL,
    RESAMPLES,
    Contrast,
    MeanEstimate,
    OracleNoise,
    mean_estimate,
    oracle_noise,
    pairwise_contrasts,
    resolution,
    summarise_cells,
)

ALL = "all"
GROUPS = (*PROFILES, ALL)
BOOTSTRAP_SEED = 26  # fixed, so that equal costs always give equal tables

Costs = Mapping[str, Mapping[int, float | Sequence[float]]]
"""Agent to {seed: total cost}, or to {seed: one cost per repeat}; nan for an episode that did not finish."""


@dataclass(frozen=True)
class References:
    """The reference costs that skill is measured against, one entry per seed; costs are 26-week totals.

    Attributes:
        seeds: seeds, without repeats.
        profiles: stress profile of each seed, one of `PROFILES`.
        floor: cost of the base-stock floor.
        oracle: mean cost of the fair oracle.
        oracle_se: standard error of that mean, nan if unknown (one run).

    Raises:
        InputError: for different lengths, a repeated seed, an unknown profile, or a cost that is not finite.
    """

    seeds: tuple[int, ...]
    profiles: tuple[str, ...]
    floor: Float[np.ndarray, " seed"]
    oracle: Float[np.ndarray, " seed"]
    oracle_se: Float[np.ndarray, " seed"]

    def __post_init__(self) -> None:
        shape = (len(self.seeds),)
        for name in ("floor", "oracle", "oracle_se"):
            array = np.asarray(getattr(self, name), dtype=np.float64)
            if array.shape != shape:
                raise InputError(f"references: {name} has shape {array.shape}; give one value per seed")
            object.__setattr__(self, name, array)
        if len(self.profiles) != len(self.seeds):
            raise InputError(f"references: {len(self.profiles)} profiles for {len(self.seeds)} seeds; give one each")
        if len(set(self.seeds)) != len(self.seeds):
            twice = next(seed for seed in self.seeds if self.seeds.count(seed) > 1)
            raise InputError(f"references: seed {twice} stands more than once; keep one of them")
        for seed, profile in zip(self.seeds, self.profiles, strict=True):
            if profile not in PROFILES:
                raise InputError(f"references: seed {seed} has profile {profile!r}; use one of {', '.join(PROFILES)}")
        for name in ("floor", "oracle"):
            bad = np.flatnonzero(~np.isfinite(getattr(self, name)))
            if bad.size:
                raise InputError(f"references: {name} of seed {self.seeds[bad[0]]} is not finite; leave the seed out")

    @classmethod
    def published(cls, seeds: Iterable[int] | None = None) -> References:
        """The published references of all fifty seeds, or of those among `seeds` that are published, in their order."""
        by_seed = {row.seed: row for row in published_references()}
        rows = [by_seed[seed] for seed in (by_seed if seeds is None else seeds) if seed in by_seed]
        return cls(
            tuple(row.seed for row in rows),
            tuple(row.profile for row in rows),
            np.array([row.floor for row in rows], dtype=np.float64),
            np.array([row.oracle_mean for row in rows], dtype=np.float64),
            np.array([row.oracle_se for row in rows], dtype=np.float64),
        )

    @property
    def scoreable(self) -> Bool[np.ndarray, " seed"]:
        """True where the floor is dearer than the oracle, so that skill has a scale."""
        scoreable: Bool[np.ndarray, " seed"] = self.floor > self.oracle
        return scoreable

    def in_group(self, group: str) -> Bool[np.ndarray, " seed"]:
        """True for the seeds of a profile, or for every seed if `group` is `ALL`."""
        return np.array([group in (ALL, profile) for profile in self.profiles], dtype=bool)


@dataclass(frozen=True)
class AgentSkill:
    """One agent's row of the skill table, with what stands behind it; arrays follow `References.seeds`.

    Attributes:
        agent: name of the agent.
        cost: its total cost per seed (the mean over repeats); nan if missing or unfinished.
        skill: its skill per seed; nan if the seed is not scoreable or the cost is nan.
        repeats: how many runs it has on each seed.
        skill_sd: spread of its repeats' skills within each seed; nan with fewer than two.
        pooled_sd: that spread pooled over seeds; nan without repeats.
        groups: summary over the scoreable seeds of each profile and of all (keys `GROUPS`).
        oracle_noise: what the oracle's Monte Carlo error does to the mean over all scoreable seeds.
        below_floor: scoreable seeds with a skill below 0.
        above_oracle: scoreable seeds with a skill above 1.
        beats_floor: seeds, not scoreable ones included, whose cost is below the floor's.
        missing: seeds without a run of this agent.
        incomplete: seeds with a run that did not finish; they have no skill and count nowhere as cheap.
        unreferenced: seeds of this agent that have no reference and were left aside.
    """

    agent: str
    cost: Float[np.ndarray, " seed"]
    skill: Float[np.ndarray, " seed"]
    repeats: Int[np.ndarray, " seed"]
    skill_sd: Float[np.ndarray, " seed"]
    pooled_sd: float
    groups: Mapping[str, MeanEstimate]
    oracle_noise: OracleNoise
    below_floor: int
    above_oracle: int
    beats_floor: int
    missing: int
    incomplete: int
    unreferenced: int

    def to_json(self) -> dict[str, object]:
        """The row in the shape that `bench --json` prints: undefined numbers are None."""
        skill = {
            group: {
                "n": estimate.n,
                "mean": _none(estimate.mean),
                "median": _none(estimate.median),
                "low": _none(estimate.percentile.low),
                "high": _none(estimate.percentile.high),
            }
            for group, estimate in self.groups.items()
        }
        return {
            "agent": self.agent,
            "skill": skill,
            "below_floor": self.below_floor,
            "beats_floor": self.beats_floor,
        }


@dataclass(frozen=True)
class SkillTable:
    """The skill of every agent against one set of references.

    Attributes:
        references: what was scored against.
        agents: one entry per agent, in the order given.
        contrasts: all pairs of agents on the scoreable seeds that both have, Holm-adjusted as one family.
        resolution: median half width of the contrasts' percentile intervals; nan with fewer than two agents.
    """

    references: References
    agents: tuple[AgentSkill, ...]
    contrasts: tuple[Contrast, ...]
    resolution: float

    @property
    def excluded(self) -> tuple[int, ...]:
        """The seeds that are not scoreable."""
        scoreable = self.references.scoreable
        return tuple(seed for seed, good in zip(self.references.seeds, scoreable, strict=True) if not good)

    def __getitem__(self, agent: str) -> AgentSkill:
        """The entry of one agent.

        Raises:
            KeyError: if no such agent was scored.
        """
        for entry in self.agents:
            if entry.agent == agent:
                return entry
        raise KeyError(agent)

    def to_json(self) -> list[dict[str, object]]:
        """The agents' rows in the shape that `bench --json` prints."""
        return [entry.to_json() for entry in self.agents]

    def summary_rows(self) -> list[dict[str, object]]:
        """One flat row per agent and group, for CSV; undefined numbers are None, counts are over all seeds."""
        return [
            {
                "agent": entry.agent,
                "group": group,
                "n": estimate.n,
                "mean": _none(estimate.mean),
                "median": _none(estimate.median),
                "low": _none(estimate.percentile.low),
                "high": _none(estimate.percentile.high),
                "bca_low": _none(estimate.bca.low),
                "bca_high": _none(estimate.bca.high),
                "below_floor": entry.below_floor if group == ALL else None,
                "above_oracle": entry.above_oracle if group == ALL else None,
                "beats_floor": entry.beats_floor if group == ALL else None,
                "missing": entry.missing if group == ALL else None,
                "incomplete": entry.incomplete if group == ALL else None,
                "unreferenced": entry.unreferenced if group == ALL else None,
                "within_sd": _none(entry.pooled_sd) if group == ALL else None,
                "oracle_noise_se": _none(entry.oracle_noise.delta_se) if group == ALL else None,
                "oracle_noise_se_resampled": _none(entry.oracle_noise.resampled_se) if group == ALL else None,
                "oracle_noise_bias": _none(entry.oracle_noise.bias) if group == ALL else None,
            }
            for entry in self.agents
            for group, estimate in entry.groups.items()
        ]

    def seed_rows(self) -> list[dict[str, object]]:
        """One flat row per agent and seed, for CSV; undefined numbers are None."""
        references = self.references
        return [
            {
                "agent": entry.agent,
                "seed": seed,
                "profile": references.profiles[i],
                "repeats": int(entry.repeats[i]),
                "cost": _none(entry.cost[i]),
                "floor": float(references.floor[i]),
                "oracle": float(references.oracle[i]),
                "skill": _none(entry.skill[i]),
                "skill_sd": _none(entry.skill_sd[i]),
            }
            for entry in self.agents
            for i, seed in enumerate(references.seeds)
        ]

    def contrast_rows(self) -> list[dict[str, object]]:
        """One flat row per pair of agents, for CSV; undefined numbers are None."""
        return [
            {
                "first": contrast.first,
                "second": contrast.second,
                "n": contrast.estimate.n,
                "mean": _none(contrast.estimate.mean),
                "median": _none(contrast.estimate.median),
                "low": _none(contrast.estimate.percentile.low),
                "high": _none(contrast.estimate.percentile.high),
                "bca_low": _none(contrast.estimate.bca.low),
                "bca_high": _none(contrast.estimate.bca.high),
                "wilcoxon_p": _none(contrast.p_value),
                "holm_p": _none(contrast.p_holm),
                "family": contrast.family,
                "family_size": contrast.family_size,
            }
            for contrast in self.contrasts
        ]


def skill(
    cost: Float[np.ndarray, "*seed"] | float,
    floor: Float[np.ndarray, "*seed"] | float,
    oracle: Float[np.ndarray, "*seed"] | float,
) -> Float[np.ndarray, "*seed"]:
    """(floor - cost) / (floor - oracle), elementwise; nan where floor <= oracle or the cost is nan.

    Args:
        cost: total cost of the agent.
        floor: total cost of the base-stock floor.
        oracle: mean total cost of the fair oracle.
    """
    cost, floor, oracle = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (cost, floor, oracle)))
    headroom = floor - oracle
    scoreable = headroom > 0
    ratio = (floor - cost) / np.where(scoreable, headroom, 1.0)
    result: Float[np.ndarray, "*seed"] = np.where(scoreable, ratio, math.nan)
    return result


def score(
    costs: Costs,
    references: References,
    *,
    bootstrap_seed: int = BOOTSTRAP_SEED,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> SkillTable:
    """Score agents against references.

    Repeats of a seed are averaged first and seeds are resampled as wholes. Seeds that an agent lacks are counted as
    missing, seeds with an unfinished (nan) run as incomplete; neither enters a mean or beats the floor. Every interval
    starts its generator from `bootstrap_seed`, so an agent's row does not depend on which others are in the table.

    Args:
        costs: per agent and seed the total cost, or one per repeat; `costs_from_array` makes this from an array.
        references: floor, oracle and profile of each seed.
        bootstrap_seed: seed of the bootstraps.
        level: coverage of the intervals, in (0, 1).
        resamples: number of bootstrap samples.

    Raises:
        InputError: for a cost that is infinite, zero or negative, or options out of range.
    """
    agents = tuple(
        _agent_skill(agent, by_seed, references, seed=bootstrap_seed, level=level, resamples=resamples)
        for agent, by_seed in costs.items()
    )
    contrasts = pairwise_contrasts(
        {entry.agent: entry.skill for entry in agents},
        family="skill on all scoreable seeds, every pair of agents",
        seed=bootstrap_seed,
        level=level,
        resamples=resamples,
    )
    return SkillTable(references, agents, contrasts, resolution(contrasts))


def costs_from_array(
    agents: Sequence[str],
    seeds: Sequence[int],
    cost: Float[np.ndarray, "agent seed"] | Float[np.ndarray, "agent seed repeat"],
) -> dict[str, dict[int, tuple[float, ...]]]:
    """Costs as an array, with or without an axis of repeats, in the form that `score` takes.

    Raises:
        InputError: if the array's first two axes are not agents and seeds, or a name or seed stands twice.
    """
    array = np.asarray(cost, dtype=np.float64)
    if array.ndim not in (2, 3) or array.shape[:2] != (len(agents), len(seeds)):
        raise InputError(
            f"cost has shape {array.shape}; for {len(agents)} agents and {len(seeds)} seeds give "
            f"({len(agents)}, {len(seeds)}) or ({len(agents)}, {len(seeds)}, repeats)"
        )
    if len(set(agents)) != len(agents) or len(set(seeds)) != len(seeds):
        raise InputError("an agent or a seed stands twice; give repeats as the third axis of the array")
    rows = array.reshape(len(agents), len(seeds), -1)
    return {
        agent: {int(seed): tuple(rows[a, s].tolist()) for s, seed in enumerate(seeds)} for a, agent in enumerate(agents)
    }


def read_costs(path: str | Path) -> dict[str, dict[int, tuple[float, ...]]]:
    """Read agents' costs from a CSV file with the columns agent, seed, cost and, if seeds were rerun, repeat.

    The first line names the columns, in any order. A cost is the total of the 26 weeks, or `nan` for an episode that
    did not finish. A repeat is a whole number that tells the runs of one (agent, seed) pair apart.

    Args:
        path: the file, UTF-8 with or without a byte order mark.

    Returns:
        Agent to {seed: one cost per repeat}, agents and seeds in the order of the file.

    Raises:
        InputError: for anything else, naming file, line, column, value and fix.
    """
    name = str(path)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror}); give a CSV file with agent,seed,cost") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start} is not UTF-8; save the file as UTF-8 text") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    costs: dict[str, dict[int, tuple[float, ...]]] = {}
    seen: dict[tuple[str, int, int], int] = {}
    columns: list[str] | None = None
    try:
        for values in reader:
            line = reader.line_num
            if not any(value.strip() for value in values):
                continue
            if columns is None:
                columns = _columns(values, f"{name}, line {line}")
                continue
            if len(values) != len(columns):
                raise InputError(
                    f"{name}, line {line}: {len(values)} values for {len(columns)} columns ({','.join(columns)}); "
                    "quote values that contain a comma and write numbers without thousands separators"
                )
            row = {column: value.strip() for column, value in zip(columns, values, strict=True)}
            agent, seed, repeat, cost = _cost_row(row, f"{name}, line {line}")
            first = seen.setdefault((agent, seed, repeat), line)
            if first != line:
                run, fix = f"agent {agent!r}, seed {seed}", "add a column repeat that numbers the runs"
                if "repeat" in columns:
                    run, fix = f"{run}, repeat {repeat}", "give one another number"
                raise InputError(f"{name}, line {line}: {run} stands on line {first} already; drop one, or {fix}")
            by_seed = costs.setdefault(agent, {})
            by_seed[seed] = (*by_seed.get(seed, ()), cost)
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num}: not valid CSV ({error}); mend the quotes there") from error
    if not costs:
        raise InputError(f"{name}: no costs in it; give a line agent,seed,cost and below it one line per run")
    return costs


def _agent_skill(
    agent: str,
    by_seed: Mapping[int, float | Sequence[float]],
    references: References,
    *,
    seed: int,
    level: float,
    resamples: int,
) -> AgentSkill:
    runs = [np.atleast_1d(np.asarray(by_seed.get(s, ()), dtype=np.float64)) for s in references.seeds]
    for s, run in by_seed.items():
        problem = _cost_problem(np.atleast_1d(np.asarray(run, dtype=np.float64)))
        if problem:
            raise InputError(f"cost of agent {agent!r} on seed {s}: {problem}")
    cells = summarise_cells(runs)
    values = skill(cells.mean, references.floor, references.oracle)
    headroom = references.floor - references.oracle
    skills = [skill(run, references.floor[i], references.oracle[i]) for i, run in enumerate(runs)]
    spreads = summarise_cells(skills)
    groups = {
        group: mean_estimate(values[references.in_group(group)], seed=seed, level=level, resamples=resamples)
        for group in GROUPS
    }
    return AgentSkill(
        agent=agent,
        cost=cells.mean,
        skill=values,
        repeats=cells.repeats,
        skill_sd=spreads.sd,
        pooled_sd=spreads.pooled_sd,
        groups=MappingProxyType(groups),
        oracle_noise=oracle_noise(
            references.floor - cells.mean, headroom, references.oracle_se, seed=seed, level=level, resamples=resamples
        ),
        below_floor=int((values < 0).sum()),
        above_oracle=int((values > 1).sum()),
        beats_floor=int((cells.mean < references.floor).sum()),
        missing=int((cells.repeats == 0).sum()),
        incomplete=int((np.isnan(cells.mean) & (cells.repeats > 0)).sum()),
        unreferenced=len(by_seed.keys() - set(references.seeds)),
    )


def _cost_problem(cost: Float[np.ndarray, " repeat"]) -> str:
    """Why a cost cannot be one, or an empty string; nan, an unfinished episode, is fine."""
    if np.isinf(cost).any():
        return "it is infinite; write nan for an episode that did not finish"
    if (cost <= 0).any():
        # The books cannot end at or below zero; rewards (negated costs) and crash placeholders do, and would win.
        return f"{cost[cost <= 0][0]:g} is not above 0; give the total cost, not a reward, and nan if unfinished"
    return ""


def _columns(values: Sequence[str], where: str) -> list[str]:
    columns = [value.strip() for value in values]
    wanted = "the first line must be agent,seed,cost or agent,seed,cost,repeat"
    for column in columns:
        if column not in ("agent", "seed", "cost", "repeat"):
            raise InputError(f"{where}: unknown column {column!r}; {wanted}")
        if columns.count(column) > 1:
            raise InputError(f"{where}: column {column!r} stands twice; {wanted}")
    for column in ("agent", "seed", "cost"):
        if column not in columns:
            raise InputError(f"{where}: column {column!r} is missing; {wanted}")
    return columns


def _cost_row(row: Mapping[str, str], where: str) -> tuple[str, int, int, float]:
    if not row["agent"]:
        raise InputError(f"{where}, column agent: it is empty; name the agent")
    seed = _whole(row["seed"], f"{where}, column seed")
    repeat = _whole(row["repeat"], f"{where}, column repeat") if "repeat" in row else 0
    text = row["cost"]
    if text.lower() == "nan":
        return row["agent"], seed, repeat, math.nan
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII):
        raise InputError(
            f"{where}, column cost: {text!r} is no number; write it like 5386.5, and nan for an unfinished episode"
        )
    cost = float(text)
    problem = _cost_problem(np.array([cost]))
    if problem:
        raise InputError(f"{where}, column cost: {text!r}: {problem}")
    return row["agent"], seed, repeat, cost


def _whole(text: str, where: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise InputError(f"{where}: {text!r} is no whole number from 0 up; write it like 17")
    return int(text)


def _none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
