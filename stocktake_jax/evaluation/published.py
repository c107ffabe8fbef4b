"""The published results, as the package ships them: reference costs, agents' costs, stated beliefs.

The numbers are those of the STOCKTAKE paper (arXiv:2607.13618): fifty seeds; the base-stock floor, the fair oracle
over twenty runs and its learned-transition variant; four agents with one episode per seed. The parsers are strict and
public, so files of the same shape from elsewhere can be read with them.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

import numpy as np
from jaxtyping import Bool

from stocktake_jax.errors import InputError
from stocktake_jax.models.world import FACTORS

PROFILES = ("isolated", "persistent", "compound")
BELIEF_WEEKS = 26  # weeks 1..26; week 0 has no stated belief that could be scored
REFERENCE_RUNS = 20  # oracle runs behind each published reference mean

_LETTERS = MappingProxyType({name[0]: name for name in FACTORS})
_REFERENCE_COLUMNS = (
    "seed",
    "profile",
    "floor",
    "oracle_mean",
    "oracle_se",
    "oracle_min",
    "oracle_max",
    "learned_oracle_mean",
    "learned_oracle_se",
)
_AGENT_COLUMNS = ("agent", "seed", "cost")


@dataclass(frozen=True)
class PublishedReference:
    """The published reference costs of one seed; costs are totals over 26 weeks, in the benchmark's currency.

    Attributes:
        seed: seed of the event tape.
        profile: stress profile, one of `PROFILES`.
        floor: cost of the symptom-blind base-stock policy.
        oracle_mean: mean cost of the fair oracle over `REFERENCE_RUNS` runs.
        oracle_se: standard error of that mean.
        oracle_min: its cheapest run.
        oracle_max: its dearest run.
        learned_mean: mean cost of the oracle with learned transitions.
        learned_se: standard error of that mean.
    """

    seed: int
    profile: str
    floor: float
    oracle_mean: float
    oracle_se: float
    oracle_min: float
    oracle_max: float
    learned_mean: float
    learned_se: float


@dataclass(frozen=True)
class StatedBeliefs:
    """What one agent's rationales named in one episode, week by week.

    Attributes:
        agent: name of the agent.
        seed: seed of the event tape.
        named: per week 1..26 the factors that the rationale written in that week asserts to be a problem.
        stockout: per week 1..26 whether the books show unmet demand.
    """

    agent: str
    seed: int
    named: tuple[frozenset[str], ...]
    stockout: tuple[bool, ...]

    def named_array(self) -> Bool[np.ndarray, "week factor"]:
        """The labels as an array over weeks 1..26 and the factors in the order of `FACTORS`; True means named."""
        return np.array([[factor in week for factor in FACTORS] for week in self.named], dtype=bool)

    def stockout_array(self) -> Bool[np.ndarray, " week"]:
        """The stockouts as an array over weeks 1..26; True means that demand went unmet."""
        return np.array(self.stockout, dtype=bool)


@cache
def published_references() -> tuple[PublishedReference, ...]:
    """The fifty published seeds with their reference costs, by ascending seed."""
    return parse_references(_read("published_references.csv"), "published_references.csv")


@cache
def published_agents() -> Mapping[str, Mapping[int, float]]:
    """Total cost of the four published agents: agent to {seed: cost}, in the order of the paper's Table 2."""
    costs = parse_agents(_read("published_agents.csv"), "published_agents.csv")
    order = ("claude-sonnet-5", "gpt-5.4", "deepseek-v4-pro", "grok-4.5")
    return MappingProxyType({agent: MappingProxyType(costs[agent]) for agent in order})


@cache
def published_beliefs() -> Mapping[tuple[str, int], StatedBeliefs]:
    """The published agents' labels by (agent, seed), agents in the order of the paper's Table 2."""
    runs = parse_beliefs(_read("published_beliefs.txt"), "published_beliefs.txt")
    by_run = {(run.agent, run.seed): run for run in runs}
    return MappingProxyType({(agent, seed): by_run[agent, seed] for agent in published_agents() for seed in _seeds()})


def parse_references(text: str, name: str = "references") -> tuple[PublishedReference, ...]:
    """Read reference costs from CSV text with the columns of `published_references.csv`.

    Args:
        text: the file's contents.
        name: how error messages call the file.

    Raises:
        InputError: for a wrong header, a wrong number of values, a value that is no number, an unknown profile or a
            seed given twice.
    """
    rows: list[PublishedReference] = []
    seen: dict[int, int] = {}
    for line, row in _csv_rows(text, name, _REFERENCE_COLUMNS):
        seed = _integer(row["seed"], name, line, "seed")
        if seed in seen:
            raise InputError(f"{name}, line {line}: seed {seed} stands on line {seen[seed]} already; keep one of them")
        seen[seed] = line
        profile = row["profile"]
        if profile not in PROFILES:
            raise InputError(f"{name}, line {line}, column profile: {profile!r} is none of {', '.join(PROFILES)}")
        numbers = [_number(row[column], name, line, column) for column in _REFERENCE_COLUMNS[2:]]
        rows.append(PublishedReference(seed, profile, *numbers))
    return tuple(rows)


def parse_agents(text: str, name: str = "agents") -> dict[str, dict[int, float]]:
    """Read published costs from CSV text with the columns agent, seed, cost.

    `stocktake_jax.evaluation.skill.read_costs` is the reader for users' files (repeats, unfinished episodes).

    Args:
        text: the file's contents.
        name: how error messages call the file.

    Raises:
        InputError: for a wrong header, a wrong number of values, a value that is no number, or a pair (agent, seed)
            given twice.
    """
    costs: dict[str, dict[int, float]] = {}
    for line, row in _csv_rows(text, name, _AGENT_COLUMNS):
        seed = _integer(row["seed"], name, line, "seed")
        of_agent = costs.setdefault(row["agent"], {})
        if seed in of_agent:
            raise InputError(f"{name}, line {line}: {row['agent']} has a cost for seed {seed} already; keep one")
        of_agent[seed] = _number(row["cost"], name, line, "cost")
    return costs


def parse_beliefs(text: str, name: str = "beliefs") -> tuple[StatedBeliefs, ...]:
    """Read weekly labels: one line `agent|seed|token token ...` per episode, 26 tokens for weeks 1..26.

    A token holds the initials of the named factors (c s d f p q), or `-` for none; `!` after it marks a stockout.

    Args:
        text: the file's contents.
        name: how error messages call the file.

    Raises:
        InputError: for a line of another shape, a letter that is no factor or stands twice, or an episode given twice.
    """
    runs: dict[tuple[str, int], StatedBeliefs] = {}
    for line, row in enumerate(text.splitlines(), start=1):
        parts = row.split("|")
        if len(parts) != 3 or not parts[0]:
            raise InputError(f"{name}, line {line}: {row!r} is not of the form agent|seed|tokens")
        agent, seed = parts[0], _integer(parts[1], name, line, "seed")
        tokens = parts[2].split()
        if len(tokens) != BELIEF_WEEKS:
            raise InputError(f"{name}, line {line}: {len(tokens)} tokens; give one for each of weeks 1..{BELIEF_WEEKS}")
        if (agent, seed) in runs:
            raise InputError(f"{name}, line {line}: {agent} has labels for seed {seed} already; keep one of them")
        named = tuple(_named(token, name, line, week) for week, token in enumerate(tokens, start=1))
        runs[agent, seed] = StatedBeliefs(agent, seed, named, tuple(token.endswith("!") for token in tokens))
    return tuple(runs.values())


def _named(token: str, name: str, line: int, week: int) -> frozenset[str]:
    letters = token.removesuffix("!")
    if letters == "-":
        return frozenset()
    if not letters or any(letter not in _LETTERS for letter in letters) or len(set(letters)) != len(letters):
        wanted = "".join(_LETTERS)
        raise InputError(
            f"{name}, line {line}, week {week}: {token!r} is no label; give letters of {wanted} once each, or '-'"
        )
    return frozenset(_LETTERS[letter] for letter in letters)


def _csv_rows(text: str, name: str, columns: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    reader = csv.reader(text.splitlines(), strict=True)
    header = tuple(next(reader, ()))
    if header != columns:
        raise InputError(f"{name}, line 1: the header is {','.join(header)!r}; it should be {','.join(columns)!r}")
    rows = []
    for values in reader:
        if len(values) != len(columns):
            raise InputError(f"{name}, line {reader.line_num}: {len(values)} values for {len(columns)} columns")
        rows.append((reader.line_num, dict(zip(columns, values, strict=True))))
    return rows


def _integer(text: str, name: str, line: int, column: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InputError(f"{name}, line {line}, column {column}: {text!r} is no seed; give a whole number from 0 up")
    return int(text)


def _number(text: str, name: str, line: int, column: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{name}, line {line}, column {column}: {text!r} is no finite number")
    return value


def _seeds() -> tuple[int, ...]:
    return tuple(reference.seed for reference in published_references())


def _read(name: str) -> str:
    return (files("stocktake_jax.evaluation") / "data" / name).read_text(encoding="utf-8")
