"""The benchmark's seeds and the stress profiles that their tapes have."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.published import published_references
from stocktake_jax.models import FACTORS, Tape, World

EARLY_SEEDS = frozenset({157, 25, 112, 60, 24, 86, 1, 172, 170, 95, 29, 58, 108, 21, 143, 99, 44, 94, 154, 85})
"""The first twenty seeds that were curated, under a stricter idea of persistence than the later ones."""

EARLY_THRESHOLD, THRESHOLD = 7, 4
"""Weeks of blocked port, and of demand stress, that make a tape persistent."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """What a tape's stress looks like, over weeks 0 .. 26.

    Attributes:
        profile: isolated, persistent or compound.
        max_overlap: most factors under stress in one week.
        port_block_longest: longest run of weeks with a blocked port.
        demand_stress_weeks: weeks with demand under stress, in total.
    """

    profile: str
    max_overlap: int
    port_block_longest: int
    demand_stress_weeks: int


def published_seeds() -> tuple[int, ...]:
    """The fifty seeds of the benchmark."""
    return tuple(r.seed for r in published_references())


def stress(tape: Tape, world: World) -> np.ndarray:
    """(factor, ..., week) True where a factor is under stress."""
    return np.stack([world.factors[n].stress_mask[np.asarray(tape.states[n])] for n in FACTORS])


def classify(tape: Tape, world: World | None = None, *, threshold: int = THRESHOLD) -> Profile:
    """The stress profile of one tape.

    Isolated if never more than one factor is under stress; else persistent if both the longest port blockage and the
    weeks of demand stress reach the threshold; else compound.
    """
    world = world or World.paper()
    stressed = stress(tape, world)
    if stressed.ndim != 2:
        raise InputError(f"classify takes one tape, not a batch of shape {stressed.shape[1:-1]}")
    blocked, demand = stressed[FACTORS.index("port")], stressed[FACTORS.index("demand")]
    longest = run = 0
    for week in blocked:
        run = run + 1 if week else 0
        longest = max(longest, run)
    overlap, weeks = int(stressed.sum(0).max()), int(demand.sum())
    if overlap <= 1:
        profile = "isolated"
    else:
        profile = "persistent" if min(longest, weeks) >= threshold else "compound"
    return Profile(profile, overlap, longest, weeks)


def classify_seed(seed: int, world: World | None = None, tape: Tape | None = None) -> Profile:
    """The stress profile of a seed's tape, by the rule under which the benchmark labelled it.

    Args:
        seed: the seed.
        world: the tape's.
        tape: the seed's published tape, if it is at hand; else it is drawn.
    """
    threshold = EARLY_THRESHOLD if seed in EARLY_SEEDS else THRESHOLD
    return classify(tape or Tape.published(seed, world), world, threshold=threshold)


def uncurated_seeds(count: int, *, first: int = 1000) -> tuple[int, ...]:
    """Seeds taken as they come: `count` consecutive ones, clear of the published range.

    The published seeds were chosen for their headroom, which widens the spread of skill; a sample without that choice
    answers what an agent is worth on an ordinary tape.

    Raises:
        InputError: if the count is below 1, or the range meets a published seed.
    """
    if count < 1:
        raise InputError(f"the number of seeds must be at least 1, not {count}")
    chosen = tuple(range(first, first + count))
    met = sorted(set(chosen) & set(published_seeds()))
    if met:
        raise InputError(f"the range from {first} meets the curated seed {met[0]}; start at 1000 or later")
    return chosen


def fresh_seeds(count: int, *, key: jax.Array) -> tuple[int, ...]:
    """Seeds drawn at random from [1000, 2^31), without repeats: tapes that nobody has published results on.

    Raises:
        InputError: if the count is below 1.
    """
    if count < 1:
        raise InputError(f"the number of seeds must be at least 1, not {count}")
    drawn: dict[int, None] = {}
    while len(drawn) < count:
        key, now = jax.random.split(key)
        drawn |= dict.fromkeys(int(x) for x in np.asarray(jax.random.randint(now, (count,), 1000, 2**31 - 1)))
    return tuple(list(drawn)[:count])


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds from a list like `1,5-9`.

    Raises:
        InputError: naming the part that is not a seed or a range, or that repeats.
    """
    seeds: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()):
            raise InputError(f"seeds must look like 1,5-9; {part.strip()!r} is neither a whole number nor a range")
        first, last = int(low), int(high) if dash else int(low)
        if last < first:
            raise InputError(f"the range {part.strip()!r} runs backwards; write {last}-{first}")
        if last - first >= 1_000_000 or last >= 2**32:
            raise InputError(f"{part.strip()!r} is too much: seeds are below 2^32, at most a million in a range")
        seeds += range(first, last + 1)
    if len(set(seeds)) != len(seeds):
        repeated = next(seed for seed, count in Counter(seeds).items() if count > 1)
        raise InputError(f"seed {repeated} is listed more than once")
    return tuple(seeds)


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse an empty list of seeds.

    Raises:
        InputError: see above.
    """
    if not seeds:
        raise InputError("give at least one seed")
