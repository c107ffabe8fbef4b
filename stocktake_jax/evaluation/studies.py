"""What a wrong model costs: oracles that believe in other worlds, on the same tapes and the same random numbers.

A study is a list of `Variant`s of the true world. All of them run as one batch (`OracleEnsemble`) on every seed and
replication, with the truth as variant 0, so that differences are paired run by run. The batch is cut where it would not
fit, or where a cut costs nothing; with a folder, every finished part is kept, and an interrupted study goes on from there.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stocktake_jax import __version__
from stocktake_jax.desk import Rules
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.catalog import check_seeds, published_seeds
from stocktake_jax.evaluation.simulate import ITEMS, Trajectories, simulate
from stocktake_jax.evaluation.statistics import mean_estimate, signed_rank_p
from stocktake_jax.evaluation.study_folder import StudyFolder, Summary, fingerprint, write
from stocktake_jax.models import FACTORS, HORIZON, Factor, Initial, Likelihood, Tape, World, parameters, unit_interval
from stocktake_jax.models.world import WHOLE
from stocktake_jax.policies import Layout, Runs
from stocktake_jax.policies.ensemble import OracleEnsemble
from stocktake_jax.policies.posterior import Matrices, draws_of

PRESETS = ("tornado", "transitions", "noise", "stress", "duration", "ignore", "likelihood", "initial")
"""Studies that need no list of parameters; `presets` builds them."""

TRUE_MODEL = "true model"
"""The label of outcome 0."""

LEAST = 1e-12
"""In log scores a smaller probability counts as this one."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """One model that an oracle believes in.

    Attributes:
        label: how tables call it.
        model: the world believed in; or a posterior, as a world whose leaves have a leading axis of draws.
        ignored: factors whose readings are not looked at.
        likelihood, initial: how the filters read and start.
        matrices: factors that move by another matrix than the one that the model declares.
        parameter, factor: what was changed and by how much, where the variant is one such change; charts put the
            variants of one parameter on one line.
        changes: (parameter, number) pairs as they were asked for, the number being a factor or, if `values`, a value.
        values: see `changes`.
    """

    label: str
    model: World
    ignored: frozenset[str] = frozenset()
    likelihood: Likelihood = "paper"
    initial: Initial = "uniform"
    matrices: Matrices = dataclasses.field(default_factory=dict)
    parameter: str = ""
    factor: float = math.nan
    changes: tuple[tuple[str, float], ...] = ()
    values: bool = False


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


def duration_parameters(factor: Factor) -> tuple[str, ...]:
    """The other transition parameters: they say how long trouble lasts, and what it turns into."""
    onsets = onset_parameters(factor)
    return tuple(name for name in transition_parameters(factor) if name not in onsets)


def noise_parameters(factor: Factor) -> tuple[str, ...]:
    """The standard deviations of readings."""
    return tuple(name for name in parameters(factor) if name.endswith("sd"))


def _nudged(factor: Factor, name: str) -> np.ndarray:
    """The transition matrix with one parameter moved a little, to where no published value lies."""
    value = np.asarray(parameters(factor)[name].value)
    return np.asarray(dataclasses.replace(factor, **{name: 0.5 * value + 0.0123456}).transition_matrix())


def changed_world(world: World, changes: Mapping[str, float], values: bool = False) -> World:
    """The world with several parameters misspecified, by factors (see `World.perturb`) or by values.

    Raises:
        InputError: for an unknown parameter, a number out of range, or a whole number that shapes arrays.
    """
    for name, number in changes.items():
        section, _, field = name.partition(".")
        if section == "logistics" and field in WHOLE:
            raise InputError(
                f"{name} ({WHOLE[field].doc}) shapes arrays, so all models of a study share it; a study cannot vary it. "
                "Set it in a world file, and give that with --true-world"
            )
        world = world.replace({name: number}) if values else world.perturb(name, number)
    return world


def variants_of(world: World, name: str, numbers: Sequence[float], values: bool = False) -> list[Variant]:
    """One variant per factor on a parameter, or per value of it."""
    return [
        Variant(
            _said(name, x, values),
            changed_world(world, {name: x}, values),
            parameter=name,
            factor=math.nan if values else float(x),
            changes=((name, float(x)),),
            values=values,
        )
        for x in numbers
    ]


def grid_of(
    world: World, first: tuple[str, Sequence[float]], second: tuple[str, Sequence[float]], values: bool = False
) -> list[Variant]:
    """Every pair of factors, or values, of two parameters."""
    (a, numbers_a), (b, numbers_b) = first, second
    if a == b:
        raise InputError(f"a grid needs two different parameters, not {a!r} twice")
    return [
        Variant(
            f"{_said(a, x, values)}, {_said(b, y, values)}",
            changed_world(world, {a: x, b: y}, values),
            parameter=f"{a}, {b}",
            changes=((a, float(x)), (b, float(y))),
            values=values,
        )
        for x, y in itertools.product(numbers_a, numbers_b)
    ]


def _said(name: str, number: float, values: bool) -> str:
    return f"{name} = {number:g}" if values else f"{name} x{number:g}"


HALVED_AND_DOUBLED = (0.5, 2.0)


def presets(world: World, name: str) -> list[Variant]:
    """The variants of a preset study.

    tornado: every parameter of the six factors, halved and doubled (probabilities by their odds); parameters that this
    does not change, such as a mean of zero, are left out. transitions: the transition parameters among them. noise: every
    sd of an emission. stress: per factor and for all, the odds of leaving the baseline. duration: per factor and for
    all, the odds of every other move. ignore: each factor not watched. likelihood, initial: the other way to read, and to
    start.

    Raises:
        InputError: for any other name.
    """
    one_by_one: dict[str, Callable[[Factor], Iterable[str]]] = {
        "tornado": parameters,
        "transitions": transition_parameters,
        "noise": noise_parameters,
    }
    if name in one_by_one:
        names = [f"{n}.{p}" for n, f in world.factors.items() for p in one_by_one[name](f)]
        known = world.parameters
        return [
            v
            for n in names
            for v in variants_of(world, n, HALVED_AND_DOUBLED)
            if not np.array_equal(np.asarray(v.model.get(n)), np.asarray(known[n].value))
        ]
    if name in ("stress", "duration"):
        out = []
        for group in (*[(f,) for f in FACTORS], FACTORS):
            what = f"{name} of {group[0] if len(group) == 1 else 'all factors'}"
            for k in HALVED_AND_DOUBLED:
                changes: dict[str, float] = {}
                chosen = onset_parameters if name == "stress" else duration_parameters
                for f in group:
                    changes |= {f"{f}.{p}": k for p in chosen(world.factors[f])}
                model = changed_world(world, changes)
                out.append(Variant(f"{what} x{k:g}", model, parameter=what, factor=k, changes=tuple(changes.items())))
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
        label, parameter, factor, changes, values: the variant's.
        believed: the values that the model has for the parameters in `changes`; of the true model, its values for every
            parameter that some variant changes. Parameters that are lists are left out.
        cost, cost_se: mean over seeds of the mean over replications, and its Monte Carlo standard error (seeds fixed).
        difference, difference_se: the same of the paired difference to the true model.
        low, high: 95% bootstrap interval (BCa) of the mean difference over seeds, which carries how much seeds differ.
        p_value: Wilcoxon's signed-rank test of the seeds' mean differences.
        worst_seed, worst, worst_se: the seed with the largest relative increase of its mean cost, that increase (a
            fraction), and its Monte Carlo standard error.
        changed: share of weekly decisions that differ from those of the true model in the same run and week. Decisions
            after the first one that differs are made at another desk, and count.
        log_score: factor -> mean log probability that the filter gives to the true regime, nats a week, less the true
            model's.
        calibration: factor -> expected calibration error of P(stress) over ten bins.
        components: item of the bill -> mean dollars per episode, less the true model's.
        by_seed: the mean difference on each seed, in the study's order.
    """

    label: str
    parameter: str
    factor: float
    changes: dict[str, float]
    values: bool
    believed: dict[str, float]
    cost: float
    cost_se: float
    difference: float
    difference_se: float
    low: float
    high: float
    p_value: float
    worst_seed: int
    worst: float
    worst_se: float
    changed: float
    log_score: dict[str, float]
    calibration: dict[str, float]
    components: dict[str, float]
    by_seed: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Study:
    """A finished study; outcome 0 is the true model.

    Attributes:
        outcomes: one a variant.
        seeds, replications: of every variant.
        costs: (variant, seed, replication) total cost.
        settings: what else the results depend on, ready for JSON.
        seconds: what it took, the parts that were there already not counted.
    """

    outcomes: tuple[Outcome, ...]
    seeds: tuple[int, ...]
    replications: int
    costs: np.ndarray
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    seconds: float = math.nan

    def document(self) -> dict[str, Any]:
        """Everything but the single runs, ready for JSON; undefined numbers are null.

        `{"study": "misspecify", "seeds": [...], "replications": n, "settings": {...}, "outcomes": [...], "run": {...}}`,
        an outcome being an object with the attributes of `Outcome` (outcome 0 is the true model). `plots.misspecified` draws
        them: `difference` with the interval `low` to `high`, by `parameter` and `factor`, or against `believed`.
        """
        return {
            "study": "misspecify",
            "seeds": list(self.seeds),
            "replications": self.replications,
            "settings": self.settings,
            "outcomes": [plain(dataclasses.asdict(o)) for o in self.outcomes],
            "run": run_information(self.seconds),
        }

    def save(self, out: str | os.PathLike[str]) -> None:
        """Write study.json, study.csv (a row per variant), seeds.csv and runs.csv (the cost of every run) to a folder."""
        flat = [flat_row({k: v for k, v in dataclasses.asdict(o).items() if k != "by_seed"}) for o in self.outcomes]
        seeds = [
            {"variant": o.label, "seed": seed, "cost": float(costs.mean()), "difference": difference}
            for o, by_seed in zip(self.outcomes, self.costs, strict=True)
            for seed, costs, difference in zip(self.seeds, by_seed, o.by_seed, strict=True)
        ]
        runs = [
            {"variant": o.label, "seed": seed, "replication": r + 1, "cost": repr(float(c))}
            for o, by_seed in zip(self.outcomes, self.costs, strict=True)
            for seed, costs in zip(self.seeds, by_seed, strict=True)
            for r, c in enumerate(costs)
        ]
        save_tables(out, {"study.csv": flat, "seeds.csv": seeds, "runs.csv": runs}, {"study.json": self.document()})


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
    budget: int | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Study:
    """Run a study; the true model is added in front.

    Variants that read and start alike form one batch over models, cut into parts of one size. Cuts change no result.

    Args:
        variants: the models believed in.
        true_world: of tapes and books; also the model that the others are compared with.
        seeds: of the tapes; None: the published fifty.
        replications: runs per seed and model.
        futures: futures per decision; None: 190 + r in run r.
        rules: of the books.
        layout: as for `Oracle`.
        devices: as for `Oracle`.
        budget: most episodes in a part (about 12 kB each); None: on CPUs, which work on one model after the other anyway,
            as few as keep the devices busy, so that little is lost when interrupted; on accelerators 100,000.
        out: a folder that keeps finished variants (`StudyFolder`); the same call goes on from there.
        progress: called with (episode-weeks done, all of them).

    Raises:
        InputError: for no variants, no seeds, repeated labels, replications < 1, or a folder that holds another study.
    """
    began = time.perf_counter()
    world = true_world or World.paper()
    seeds = tuple(int(s) for s in (published_seeds() if seeds is None else seeds))
    check_seeds(seeds)
    if not variants:
        raise InputError("a study needs at least one variant")
    if isinstance(replications, bool) or not isinstance(replications, int) or replications < 1:
        raise InputError(f"replications must be a whole number of at least 1, not {replications!r}")
    everything = [Variant(TRUE_MODEL, world), *variants]
    labels = [v.label for v in everything]
    if len(set(labels)) < len(labels):
        raise InputError(f"the variant {next(x for x in labels if labels.count(x) > 1)!r} is listed more than once")
    each = len(seeds) * replications
    settings = {"futures": futures, "rules": rules, "true_world": fingerprint(world)}
    folder = None
    if out is not None:
        listed = {v.label: _identity(v) for v in everything}
        what = {"seeds": seeds, "replications": replications, "settings": settings, "variants": listed}
        folder = StudyFolder(out, what)
    kept = {i: folder.load(i, each) for i in range(len(everything))} if folder else {}
    summaries = {i: s for i, s in kept.items() if s is not None}
    tapes = Tape.published_batch(seeds, world)
    tape_of = np.tile(np.arange(len(seeds)), replications)
    hidden = _Hidden.of(world, tapes, tape_of)
    runs = Runs(np.tile(np.array(seeds), replications), np.repeat(np.arange(1, replications + 1), len(seeds)))
    device_list = list(devices) if devices else [jax.devices()[0]]
    if budget is None:
        budget = max(2000, each * len(device_list)) if device_list[0].platform == "cpu" else 100_000
    done, weeks = len(summaries) * each * HORIZON, len(everything) * each * HORIZON
    if progress is not None:
        progress(done, weeks)
    for part, size in _parts(everything, set(summaries), max(budget // each, 1), len(device_list)):
        # One size for all parts of a batch, so that one compilation serves them; the last repeats its last variant.
        members = [*part, *[part[-1]] * (size - len(part))]
        first = everything[part[0]]
        policy = OracleEnsemble(
            [everything[i].model for i in members],
            ignored=[everything[i].ignored for i in members],
            matrices=[everything[i].matrices for i in members],
            likelihood=first.likelihood,
            initial=first.initial,
            futures=futures,
            layout=layout,
            devices=device_list,
        )

        def report(week: int, before: int = done, count: int = len(part)) -> None:
            if progress is not None:
                progress(before + week * count * each, weeks)

        all_runs = Runs(np.tile(runs.seed, size), np.tile(runs.replication, size))
        result = simulate(policy, tapes, all_runs, np.tile(tape_of, size), world, rules, report)
        for position, i in enumerate(part):
            rows = slice(position * each, (position + 1) * each)
            summaries[i] = _summarise(result, rows, hidden, summaries.get(0))
            if folder is not None:
                folder.save(i, summaries[i])
        done += len(part) * each * HORIZON
    shape = (replications, len(seeds))
    costs = np.stack([summaries[i].cost.reshape(shape).T for i in range(len(everything))])
    changed = [list(dict(v.changes)) for v in everything]
    changed[0] = list(dict.fromkeys(name for names in changed for name in names))
    outcomes = [
        _outcome(v, changed[i], summaries[i], summaries[0], costs[i], costs[0], seeds) for i, v in enumerate(everything)
    ]
    return Study(tuple(outcomes), seeds, replications, costs, settings, time.perf_counter() - began)


def _identity(v: Variant) -> list[Any]:
    """What tells a variant from all others that a folder may hold, ready for JSON."""
    moves = {n: np.asarray(m).tolist() for n, m in v.matrices.items()}
    return [fingerprint(v.model), sorted(v.ignored), v.likelihood, v.initial, *([moves] if moves else [])]


def _parts(variants: Sequence[Variant], done: set[int], most: int, devices: int) -> list[tuple[list[int], int]]:
    """Variants to run together, and how many at a time: alike in how they read and start, a multiple of the devices."""
    groups: dict[tuple[str, str, int | None], list[int]] = {}
    for i, v in enumerate(variants):
        if i not in done:
            groups.setdefault((v.likelihood, v.initial, draws_of(v.model)), []).append(i)
    out = []
    for group in groups.values():
        parts = -(-len(group) // max(most // devices * devices, devices))
        size = -(-len(group) // parts)
        size = -(-size // devices) * devices
        out += [(group[i : i + size], size) for i in range(0, len(group), size)]
    return out


@dataclasses.dataclass(frozen=True)
class _Hidden:
    """What was so, by factor: (run, week) index of the true regime, and whether it is one of stress; weeks 1 .. 25."""

    regime: dict[str, np.ndarray]
    stressed: dict[str, np.ndarray]
    stress_labels: dict[str, np.ndarray]

    @classmethod
    def of(cls, world: World, tapes: Tape, tape_of: np.ndarray) -> _Hidden:
        regime, stressed, labels = {}, {}, {}
        for n, f in world.factors.items():
            of_state = np.array([f.labels.index(r.label) for r in f.state_regimes])
            # Notes of decision t are beliefs about week t = 0 .. 25; week 0 is a constant and says nothing of a model.
            states = np.asarray(tapes.states[n])[tape_of, 1:HORIZON]
            regime[n], stressed[n] = of_state[states], f.stress_mask[states]
            labels[n] = np.array([any(r.stress for r in f.regimes if r.label == label) for label in f.labels])
        return cls(regime, stressed, labels)


_FIELDS = ("qty", "route", "supplier", "action", "lock_weeks", "air", "inspect")


def _summarise(result: Trajectories, rows: slice, hidden: _Hidden, truth: Summary | None) -> Summary:
    bill = {k: v[rows] for k, v in result.bill.items()}
    decisions = np.stack([result.decision[k][rows].astype(np.int16) for k in _FIELDS], axis=-1)
    changed = 0.0 if truth is None else float(np.mean(np.any(decisions != truth.decisions, axis=-1)))
    score, calibration = {}, {}
    for n in FACTORS:
        belief = np.asarray(result.notes[f"belief.{n}"][rows, 1:], np.float64)
        own = np.take_along_axis(belief, hidden.regime[n][..., None], axis=-1)[..., 0]
        score[n] = float(np.mean(np.log(np.maximum(own, LEAST))))
        calibration[n] = calibration_error(belief[..., hidden.stress_labels[n]].sum(axis=-1), hidden.stressed[n])
    means = {k: float(v.sum(1).mean()) for k, v in bill.items()}
    kept = decisions if truth is None else decisions[:0]
    return Summary(sum(v.sum(axis=1) for v in bill.values()), means, changed, score, calibration, kept)


def calibration_error(probability: np.ndarray, happened: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error: |mean probability - frequency| over equal bins of probability, weighted by count."""
    p, y = np.ravel(probability).astype(np.float64), np.ravel(happened).astype(np.float64)
    at = np.minimum((p * bins).astype(int), bins - 1)
    gap = np.abs(np.bincount(at, p, bins) - np.bincount(at, y, bins))
    return float(gap.sum() / len(p))


def _outcome(
    variant: Variant,
    changed: Iterable[str],
    own: Summary,
    truth: Summary,
    cost: np.ndarray,
    true_cost: np.ndarray,
    seeds: Sequence[int],
) -> Outcome:
    difference = cost - true_cost
    by_seed = difference.mean(axis=1)
    relative = by_seed / true_cost.mean(axis=1)
    worst = int(np.argmax(relative))
    interval = mean_estimate(by_seed, seed=0, resamples=10_000).bca
    return Outcome(
        label=variant.label,
        parameter=variant.parameter,
        factor=variant.factor,
        changes=dict(variant.changes),
        values=variant.values,
        believed=_values_of(variant.model, changed),
        cost=float(cost.mean()),
        cost_se=_monte_carlo(cost),
        difference=float(by_seed.mean()),
        difference_se=_monte_carlo(difference),
        low=interval.low,
        high=interval.high,
        p_value=signed_rank_p(by_seed),
        worst_seed=int(seeds[worst]),
        worst=float(relative[worst]),
        worst_se=_monte_carlo(difference[[worst]]) / float(true_cost[worst].mean()),
        changed=own.changed,
        log_score={n: own.log_score[n] - truth.log_score[n] for n in FACTORS},
        calibration=own.calibration,
        components={k: own.bill[k] - truth.bill[k] for k in ITEMS},
        by_seed=tuple(by_seed.tolist()),
    )


def _values_of(model: World, names: Iterable[str]) -> dict[str, float]:
    found = {name: np.asarray(model.get(name)) for name in names}
    return {name: float(x) for name, x in found.items() if x.ndim == 0}


def _monte_carlo(x: np.ndarray) -> float:
    """Standard error of the mean over (seed, replication), the seeds being fixed."""
    seeds, replications = x.shape
    if replications < 2:
        return math.nan
    return float(np.sqrt((x.var(axis=1, ddof=1) / replications).sum()) / seeds)


# ---- documents and tables -------------------------------------------------------------------------------------------


def run_information(seconds: float) -> dict[str, Any]:
    """What a document says of its making: versions, device, seconds."""
    return {
        "package": __version__,
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "seconds": plain(round(seconds, 1)),
    }


def plain(value: Any) -> Any:
    """The same document with undefined numbers as null, and tuples as lists."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def flat_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a table: what is in mappings by dotted name, but as text where the keys differ by row."""
    out: dict[str, Any] = {}
    for k, v in row.items():
        if k in ("changes", "believed"):
            out[k] = "; ".join(f"{name}={number:g}" for name, number in v.items())
        else:
            out |= {f"{k}.{name}": x for name, x in v.items()} if isinstance(v, Mapping) else {k: v}
    return out


def save_tables(
    out: str | os.PathLike[str],
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    documents: Mapping[str, Mapping[str, Any]],
) -> None:
    """Write tables as CSV and documents as JSON to a folder.

    Raises:
        InputError: if it cannot be written.
    """
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in tables.items():
            text = io.StringIO()
            writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            write(folder / name, text.getvalue().encode())
        for name, document in documents.items():
            write(folder / name, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
    except OSError as error:
        raise InputError(f"{folder} cannot be written ({error.strerror}); give another folder") from None
