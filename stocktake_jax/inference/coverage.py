"""Do intervals cover? Fit the same world again and again from fresh tapes, and count how often intervals hold the truth."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.stats import binom, norm

from stocktake_jax import __version__
from stocktake_jax.errors import InputError
from stocktake_jax.inference.fit import LEVEL, FactorFit, Problem, fit_map
from stocktake_jax.inference.learning import no_nan, table_text
from stocktake_jax.inference.priors import Learn, Prior, ladders, of_factor, require_known, roles
from stocktake_jax.inference.series import training_series
from stocktake_jax.models import FACTORS, World

FRESH = 100_000
"""Seed of the first tape of the first repeat: far from the training seeds and from the published fifty."""

IDENTIFIABLE = 0.5
"""A number counts as identifiable if its standard error, in the median repeat, is below this share of its prior's standard
deviation. The rule looks at no estimate and no truth."""


@dataclass(frozen=True)
class Plan:
    """What is repeated.

    Attributes:
        repeats, tapes: how many fits, and training tapes of each.
        learn: a group of parameters, or dotted names.
        buying: see `series.training_series`.
        restarts: searches for each mode.
        first_seed: of the first repeat's first tape; repeat r has the `tapes` seeds from `first_seed + r * tapes` on.
        seed: of the random starts.
    """

    repeats: int = 50
    tapes: int = 200
    learn: Learn | tuple[str, ...] = "transitions"
    buying: str = "idle"
    restarts: int = 2
    first_seed: int = FRESH
    seed: int = 0

    def check(self) -> None:
        """Refuse what cannot be run.

        Raises:
            InputError: naming the number.
        """
        for name in ("repeats", "tapes", "restarts"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed must be a whole number from 0 to 2^32 - 1, not {self.seed}")


@dataclass(frozen=True)
class Coverage:
    """Estimates and intervals of every repeat.

    Attributes:
        plan: what was repeated.
        world: the true world.
        names: of the learned numbers.
        transitions: those of them that move a chain.
        truth, prior_sd: (entry,) true value, and standard deviation of the prior.
        estimate, standard_error, low, high: (repeat, entry).
        converged: (repeat, entry) whether the entry's fit said that it had.
    """

    plan: Plan
    world: World
    names: tuple[str, ...]
    transitions: tuple[str, ...]
    truth: np.ndarray
    prior_sd: np.ndarray
    estimate: np.ndarray
    standard_error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    converged: np.ndarray

    @property
    def covered(self) -> np.ndarray:
        """(repeat, entry) whether the interval holds the truth."""
        return (self.low <= self.truth) & (self.truth <= self.high)

    @property
    def covered_symmetric(self) -> np.ndarray:
        """(repeat, entry) the same for estimate ± z times the standard error, on the number's own scale."""
        return np.abs(self.estimate - self.truth) <= float(norm.ppf(0.5 + LEVEL / 2)) * self.standard_error

    @property
    def identifiable(self) -> np.ndarray:
        """(entry,) see `IDENTIFIABLE`."""
        return np.median(self.standard_error, axis=0) < IDENTIFIABLE * self.prior_sd

    def rows(self) -> list[dict[str, Any]]:
        """One row a number."""
        low, high = binom.ppf([0.025, 0.975], len(self.estimate), LEVEL) / len(self.estimate)
        out = []
        for k, name in enumerate(self.names):
            out.append(
                {
                    "name": name,
                    "transition": name in self.transitions,
                    "identifiable": bool(self.identifiable[k]),
                    "truth": float(self.truth[k]),
                    "mean_estimate": float(self.estimate[:, k].mean()),
                    "sd_of_estimates": float(self.estimate[:, k].std(ddof=1)) if len(self.estimate) > 1 else math.nan,
                    "mean_standard_error": float(self.standard_error[:, k].mean()),
                    "coverage": float(self.covered[:, k].mean()),
                    "coverage_symmetric": float(self.covered_symmetric[:, k].mean()),
                    "chance_low": float(low),
                    "chance_high": float(high),
                    "converged": float(self.converged[:, k].mean()),
                }
            )
        return out

    def pooled(self) -> dict[str, Any]:
        """Coverage of all identifiable transition parameters together, and of the one that is covered least."""
        used = np.array([n in self.transitions for n in self.names]) & self.identifiable
        if not used.any():
            return {
                "parameters": 0,
                "coverage": math.nan,
                "coverage_symmetric": math.nan,
                "least": math.nan,
                "least_name": "",
            }
        each = self.covered[:, used].mean(axis=0)
        return {
            "parameters": int(used.sum()),
            "coverage": float(each.mean()),
            "coverage_symmetric": float(self.covered_symmetric[:, used].mean()),
            "least": float(each.min()),
            "least_name": np.array(self.names)[used][int(each.argmin())].item(),
        }

    def document(self) -> dict[str, Any]:
        """Everything of interest, ready for JSON."""
        return {
            "version": __version__,
            "level": LEVEL,
            "plan": {**asdict(self.plan), "repeats": len(self.estimate)},
            "pooled_identifiable_transitions": self.pooled(),
            "parameters": self.rows(),
        }

    def save(self, out: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write `coverage.json` and `coverage.csv` (a row a parameter), and `estimates.csv` (a row a fit and parameter)."""
        folder = Path(out)
        each = [
            {
                "repeat": r,
                "name": name,
                "truth": self.truth[k],
                "estimate": self.estimate[r, k],
                "standard_error": self.standard_error[r, k],
                "low": self.low[r, k],
                "high": self.high[r, k],
                "covered": bool(self.covered[r, k]),
            }
            for r in range(len(self.estimate))
            for k, name in enumerate(self.names)
        ]
        files = {
            "coverage.json": json.dumps(no_nan(self.document()), indent=1, allow_nan=False) + "\n",
            "coverage.csv": table_text(self.rows()),
            "estimates.csv": table_text(each),
        }
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        return tuple(folder / name for name in files)


def coverage(
    world: World,
    plan: Plan,
    *,
    factors: Sequence[str] = FACTORS,
    out: str | os.PathLike[str] | None = None,
    on_repeat: Callable[[int], None] | None = None,
) -> Coverage:
    """Fit tapes of a world again and again, by penalised maximum likelihood.

    Args:
        world: the true one, and where the searches start (their random restarts aside).
        plan: what is repeated.
        factors: which.
        out: a folder in which each repeat is kept as it is done; the same call goes on from there.
        on_repeat: called with the number of repeats done.

    Raises:
        InputError: for sizes below 1, a name in `plan.learn` that there is not, nothing to learn of these factors, or a
            folder of another study.
    """
    plan.check()
    require_known(world.factors, plan.learn)
    if not any(of_factor(world.factors[n], plan.learn) for n in factors):
        raise InputError(f"none of {', '.join(factors)} has a parameter that was asked for")
    folder = None if out is None else _open(Path(out), world, plan, factors)
    problems: dict[str, Problem] = {}
    repeats: list[list[dict[str, Any]]] = []
    for r in range(plan.repeats):
        file = None if folder is None else folder / f"{r:04d}.json"
        if file is not None and file.exists():
            repeats.append(json.loads(file.read_text(encoding="utf-8")))
        else:
            rows = _repeat(world, plan, factors, r, problems)
            if file is not None:
                temporary = file.with_suffix(".part")
                temporary.write_text(json.dumps(rows), encoding="utf-8")
                temporary.replace(file)
            repeats.append(rows)
        if on_repeat is not None:
            on_repeat(r + 1)
    names = tuple(row["name"] for row in repeats[0])
    moving, spread = _about(world, plan, names)

    def table(key: str) -> np.ndarray:
        return np.array([[row[key] for row in rows] for rows in repeats])

    return Coverage(
        plan, world, names, moving, table("truth")[0], spread, table("estimate"), table("standard_error"), table("low"),
        table("high"), table("converged"),
    )  # fmt: skip


def _about(world: World, plan: Plan, names: Sequence[str]) -> tuple[tuple[str, ...], np.ndarray]:
    """Which of the numbers move a chain, and every number's standard deviation under its default prior."""
    moving: list[str] = []
    spread: dict[str, float] = {}
    for n, factor in world.factors.items():
        own = [name for name in names if name.startswith(f"{n}.")]
        if not own:
            continue
        channels = tuple(c.name for c in factor.shown_channels())
        moving += [name for name in roles(factor, channels).transitions if name in own]
        spread |= dict(
            zip(own, Prior(factor, own, ladders(factor, channels)).standard_deviations.tolist(), strict=True)
        )
    return tuple(moving), np.array([spread[name] for name in names])


def _repeat(
    world: World, plan: Plan, factors: Sequence[str], r: int, problems: dict[str, Problem]
) -> list[dict[str, Any]]:
    """One row a number; `problems` keeps what was compiled."""
    readings = training_series(world, plan.tapes, plan.buying, plan.first_seed + r * plan.tapes).readings
    key = jax.random.fold_in(jax.random.key(plan.seed), r)
    rows: list[dict[str, Any]] = []
    for n in (n for n in FACTORS if n in factors):
        factor = world.factors[n]
        learn = of_factor(factor, plan.learn)
        if not learn:
            continue
        if n in problems:
            problem = problems[n].again(readings[n])
        else:
            problem = problems[n] = Problem(factor, readings[n], learn=learn)
        own_key = jax.random.fold_in(key, FACTORS.index(n))
        found: FactorFit = fit_map(problem, key=own_key, restarts=plan.restarts, draws=1)
        for row in found.recovery(factor):
            kept = ("name", "truth", "estimate", "standard_error", "low", "high")
            rows.append({k: row[k] for k in kept} | {"converged": found.converged})
    return rows


def _open(out: Path, world: World, plan: Plan, factors: Sequence[str]) -> Path:
    """Make the folder of finished repeats, or check that the one that is there belongs to the same study."""
    wanted = {
        "version": __version__,
        "world": hashlib.sha256(world.to_toml().encode()).hexdigest(),
        "plan": {k: v for k, v in json.loads(json.dumps(asdict(plan))).items() if k != "repeats"},
        "factors": list(factors),
    }
    folder = out / "repeats"
    manifest = folder / "manifest.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not manifest.exists():
            manifest.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
            return folder
        found = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot use the folder {out}: {error}") from None
    for name, value in wanted.items():
        if found.get(name) != value:
            raise InputError(f"{out} holds a study of another {name}; give another folder, or delete this one")
    return folder
