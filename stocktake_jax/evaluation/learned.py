"""The oracle on learned worlds: what not knowing the parameters costs, and how fast that falls with more to learn from.

A learned world is used in two ways. `plug-in`: the oracle believes in the estimates. `averaged`: it believes in the
posterior, in its futures and in its filters alike (`policies.posterior`); each sampled future has its own draw of each
factor's parameters, and the draws are weighed by how well they have explained the episode so far. What EM learned has no
posterior, but `free rows`: transition matrices that no declared parameters make.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.studies import (
    LEAST,
    Study,
    Variant,
    flat_row,
    plain,
    run_information,
    run_study,
    save_tables,
    transition_parameters,
)
from stocktake_jax.inference.learning import (
    Settings,
    WorldFit,
    fit_world,
    load_draws,
    load_transitions,
    posterior_worlds,
)
from stocktake_jax.inference.priors import entries, of_factor, value_of
from stocktake_jax.inference.series import FIRST_SEED, training_series
from stocktake_jax.models import FACTORS, Likelihood, Tape, World
from stocktake_jax.policies.posterior import Matrices, marginal
from stocktake_jax.policies.rollout import Planner, believe, planner

DRAWS = 32
"""Draws that stand for a posterior."""


@dataclasses.dataclass(frozen=True)
class LearnedWorld:
    """A world that was learned.

    Attributes:
        label: how tables call it.
        tapes: how many series it was learned from; None if that is not known.
        method: how.
        world: with the estimates.
        draws: dotted name -> (chain, draw) posterior draws; empty if the method gives none.
        parameters: one row a learned number, as `WorldFit.rows` gives them.
        fixed: numbers that kept the base world's value -> why.
        problems: factor -> reasons not to trust the fit.
        matrices: factor -> free transition matrix, from `em` alone.
    """

    label: str
    tapes: int | None
    method: str
    world: World
    draws: dict[str, np.ndarray]
    parameters: list[dict[str, Any]]
    fixed: dict[str, str]
    problems: dict[str, list[str]]
    matrices: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, label: str, tapes: int | None, fit: WorldFit) -> LearnedWorld:
        """What a fit found."""
        problems = {n: list(reasons) for n, reasons in fit.problems.items()}
        free = {n: f.transition for n, f in fit.fits.items() if f.transition is not None}
        return cls(label, tapes, fit.settings.method, fit.world, fit.draws(), fit.rows(), fit.fixed, problems, free)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> LearnedWorld:
        """What `stocktake fit --out` wrote.

        Raises:
            InputError: if the folder holds no finished fit.
        """
        path = Path(folder)
        world = World.load(path / "world.toml")
        try:
            summary = json.loads((path / "fit.json").read_text(encoding="utf-8"))
            problems = {n: f["problems"] for n, f in summary["factors"].items() if f["problems"]}
            method, rows, fixed = summary["settings"]["method"], summary["parameters"], summary["fixed"]
            seeds = re.match(r"seeds (\d+) to (\d+)", summary["source"])
            tapes = int(seeds[2]) - int(seeds[1]) + 1 if seeds else None
        except OSError as error:
            raise InputError(f"{path} holds no finished fit: fit.json cannot be read ({error.strerror})") from None
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path / 'fit.json'} is damaged ({error}); fit again") from None
        kept = path / "posterior.npz"
        draws = load_draws(kept) if kept.exists() else {}
        return cls(path.name, tapes, method, world, draws, rows, fixed, problems, load_transitions(path))


def learn_worlds(
    counts: Sequence[int],
    settings: Settings,
    *,
    buying: str = "idle",
    base: World | None = None,
    true_world: World | None = None,
    out: str | os.PathLike[str] | None = None,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[LearnedWorld]:
    """Learn a world from the first 10, 20, ... training tapes (seeds 5000 and on).

    Args:
        counts: of training tapes.
        settings: of the fits.
        buying: what is bought on the tapes, `idle` or `spot20`; fills are read only where spot is bought.
        base: gives what is not learned, and the start of the search.
        true_world: of the tapes.
        out: a folder whose `fits/N` keep finished factors, so that an interrupted call goes on.
        workers: factors fitted at the same time.
        progress: called with (factors fitted, all of them).

    Raises:
        InputError: for counts that are not positive or repeated, and as `fit_world`.
    """
    base, truth = base or World.paper(), true_world or World.paper()
    if not counts or len(set(counts)) < len(counts) or min(counts) < 1:
        raise InputError(f"numbers of tapes must be positive and each listed once, not {', '.join(map(str, counts))}")
    everything = training_series(truth, max(counts), buying, FIRST_SEED)
    done, total = 0, len(counts) * sum(1 for f in base.factors.values() if of_factor(f, settings.learn))
    found = []
    for count in counts:

        def tell(factor: str, what: str) -> None:
            nonlocal done
            if what != "starts":
                done += 1
                if progress is not None:
                    progress(done, total)

        series = dataclasses.replace(
            everything,
            readings={n: {c: y[:count] for c, y in channels.items()} for n, channels in everything.readings.items()},
            names=everything.names[:count],
            lengths=everything.lengths[:count],
            source=f"seeds {FIRST_SEED} to {FIRST_SEED + count - 1}, {buying}",
        )
        folder = None if out is None else Path(out) / "fits" / str(count)
        fit = fit_world(base, series, settings, out=folder, workers=workers, tell=tell)
        if folder is not None:
            fit.save(folder, truth)
        found.append(LearnedWorld.of(f"{settings.method}, {count} tapes", count, fit))
    return found


@dataclasses.dataclass(frozen=True)
class LearnedStudy:
    """The result of `run_learned`.

    Attributes:
        worlds: what was learned.
        study: the oracle's runs; outcome 0 is the true model.
        kinds: label of an outcome -> (number of the learned world, `plug-in`, `averaged` or `free rows`).
        errors: per learned world, see `parameter_error`.
        scores: label of an outcome -> factor -> (mean, s.e.) on fresh tapes, see `fresh_log_scores`.
        settings: what else the result depends on, ready for JSON.
    """

    worlds: tuple[LearnedWorld, ...]
    study: Study
    kinds: dict[str, tuple[int, str]]
    errors: tuple[dict[str, float], ...]
    scores: dict[str, dict[str, tuple[float, float]]]
    settings: dict[str, Any]

    def rows(self) -> list[dict[str, Any]]:
        """One row a model of the study but the true one: what was learned, and an `Outcome`."""
        out = []
        for o in self.study.outcomes[1:]:
            number, kind = self.kinds[o.label]
            learned = self.worlds[number]
            scores = self.scores[o.label]
            out.append(
                {
                    "label": o.label,
                    "tapes": learned.tapes,
                    "method": learned.method,
                    "kind": kind,
                    "converged": not learned.problems,
                    "parameter_error": self.errors[number],
                    "fresh_log_score": {n: m for n, (m, _) in scores.items()},
                    "fresh_log_score_se": {n: se for n, (_, se) in scores.items()},
                    **{k: v for k, v in dataclasses.asdict(o).items() if k not in _NOT_OF_LEARNED},
                }
            )
        return out

    def document(self) -> dict[str, Any]:
        """Everything but the single runs, ready for JSON; undefined numbers are null.

        `{"study": "learned", "seeds": [...], "replications": n, "settings": {...}, "true_model": {...}, "models": [...],
        "parameters": [...], "fixed": {...}, "problems": {...}, "run": {...}}`. A model is a row of `rows`; the true model
        has the attributes of `Outcome`; a parameter is a row of `WorldFit.rows` with the `model` it belongs to and the
        `truth`. `plots.sample_complexity` draws, against `tapes` and by `kind`: `difference` with the interval `low` to
        `high`, `parameter_error`, and `fresh_log_score` (less the true model's, by factor).
        """
        return {
            "study": "learned",
            "seeds": list(self.study.seeds),
            "replications": self.study.replications,
            "settings": self.settings,
            "true_model": plain(dataclasses.asdict(self.study.outcomes[0])),
            "models": plain(self.rows()),
            "parameters": plain(self.parameters()),
            "fixed": {w.label: w.fixed for w in self.worlds},
            "problems": {w.label: w.problems for w in self.worlds if w.problems},
            "run": run_information(self.study.seconds),
        }

    def parameters(self) -> list[dict[str, Any]]:
        """One row a learned number of each world."""
        return [{"model": w.label, "tapes": w.tapes} | row for w in self.worlds for row in w.parameters]

    def save(self, out: str | os.PathLike[str]) -> None:
        """Write learned.json, learned.csv, parameters.csv, and what `Study.save` writes, to a folder."""
        self.study.save(out)
        tables = {
            "learned.csv": [flat_row({k: v for k, v in row.items() if k != "by_seed"}) for row in self.rows()],
            "parameters.csv": self.parameters(),
        }
        save_tables(out, tables, {"learned.json": self.document()})


_NOT_OF_LEARNED = ("label", "parameter", "factor", "changes", "values", "believed")


def run_learned(
    worlds: Sequence[LearnedWorld],
    *,
    draws: int = DRAWS,
    fresh: int = 2000,
    true_world: World | None = None,
    **how: Any,
) -> LearnedStudy:
    """The oracle on learned worlds, paired with the true model's; one batch over the plug-in worlds, one over posteriors.

    Args:
        worlds: what was learned.
        draws: that stand for each posterior; 0: no averaged oracles.
        fresh: tapes for the filters' log scores.
        true_world: of everything that happens.
        **how: seeds, replications, and all else that `run_study` takes.

    Raises:
        InputError: for no worlds, repeated labels, draws < 0 or fresh < 2, and as `run_study`.
    """
    truth = true_world or World.paper()
    if draws < 0:
        raise InputError(f"draws must be at least 0, not {draws}")
    if fresh < 2:
        raise InputError(f"fresh must be at least 2 tapes, not {fresh}")
    truths = _numbers(truth)
    worlds = tuple(
        dataclasses.replace(w, parameters=[{**row, "truth": truths[row["name"]]} for row in w.parameters])
        for w in worlds
    )
    kinds: dict[str, tuple[int, str]] = {}
    plug_in, free, averaged = [], [], []
    for number, w in enumerate(worlds):
        if w.label in {other.label for other in worlds[:number]}:
            raise InputError(f"two learned worlds are called {w.label!r}; rename a folder")
        plug_in.append(Variant(f"{w.label}, plug-in", w.world))
        kinds[plug_in[-1].label] = number, "plug-in"
        if w.matrices:
            free.append(Variant(f"{w.label}, free rows", w.world, matrices=w.matrices))
            kinds[free[-1].label] = number, "free rows"
        if draws and w.draws:
            posterior = posterior_worlds(w.world, w.draws, draws, key=jax.random.key(0))
            averaged.append(Variant(f"{w.label}, averaged", posterior))
            kinds[averaged[-1].label] = number, "averaged"
    variants = [*plug_in, *free, *averaged]
    study = run_study(variants, true_world=truth, **how)
    scores = fresh_log_scores(
        {v.label: v.model for v in variants},
        fresh,
        key=jax.random.key(1),
        true_world=truth,
        matrices={v.label: v.matrices for v in variants},
    )
    errors = tuple(parameter_error(w.parameters, truth) for w in worlds)
    settings = study.settings | {"draws": draws, "fresh": fresh}
    return LearnedStudy(worlds, study, kinds, errors, scores, settings)


def parameter_error(rows: Sequence[Mapping[str, Any]], true_world: World) -> dict[str, float]:
    """How far estimates are from the truth: root mean square over the learned numbers, by what they are for.

    Args:
        rows: with `name`, `estimate` and `truth`.
        true_world: tells what moves a chain.

    Returns:
        `transitions`: of estimate - truth, both being probabilities. `emissions`: of estimate / truth - 1, over numbers
        that are not zero. nan where there are none.
    """
    moving = {f"{n}.{p}" for n, f in true_world.factors.items() for p in transition_parameters(f)}
    moves = [r["estimate"] - r["truth"] for r in rows if r["name"] in moving]
    shows = [r["estimate"] / r["truth"] - 1 for r in rows if r["name"] not in moving and r["truth"] != 0]
    return {"transitions": _root_mean_square(moves), "emissions": _root_mean_square(shows)}


def _root_mean_square(x: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(x)))) if len(x) else math.nan


def _numbers(world: World) -> dict[str, float]:
    """Every number of the six factors by dotted name, entries of a list as `canal.suez[2]`."""
    return {name: value_of(f, e) for f in world.factors.values() for name, e in entries(f).items()}


# ---- filters on fresh tapes -----------------------------------------------------------------------------------------


def fresh_log_scores(
    models: Mapping[str, World],
    count: int,
    *,
    key: Array,
    true_world: World | None = None,
    likelihood: Likelihood = "paper",
    matrices: Mapping[str, Matrices] | None = None,
    chunk: int = 500,
) -> dict[str, dict[str, tuple[float, float]]]:
    """Mean log probability of the true regime under each model's filters, less the true model's, in nats a week.

    The tapes are fresh, without orders; weeks 1 .. 26 count; filters start as the published ones do. Probabilities below
    a million millionth count as that.

    Args:
        models: label -> world or posterior.
        count: of tapes, at least 2.
        key: of the tapes.
        true_world: of the tapes; also the model that the others are compared with.
        likelihood: of the filters.
        matrices: label -> transition matrices that hold in place of the model's.
        chunk: tapes at a time.

    Returns:
        label -> factor -> (mean, standard error over tapes).
    """
    truth = true_world or World.paper()
    planners = {label: planner(world, matrices=(matrices or {}).get(label)) for label, world in models.items()}
    reference = planner(truth)
    gains: dict[str, list[dict[str, np.ndarray]]] = {label: [] for label in models}
    for start in range(0, count, chunk):
        kept = min(chunk, count - start)
        tapes = Tape.sample_batch(truth, min(chunk, count), key=jax.random.fold_in(key, start)).snapped(truth)
        readings = jax.tree.map(lambda x: np.asarray(x, np.float32), tapes.readings(truth))
        regimes = {
            n: np.array([f.labels.index(r.label) for r in f.state_regimes], np.int32)[np.asarray(tapes.states[n])]
            for n, f in truth.factors.items()
        }
        own = _scores(reference, readings, regimes, likelihood)
        for label, p in planners.items():
            theirs = _scores(p, readings, regimes, likelihood)
            gains[label].append({n: np.asarray(theirs[n] - own[n], np.float64)[:kept] for n in FACTORS})
    out = {}
    for label, parts in gains.items():
        by_factor = {n: np.concatenate([part[n] for part in parts]) for n in FACTORS}
        out[label] = {n: (float(x.mean()), float(x.std(ddof=1) / math.sqrt(count))) for n, x in by_factor.items()}
    return out


@functools.partial(jax.jit, static_argnums=3)
def _scores(
    p: Planner, readings: dict[str, dict[str, Array]], regimes: dict[str, Array], likelihood: Likelihood
) -> dict[str, Array]:
    """factor -> (tape,) mean log probability of the true regime."""

    def one(series: dict[str, dict[str, Array]], regime: dict[str, Array]) -> dict[str, Array]:
        def week(predicted: dict[str, Array], now: Any) -> tuple[dict[str, Array], dict[str, Array]]:
            seen, true = now
            belief, ahead = believe(p, predicted, seen, likelihood)
            pooled = marginal(p.world, belief).regimes(p.world)
            return ahead, {n: jnp.log(jnp.maximum(pooled[n][true[n]], LEAST)) for n in FACTORS}

        _, scores = jax.lax.scan(week, p.initial, (series, regime))
        return {n: jnp.mean(s[1:]) for n, s in scores.items()}

    return jax.vmap(one)(readings, regimes)
