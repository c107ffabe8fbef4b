"""What a wrong model costs: oracles that believe in other worlds, on the same tapes and the same random numbers.

A study is a list of `Variant`s of the true world. All of them run as one batch (`OracleEnsemble`) on every seed and
replication, with the truth as variant 0, so that differences are paired run by run.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stocktake_jax import __version__
from stocktake_jax.desk import Rules
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.catalog import check_seeds, published_seeds
from stocktake_jax.evaluation.simulate import ITEMS, Trajectories, simulate
from stocktake_jax.models import FACTORS, HORIZON, Factor, Initial, Likelihood, Tape, World, parameters, unit_interval
from stocktake_jax.policies import Layout, Runs
from stocktake_jax.policies.ensemble import OracleEnsemble

PRESETS = ("tornado", "noise", "stress", "duration", "ignore", "likelihood", "initial")
"""Studies that need no list of parameters; `presets` builds them."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """One model that an oracle believes in.

    Attributes:
        label: how tables call it.
        model: the world believed in.
        ignored: factors whose readings are not looked at.
        likelihood, initial: how the filters read and start.
        parameter, factor: what was changed and by how much, where the variant is one such change.
    """

    label: str
    model: World
    ignored: frozenset[str] = frozenset()
    likelihood: Likelihood = "paper"
    initial: Initial = "uniform"
    parameter: str = ""
    factor: float = math.nan


def transition_parameters(factor: Factor) -> tuple[str, ...]:
    """The names of a factor's parameters that its transition matrix depends on."""
    base = np.asarray(factor.transition_matrix())
    found = []
    for name, p in parameters(factor).items():
        if np.ndim(p.value) == 0 and p.constraint is unit_interval:
            if not np.array_equal(_nudged(factor, name), base):
                found.append(name)
    return tuple(found)


def onset_parameters(factor: Factor) -> tuple[str, ...]:
    """The transition parameters out of the baseline: raising their odds makes trouble more frequent."""
    base = np.asarray(factor.transition_matrix())
    found = []
    for name in transition_parameters(factor):
        if not np.array_equal(_nudged(factor, name)[0], base[0]):
            found.append(name)
    return tuple(found)


def _nudged(factor: Factor, name: str) -> np.ndarray:
    """The transition matrix with one parameter moved a little, to where no published value lies."""
    value = np.asarray(parameters(factor)[name].value)
    return np.asarray(dataclasses.replace(factor, **{name: 0.5 * value + 0.0123456}).transition_matrix())


def perturbed(world: World, changes: Mapping[str, float]) -> World:
    """The world with several parameters misspecified by factors; see `World.perturb` for what a factor does."""
    for name, factor in changes.items():
        world = world.perturb(name, factor)
    return world


def variants_of(world: World, name: str, factors: Sequence[float]) -> list[Variant]:
    """One variant per factor on a parameter."""
    return [Variant(f"{name} x{_g(k)}", world.perturb(name, k), parameter=name, factor=float(k)) for k in factors]


def grid_of(world: World, first: tuple[str, Sequence[float]], second: tuple[str, Sequence[float]]) -> list[Variant]:
    """Every pair of factors on two parameters."""
    (a, ka), (b, kb) = first, second
    if a == b:
        raise InputError(f"a grid needs two different parameters, not {a!r} twice")
    return [
        Variant(f"{a} x{_g(x)}, {b} x{_g(y)}", perturbed(world, {a: x, b: y})) for x, y in itertools.product(ka, kb)
    ]


def presets(world: World, name: str) -> list[Variant]:
    """The variants of a preset study.

    tornado: every transition parameter, odds halved and doubled. noise: every sd of an emission halved and doubled.
    stress: per factor and for all, the odds of leaving the baseline halved and doubled. duration: per factor and for
    all, the odds of every other move halved and doubled. ignore: each factor not watched. likelihood, initial: the other
    way to read, and to start.

    Raises:
        InputError: for any other name.
    """
    if name == "tornado":
        names = [f"{f}.{p}" for f in FACTORS for p in transition_parameters(world.factors[f])]
        return [v for n in names for v in variants_of(world, n, (0.5, 2.0))]
    if name == "noise":
        names = [f"{f}.{p}" for f in FACTORS for p in parameters(world.factors[f]) if p.endswith("sd")]
        return [v for n in names for v in variants_of(world, n, (0.5, 2.0))]
    if name in ("stress", "duration"):
        out = []
        for group in (*[(f,) for f in FACTORS], FACTORS):
            label = group[0] if len(group) == 1 else "all factors"
            for k in (0.5, 2.0):
                model = world
                for f in group:
                    onsets = onset_parameters(world.factors[f])
                    chosen = [p for p in transition_parameters(world.factors[f]) if (p in onsets) == (name == "stress")]
                    model = perturbed(model, {f"{f}.{p}": k for p in chosen})
                out.append(Variant(f"{name} of {label} x{_g(k)}", model, parameter=f"{name} of {label}", factor=k))
        return out
    if name == "ignore":
        return [Variant(f"{f} ignored", world, ignored=frozenset({f})) for f in FACTORS]
    if name == "likelihood":
        return [Variant("exact likelihood", world, likelihood="exact")]
    if name == "initial":
        return [Variant("baseline start", world, initial="baseline")]
    raise InputError(f"unknown preset {name!r}; there are {', '.join(PRESETS)}")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What believing in a variant cost, on the true world; dollars per episode unless said otherwise.

    Attributes:
        label, parameter, factor: the variant's.
        cost, cost_se: mean over seeds of the mean over replications, and its Monte Carlo standard error (seeds fixed).
        difference, difference_se: the same of the paired difference to the true model; `difference_spread` is the
            standard error over seeds, which also carries how much seeds differ.
        worst_seed, worst: the seed with the largest relative increase of its mean cost, and that increase (a fraction).
        changed: share of weekly decisions that differ from those of the true model in the same run and week. Decisions
            after the first one that differs are made at another desk, and count.
        log_score: factor -> mean log evidence of a week's reading, nats, less the true model's; nan where the readings
            were not looked at, or scored by another law.
        calibration: factor -> expected calibration error of P(stress) over ten bins.
        components: item of the bill -> mean dollars per episode, less the true model's.
    """

    label: str
    parameter: str
    factor: float
    cost: float
    cost_se: float
    difference: float
    difference_se: float
    difference_spread: float
    worst_seed: int
    worst: float
    changed: float
    log_score: dict[str, float]
    calibration: dict[str, float]
    components: dict[str, float]


@dataclasses.dataclass(frozen=True)
class Study:
    """A finished study; outcome 0 is the true model."""

    outcomes: tuple[Outcome, ...]
    seeds: tuple[int, ...]
    replications: int
    costs: np.ndarray
    """(variant, seed, replication) total cost."""

    def document(self) -> dict[str, Any]:
        """Everything but the single runs, ready for JSON; undefined numbers are null."""
        rows = [{k: _plain(v) for k, v in dataclasses.asdict(o).items()} for o in self.outcomes]
        return {
            "seeds": list(self.seeds),
            "replications": self.replications,
            "outcomes": rows,
            "run": {"package": __version__, "jax": jax.__version__, "device": jax.devices()[0].device_kind},
        }

    def save(self, out: str | os.PathLike[str]) -> None:
        """Write study.json, study.csv (a row per variant) and runs.csv (the cost of every run) to a folder."""
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "study.json").write_text(json.dumps(self.document(), indent=1) + "\n", encoding="utf-8")
        text = io.StringIO()
        flat = [_flat(o) for o in self.outcomes]
        table = csv.DictWriter(text, list(flat[0]))
        table.writeheader()
        table.writerows(flat)
        (folder / "study.csv").write_text(text.getvalue(), encoding="utf-8")
        text = io.StringIO()
        runs = csv.writer(text)
        runs.writerow(["variant", "seed", "replication", "cost"])
        for o, by_seed in zip(self.outcomes, self.costs, strict=True):
            for seed, costs in zip(self.seeds, by_seed, strict=True):
                runs.writerows([o.label, seed, r + 1, repr(float(c))] for r, c in enumerate(costs))
        (folder / "runs.csv").write_text(text.getvalue(), encoding="utf-8")


def run_study(
    variants: Sequence[Variant],
    *,
    true_world: World | None = None,
    seeds: Sequence[int] | None = None,
    replications: int = 20,
    futures: int | None = None,
    rules: Rules = "paper",
    layout: Layout | None = None,
    devices: Sequence[jax.Device] | None = None,
    budget: int = 40_000,
    progress: Callable[[int, int], None] | None = None,
) -> Study:
    """Run a study; the true model is added in front.

    Variants that read and start alike form one batch over models, which is cut only where it would exceed the budget.

    Args:
        variants: the models believed in.
        true_world: of tapes and books; also the model that the others are compared with.
        seeds: of the tapes; None: the published fifty.
        replications: runs per seed and model.
        futures: futures per decision; None: 190 + r in run r.
        rules: of the books.
        layout: as for `Oracle`.
        devices: as for `Oracle`.
        budget: most episodes in memory together (about 12 kB each).
        progress: called with (episode-weeks done, all of them).

    Raises:
        InputError: for no variants, no seeds, repeated labels, or replications < 1.
    """
    world = true_world or World.paper()
    seeds = tuple(published_seeds() if seeds is None else seeds)
    check_seeds(seeds)
    if not variants:
        raise InputError("a study needs at least one variant")
    if isinstance(replications, bool) or not isinstance(replications, int) or replications < 1:
        raise InputError(f"replications must be a whole number of at least 1, not {replications!r}")
    everything = [Variant("true model", world), *variants]
    labels = [v.label for v in everything]
    if len(set(labels)) < len(labels):
        raise InputError(f"the variant {next(x for x in labels if labels.count(x) > 1)!r} is listed more than once")
    tapes = Tape.published_batch(seeds, world)
    stressed = {n: world.factors[n].stress_mask[tapes.states[n]] for n in FACTORS}
    each = len(seeds) * replications
    device_count = len(devices) if devices else 1
    most = max(budget // each // device_count * device_count, device_count)
    batches = _batches(everything, most)
    done, weeks = 0, len(everything) * each * HORIZON
    summaries: dict[int, _Summary] = {}
    truth: _Summary | None = None
    tape_of = np.tile(np.arange(len(seeds)), replications)
    runs = Runs(np.tile(np.array(seeds), replications), np.repeat(np.arange(1, replications + 1), len(seeds)))
    for batch in batches:
        first = everything[batch[0]]
        policy = OracleEnsemble(
            [everything[i].model for i in batch],
            ignored=[everything[i].ignored for i in batch],
            likelihood=first.likelihood,
            initial=first.initial,
            futures=futures,
            layout=layout,
            devices=devices,
        )
        count = len(batch)

        def report(week: int, before: int = done, count: int = count) -> None:
            if progress is not None:
                progress(before + week * count * each, weeks)

        all_runs = Runs(np.tile(runs.seed, count), np.tile(runs.replication, count))
        result = simulate(policy, tapes, all_runs, np.tile(tape_of, count), world, rules, report)
        done += count * each * HORIZON
        for position, i in enumerate(batch):
            rows = slice(position * each, (position + 1) * each)
            summaries[i] = _summarise(world, result, rows, stressed, tape_of, truth)
            if i == 0:
                truth = summaries[0]
    shape = (replications, len(seeds))
    costs = np.stack([summaries[i].cost.reshape(shape).T for i in range(len(everything))])
    outcomes = [_outcome(v, summaries[i], summaries[0], costs[i], costs[0], seeds) for i, v in enumerate(everything)]
    return Study(tuple(outcomes), seeds, replications, costs)


def _batches(variants: Sequence[Variant], most: int) -> list[list[int]]:
    """Indices of variants that run together: alike in how they read and start, in order, at most so many."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i, v in enumerate(variants):
        groups.setdefault((v.likelihood, v.initial), []).append(i)
    return [group[i : i + most] for group in groups.values() for i in range(0, len(group), most)]


@dataclasses.dataclass(frozen=True)
class _Summary:
    cost: np.ndarray
    bill: dict[str, float]
    decisions: np.ndarray
    changed: float
    log_score: dict[str, float]
    calibration: dict[str, float]


def _summarise(
    world: World, result: Trajectories, rows: slice, stressed: dict[str, np.ndarray], tape_of: np.ndarray, truth: Any
) -> _Summary:
    bill = {k: v[rows] for k, v in result.bill.items()}
    cost = sum(v.sum(axis=1) for v in bill.values())
    fields = ("qty", "route", "supplier", "action", "lock_weeks", "air", "inspect")
    decisions = np.stack([result.decision[k][rows].astype(np.int16) for k in fields], axis=-1)
    changed = 0.0 if truth is None else float(np.mean(np.any(decisions != truth.decisions, axis=-1)))
    score, calibration = {}, {}
    for n in FACTORS:
        # Notes of decision t are beliefs about week t = 0 .. 25; week 0 is a constant and says nothing of a model.
        score[n] = float(np.mean(result.notes[f"evidence.{n}"][rows, 1:]))
        labels = world.factors[n].labels
        stress = np.array([any(r.stress for r in world.factors[n].regimes if r.label == label) for label in labels])
        probability = result.notes[f"belief.{n}"][rows, 1:][..., stress].sum(axis=-1)
        calibration[n] = calibration_error(probability, stressed[n][tape_of, 1:HORIZON])
    return _Summary(cost, {k: float(v.sum(1).mean()) for k, v in bill.items()}, decisions, changed, score, calibration)


def calibration_error(probability: np.ndarray, happened: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error: |mean probability - frequency| over equal bins of probability, weighted by count."""
    p, y = np.ravel(probability).astype(np.float64), np.ravel(happened).astype(np.float64)
    at = np.minimum((p * bins).astype(int), bins - 1)
    gap = np.abs(np.bincount(at, p, bins) - np.bincount(at, y, bins))
    return float(gap.sum() / len(p))


def _outcome(
    variant: Variant, own: _Summary, truth: _Summary, cost: np.ndarray, true_cost: np.ndarray, seeds: Sequence[int]
) -> Outcome:
    difference = cost - true_cost
    relative = difference.mean(axis=1) / true_cost.mean(axis=1)
    worst = int(np.argmax(relative))
    return Outcome(
        label=variant.label,
        parameter=variant.parameter,
        factor=variant.factor,
        cost=float(cost.mean()),
        cost_se=_monte_carlo(cost),
        difference=float(difference.mean()),
        difference_se=_monte_carlo(difference),
        difference_spread=_spread(difference.mean(axis=1)),
        worst_seed=int(seeds[worst]),
        worst=float(relative[worst]),
        changed=own.changed,
        log_score={
            n: math.nan
            if n in variant.ignored or variant.likelihood != "paper"
            else own.log_score[n] - truth.log_score[n]
            for n in FACTORS
        },
        calibration=own.calibration,
        components={k: own.bill[k] - truth.bill[k] for k in ITEMS},
    )


def _monte_carlo(x: np.ndarray) -> float:
    """Standard error of the mean over (seed, replication), the seeds being fixed."""
    seeds, replications = x.shape
    if replications < 2:
        return math.nan
    return float(np.sqrt((x.var(axis=1, ddof=1) / replications).sum()) / seeds)


def _spread(x: np.ndarray) -> float:
    return float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else math.nan


def _g(x: float) -> str:
    return f"{x:g}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(o: Outcome) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for k, v in dataclasses.asdict(o).items():
        row |= {f"{k}.{name}": x for name, x in v.items()} if isinstance(v, dict) else {k: v}
    return row
