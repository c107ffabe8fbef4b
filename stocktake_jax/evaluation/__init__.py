"""What an agent was worth: seeds, batched runs, the benchmark, skill, beliefs, studies."""

from stocktake_jax.evaluation.catalog import (
    Profile,
    classify,
    classify_seed,
    fresh_seeds,
    parse_seeds,
    published_seeds,
    uncurated_seeds,
)
from stocktake_jax.evaluation.simulate import Trajectories, play, simulate
from stocktake_jax.evaluation.skill import References, SkillTable, read_costs, score, skill

__all__ = [
    "Profile",
    "References",
    "SkillTable",
    "Trajectories",
    "classify",
    "classify_seed",
    "fresh_seeds",
    "parse_seeds",
    "play",
    "published_seeds",
    "read_costs",
    "score",
    "simulate",
    "skill",
    "uncurated_seeds",
]
