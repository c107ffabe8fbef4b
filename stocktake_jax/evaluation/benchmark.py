"""The main job: the floor, the oracle's reference and every agent's skill on a list of seeds, saved as it goes.

The work is cut into chunks of seeds. Every finished seed is written at once, in one piece, so a run that is interrupted
at any point goes on from its folder. Nothing but a run's seed, its number and the options decides what happens in it:
not the chunks, not the devices, not what else is in the list.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib.metadata
import io
import json
import math
import operator
import os
import platform
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self, get_args

import jax
import numpy as np

from stocktake_jax import __version__
from stocktake_jax.desk import ACTIONS, ROUTES, RULES, SUPPLIERS, TERMS, Rules
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.catalog import check_seeds, classify_seed, published_seeds
from stocktake_jax.evaluation.distributed import Share
from stocktake_jax.evaluation.exchange import bill_of
from stocktake_jax.evaluation.published import PROFILES, published_agents
from stocktake_jax.evaluation.simulate import Trajectories, simulate
from stocktake_jax.evaluation.skill import Costs, References, SkillTable, score
from stocktake_jax.models import FACTORS, HORIZON, Initial, Likelihood, Tape, World
from stocktake_jax.policies import BaseStock, Layout, Oracle, Runs

PUBLISHED_REPLICATIONS = 20
MOST_SEED, MOST_REPLICATIONS, MOST_FUTURES = 2**32 - 1, 10_000, 100_000

FILES = {
    "manifest.json": "the options that this folder was made with, and the version of the package",
    "seeds/N.json": "seed N: profile, cost of the floor and of every oracle run, and run 1 of both week by week",
    "results.json": "the document that `stocktake bench --json` prints",
    "references.csv": "per seed: profile, floor, and the oracle's mean, standard error, extremes and number of runs",
    "runs.csv": "the cost of every run",
    "skill.csv": "skill by agent and group, against this run's references (own) and the published ones (published)",
    "skill_by_seed.csv": "skill by agent and seed, against both",
    "contrasts.csv": "every pair of agents, against both",
    "published_comparison.csv": "this run's oracle beside the published one; only under the published options",
}
"""What a folder of results holds."""


# ---- options --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class BenchOptions:
    """What is computed; everything that the results depend on.

    Attributes:
        seeds: kept in ascending order, so that the order given changes nothing; the published fifty by default.
        replications: oracle runs per seed.
        futures: futures sampled per decision; None: 190 + r in run r, as published.
        likelihood, initial: how the oracle's filters read and start.
        rules: of the books.
        model: the world that the oracle believes in.
        true_world: the world of tapes, books and floor.
        agents: whose skill is computed; None: the four published ones.

    Raises:
        InputError: for values out of range.
    """

    seeds: tuple[int, ...] = dataclasses.field(default_factory=published_seeds)
    replications: int = PUBLISHED_REPLICATIONS
    futures: int | None = None
    likelihood: Likelihood = "paper"
    initial: Initial = "uniform"
    rules: Rules = "paper"
    model: World = dataclasses.field(default_factory=World.paper)
    true_world: World = dataclasses.field(default_factory=World.paper)
    agents: Costs | None = None

    def __post_init__(self) -> None:
        check_seeds(self.seeds)
        for seed in self.seeds:
            _whole("every seed", seed, 0, MOST_SEED)
        if len(set(self.seeds)) != len(self.seeds):
            twice = next(seed for seed in self.seeds if self.seeds.count(seed) > 1)
            raise InputError(f"seed {twice} is listed more than once")
        object.__setattr__(self, "seeds", tuple(sorted(int(seed) for seed in self.seeds)))
        _whole("replications", self.replications, 1, MOST_REPLICATIONS)
        if self.futures is not None:
            _whole("futures", self.futures, 1, MOST_FUTURES)
        for name, allowed in (("likelihood", get_args(Likelihood)), ("initial", get_args(Initial)), ("rules", RULES)):
            value = getattr(self, name)
            if value not in allowed:
                raise InputError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")

    @property
    def as_published(self) -> bool:
        """Whether references made with these options may be compared with the published ones, seed by seed."""
        worlds = {self.model.to_toml(), self.true_world.to_toml()}
        ways = (self.futures, self.likelihood, self.initial, self.rules)
        return worlds == {World.paper().to_toml()} and ways == (None, "paper", "uniform", "paper")

    def to_json(self) -> dict[str, Any]:
        """All options, worlds as TOML documents, costs of agents in full: enough to repeat the run."""
        agents: Any = "published"
        if self.agents is not None:
            agents = {
                agent: {str(seed): [_number(c) for c in np.atleast_1d(cost).tolist()] for seed, cost in costs.items()}
                for agent, costs in self.agents.items()
            }
        return {
            "seeds": list(self.seeds),
            "replications": self.replications,
            "futures": self.futures,
            "likelihood": self.likelihood,
            "initial": self.initial,
            "rules": self.rules,
            "world": self.model.to_toml(),
            "true_world": self.true_world.to_toml(),
            "agents": agents,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """What `to_json` gave.

        Raises:
            KeyError, TypeError, ValueError: if it is something else.
            InputError: for values out of range.
        """
        agents: Any = None
        if row["agents"] != "published":
            agents = {
                agent: {
                    int(seed): tuple(math.nan if c is None else float(c) for c in runs) for seed, runs in of.items()
                }
                for agent, of in row["agents"].items()
            }
        return cls(
            seeds=tuple(row["seeds"]),
            model=World.from_toml(row["world"]),
            true_world=World.from_toml(row["true_world"]),
            agents=agents,
            **{name: row[name] for name in ("replications", "futures", "likelihood", "initial", "rules")},
        )


def _whole(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(f"{name} must be a whole number in [{low}, {high}], not {value!r}")


# ---- results --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SeedResult:
    """What was computed for one seed.

    Attributes:
        seed: the seed.
        profile: its stress profile, one of `PROFILES`.
        floor: cost of the floor.
        oracle: cost of each oracle run, in dollars.
        weeks: "floor" and "oracle" -> run 1, one entry for each of weeks 1 .. 26: the decision that took effect in the
            week, its bill, the units at its end and, for the oracle, what it believed when it decided (factor -> regime
            -> probability, after the readings of the week before) and what it expected the rest to cost.
        made_with: version of jax and kind of device.
    """

    seed: int
    profile: str
    floor: float
    oracle: tuple[float, ...]
    weeks: Mapping[str, Sequence[Mapping[str, Any]]]
    made_with: str

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return dataclasses.asdict(self) | {"oracle": list(self.oracle)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """What `to_json` gave.

        Raises:
            KeyError, TypeError: if it is something else.
        """
        return cls(**{f.name: row[f.name] for f in dataclasses.fields(cls)} | {"oracle": tuple(row["oracle"])})


class Agreement(NamedTuple):
    """This run's oracle against the published one, over the seeds that both have.

    Attributes:
        rows: per seed: seed, oracle, se, published, published_se, difference, difference_se.
        mean, se: the mean difference, and its standard error from the runs' spread within seeds.
        beyond_2, beyond_3: seeds that differ by more than 2, and 3, standard errors.
    """

    rows: list[dict[str, Any]]
    mean: float
    se: float
    beyond_2: int
    beyond_3: int


@dataclasses.dataclass(frozen=True)
class BenchResult:
    """The result of `run_benchmark`.

    Attributes:
        options: what was computed.
        seeds: one entry per seed, ascending.
        references: floor and oracle of every seed.
        skill: the agents against these references.
        published: the agents against the published references of those seeds that have them.
        run: versions, device, options, seconds: the one part in which equal runs may differ.
    """

    options: BenchOptions
    seeds: tuple[SeedResult, ...]
    references: References
    skill: SkillTable
    published: SkillTable
    run: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """The document that `stocktake bench --json` prints; undefined numbers are None."""
        return {
            "seeds": [
                {
                    "seed": result.seed,
                    "profile": result.profile,
                    "floor": result.floor,
                    "oracle": {
                        "mean": float(self.references.oracle[i]),
                        "se": _number(self.references.oracle_se[i]),
                        "min": min(result.oracle),
                        "max": max(result.oracle),
                        "n": len(result.oracle),
                    },
                }
                for i, result in enumerate(self.seeds)
            ],
            "agents": self.skill.to_json(),
            "published": {"agents": self.published.to_json()},
            "run": dict(self.run),
        }

    def agreement(self) -> Agreement | None:
        """The oracle against the published one; None unless the options are the published ones and errors are known."""
        if not self.options.as_published or self.options.replications < 2 or not self.published.references.seeds:
            return None
        theirs = self.published.references
        rows = []
        for i, seed in enumerate(theirs.seeds):
            j = self.references.seeds.index(seed)
            mine, se = float(self.references.oracle[j]), float(self.references.oracle_se[j])
            published, published_se = float(theirs.oracle[i]), float(theirs.oracle_se[i])
            rows.append(
                {
                    "seed": seed,
                    "oracle": mine,
                    "se": se,
                    "published": published,
                    "published_se": published_se,
                    "difference": mine - published,
                    "difference_se": math.hypot(se, published_se),
                }
            )
        difference = np.array([row["difference"] for row in rows])
        error = np.array([row["difference_se"] for row in rows])
        return Agreement(
            rows,
            float(difference.mean()),
            float(np.sqrt((error**2).sum()) / len(rows)),
            int((np.abs(difference) > 2 * error).sum()),
            int((np.abs(difference) > 3 * error).sum()),
        )


class Progress(NamedTuple):
    """How far a run is.

    Attributes:
        finished, total: seeds that are finished, and all.
        now: seeds that are being worked on.
        week: the week that these have reached, 0 .. 26.
    """

    finished: int
    total: int
    now: int
    week: int


# ---- the job --------------------------------------------------------------------------------------------------------


def run_benchmark(
    options: BenchOptions | None = None,
    out: str | os.PathLike[str] | None = None,
    *,
    devices: Sequence[jax.Device] | None = None,
    layout: Layout | None = None,
    chunk: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    share: Share | None = None,
) -> BenchResult:
    """Compute floor, oracle references and skill.

    Args:
        options: what to compute.
        out: a folder for the results (`FILES`). Seeds that it has already are not computed again.
        devices: the devices that share the work; None: the default one.
        layout: how the oracle cuts its batches; None: chosen by the platform.
        chunk: seeds that are worked on together; None: chosen by the platform.
        progress: called after each week of a chunk.
        share: this process's part of the work, if several share it (`distributed.join`); all of them get the result.

    Raises:
        InputError: if the options are out of range, or `out` cannot be used: unwritable, no folder of results, made
            with other options, or damaged.
    """
    began = time.perf_counter()
    options = options or BenchOptions()
    if chunk is not None:
        _whole("chunk", chunk, 1, 1_000_000)
    share = share or Share()
    if share.index > 0:
        share.wait("results folder")  # process 0 makes it
    store = Store(Path(out), options) if out is not None else None
    if share.index == 0:
        share.wait("results folder")
    devices = list(devices) if devices else [jax.devices()[0]]
    made_with = f"jax {jax.__version__} on {devices[0].device_kind}"
    done = store.finished() if store else {}
    mine = share.of(options.seeds)
    done = {seed: result for seed, result in done.items() if seed in set(mine)}
    resumed, total = len(done), len(mine)
    oracle = Oracle(
        options.model,
        likelihood=options.likelihood,
        initial=options.initial,
        futures=options.futures,
        layout=layout,
        devices=devices,
    )
    size = max(1, min(chunk or default_chunk(devices[0].platform, options.replications), total))
    for now in chunks([seed for seed in mine if seed not in done], size):

        def report(week: int, finished: int = len(done), now: int = len(set(now))) -> None:
            if progress is not None:
                progress(Progress(finished, total, now, week))

        report(0)
        for finished in _compute(options, oracle, now, len(devices), made_with, report):
            if store:
                store.save(finished)
            done[finished.seed] = finished
    if share.count > 1:
        rows = share.gather([result.to_json() for result in done.values()])
        done = {row["seed"]: SeedResult.from_json(row) for row in rows}
        if share.index > 0:
            store = None  # what is made of all seeds is written once
        elif store:
            for seed in set(options.seeds) - set(mine):
                store.save(done[seed])
    seeds = tuple(done[seed] for seed in options.seeds)
    run = {
        "package": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": {"platform": devices[0].platform, "kind": devices[0].device_kind, "count": len(devices)},
        "made_with": sorted({result.made_with for result in seeds}),
        "options": options.to_json(),
        "chunk": size,
        "layout": oracle.layout._asdict(),
        "seeds_resumed": resumed,
        "seconds": round(time.perf_counter() - began, 3),
    }
    result = _result(options, seeds, run)
    if store:
        store.conclude(result)
    return result


def _result(options: BenchOptions, seeds: tuple[SeedResult, ...], run: Mapping[str, Any]) -> BenchResult:
    """The result made of finished seeds."""
    references = _references(seeds)
    agents = published_agents() if options.agents is None else options.agents
    published = References.published(result.seed for result in seeds)
    return BenchResult(options, seeds, references, score(agents, references), score(agents, published), run)


def read_results(folder: str | os.PathLike[str]) -> BenchResult:
    """The results in a folder that `run_benchmark` filled; nothing is computed anew and nothing is written.

    Of an interrupted run it holds the seeds that are finished: `seeds` is then shorter than `options.seeds`, and `run`
    is {"package": ...} alone.

    Raises:
        InputError: if the folder is not there, holds no results or no finished seed, or is damaged.
    """
    folder = Path(folder)
    manifest = folder / "manifest.json"
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; make one with `stocktake bench --out {folder}`")
    if not manifest.exists():
        raise InputError(
            f"{folder} is no folder of results (it has no manifest.json); `stocktake bench --out` makes one"
        )
    about = _read_json(manifest)
    try:
        options = BenchOptions.from_json(about["options"])
        package = str(about["package"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{manifest} holds no options of a benchmark ({error}); run the benchmark again") from None
    done = _finished(folder / "seeds", options)
    if not done:
        again = f"`stocktake bench --out {folder}` with its options goes on from it"
        raise InputError(f"{folder} holds no finished seed: its run was interrupted before the first one; {again}")
    whole = folder / "results.json"
    run: Any = {"package": package}
    if len(done) == len(options.seeds) and whole.exists():
        run = _read_json(whole).get("run", run)
        if not isinstance(run, dict):
            raise InputError(f"{whole} is damaged (its run is no object); run the benchmark again")
    return _result(options, tuple(done[seed] for seed in options.seeds if seed in done), run)


def default_chunk(platform_name: str, replications: int) -> int:
    """Seeds worked on together: on CPUs few enough that progress shows, on accelerators enough to fill them.

    A run takes some 30 kB outside the oracle's own working set, which its layout bounds.
    """
    runs = 500 if platform_name == "cpu" else 8000
    return max(1, runs // replications)


def chunks(seeds: Sequence[int], size: int) -> list[list[int]]:
    """Seeds in chunks of exactly one size, so that one compilation serves all; the last repeats its last seed."""
    parts = [list(seeds[start : start + size]) for start in range(0, len(seeds), size)]
    return [part + part[-1:] * (size - len(part)) for part in parts]


def _compute(
    options: BenchOptions,
    oracle: Oracle,
    seeds: Sequence[int],
    devices: int,
    made_with: str,
    on_week: Callable[[int], None],
) -> list[SeedResult]:
    """One chunk. Repeated seeds, and the episodes that even it out over the devices, are computed and dropped.

    Episodes stand run by run, so that devices which share them evenly have the same seeds: some weeks are much more
    work for some seeds than for others, and all devices wait for the last.
    """
    replications, world = options.replications, options.true_world
    tape_of = np.tile(np.arange(len(seeds)), replications)
    replication = np.repeat(np.arange(1, replications + 1), len(seeds))
    over = (0, -len(tape_of) % devices)
    tape_of, replication = np.pad(tape_of, over, mode="edge"), np.pad(replication, over, mode="edge")
    runs = Runs(np.array(seeds, np.int64)[tape_of], replication)
    tapes = Tape.published_batch(seeds, world)
    # The floor does the same in all runs of a seed; playing them all shares one compiled shape of the books.
    floor = simulate(BaseStock(world), tapes, runs, tape_of, world, options.rules)
    fair = simulate(oracle, tapes, runs, tape_of, world, options.rules, on_week)
    costs = fair.cost[: len(seeds) * replications].reshape(replications, len(seeds))
    return [
        SeedResult(
            seed,
            classify_seed(seed, world, jax.tree.map(operator.itemgetter(i), tapes)).profile,
            float(floor.cost[i]),
            tuple(costs[:, i].tolist()),
            {"floor": _weeks(floor, i, options.model), "oracle": _weeks(fair, i, options.model)},
            made_with,
        )
        for i, seed in enumerate(dict.fromkeys(seeds))
    ]


def _weeks(played: Trajectories, i: int, model: World) -> list[dict[str, Any]]:
    weeks: list[dict[str, Any]] = []
    labels = {name: factor.labels for name, factor in model.factors.items()}
    for w in range(HORIZON):
        bill = bill_of(played, i, w)
        week: dict[str, Any] = {"week": w + 1, "cost": sum(bill.values())}
        week["decision"] = _decision({name: int(value[i, w]) for name, value in played.decision.items()})
        week["bill"] = bill
        week["books"] = {name: int(units[i, w]) for name, units in played.books.items()}
        if "cost" in played.notes:
            week["belief"] = {
                name: dict(zip(labels[name], map(_short, played.notes[f"belief.{name}"][i, w]), strict=True))
                for name in FACTORS
            }
            week["expected_cost"] = _short(played.notes["cost"][i, w])
        weeks.append(week)
    return weeks


def _decision(d: Mapping[str, int]) -> dict[str, Any]:
    """A decision in the words of the agent's tools."""
    ordered = d["qty"] > 0
    return {
        "qty": d["qty"],
        "route": ROUTES[d["route"]] if ordered else None,
        "supplier": SUPPLIERS[d["supplier"]] if ordered else None,
        "contract_action": ACTIONS[d["action"] - 1] if d["action"] else None,
        "contract_supplier": SUPPLIERS[d["contract_supplier"]] if d["action"] else None,
        "contract_terms": TERMS[d["terms"] - 1] if d["terms"] else None,
        "lock_weeks": d["lock_weeks"],
        "air": d["air"],
        **{name: bool(d[name]) for name in ("inspect", "briefing", "audit")},
    }


def _short(value: Any) -> float:
    """A float32 number with the fewest decimals that tell it from its neighbours."""
    return float(str(np.float32(value)))


def _references(seeds: Sequence[SeedResult]) -> References:
    costs = np.array([result.oracle for result in seeds])
    n = costs.shape[1]
    error = costs.std(axis=1, ddof=1) / np.sqrt(n) if n > 1 else np.full(len(costs), math.nan)
    return References(
        tuple(result.seed for result in seeds),
        tuple(result.profile for result in seeds),
        np.array([result.floor for result in seeds]),
        costs.mean(axis=1),
        error,
    )


def _number(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)


# ---- the folder -----------------------------------------------------------------------------------------------------


class Store:
    """A folder of results: `FILES`.

    Args:
        folder: made if it is not there; an existing one must be empty or made with the same options.
        options: the run's.

    Raises:
        InputError: if the folder cannot be used.
    """

    def __init__(self, folder: Path, options: BenchOptions) -> None:
        self.folder, self.options = folder, options
        self.seeds = folder / "seeds"
        manifest = folder / "manifest.json"
        mine = {"package": __version__, "options": options.to_json(), "files": FILES}
        try:
            if manifest.exists():
                self._same_options(manifest, mine)
            elif folder.exists() and any(p for p in folder.iterdir() if p.name != _partial(manifest).name):
                raise InputError(
                    f"{folder} is no folder of results (it has no manifest.json); give a new or an empty one"
                )
            self.seeds.mkdir(parents=True, exist_ok=True)
            if not manifest.exists():
                self._write(manifest, _pretty(mine))
            elif not os.access(self.seeds, os.W_OK):
                raise InputError(f"{folder} cannot be written to; give a folder of your own")
        except OSError as error:
            raise InputError(f"{folder} cannot be used for results ({error.strerror}); give another folder") from None

    def _same_options(self, manifest: Path, mine: dict[str, Any]) -> None:
        theirs = _read_json(manifest)
        if not isinstance(theirs.get("options"), dict):
            raise InputError(f"{manifest}: there are no options in it; give a new or an empty folder")
        if theirs.get("package") != __version__:
            made = f"version {theirs.get('package')} of stocktake-jax, this is {__version__}"
            raise InputError(f"{self.folder} was made with {made}; give another folder")
        for name, value in mine["options"].items():
            before = theirs["options"].get(name)
            if before != value:
                raise InputError(f"{self.folder} was made with other options: {_changed(name, before, value)}")

    def finished(self) -> dict[int, SeedResult]:
        """The seeds that are there already."""
        return _finished(self.seeds, self.options)

    def save(self, result: SeedResult) -> None:
        """Write a finished seed."""
        self._write(self.seeds / f"{result.seed}.json", json.dumps(result.to_json(), allow_nan=False) + "\n")

    def conclude(self, result: BenchResult) -> None:
        """Write what is made of all seeds."""
        tables = {"own": result.skill, "published": result.published}

        def both(rows_of: Callable[[SkillTable], list[dict[str, object]]]) -> str:
            return _csv([{"references": kind} | row for kind, table in tables.items() for row in rows_of(table)])

        document = result.to_json()
        references = [
            {k: v for k, v in row.items() if k != "oracle"} | {f"oracle_{k}": v for k, v in row["oracle"].items()}
            for row in document["seeds"]
        ]
        runs = [
            {"seed": seed.seed, "policy": policy, "run": run, "cost": cost}
            for seed in result.seeds
            for policy, costs in (("floor", (seed.floor,)), ("oracle", seed.oracle))
            for run, cost in enumerate(costs, start=1)
        ]
        files = {
            "references.csv": _csv(references),
            "runs.csv": _csv(runs),
            "skill.csv": both(SkillTable.summary_rows),
            "skill_by_seed.csv": both(SkillTable.seed_rows),
            "contrasts.csv": both(SkillTable.contrast_rows),
            "results.json": _pretty(document),
        }
        agreement = result.agreement()
        if agreement is not None:
            files["published_comparison.csv"] = _csv(agreement.rows)
        for name, text in files.items():
            self._write(self.folder / name, text)

    def _write(self, path: Path, text: str) -> None:
        """Write a file in one piece: it is there as a whole or not at all, whenever the process may be killed."""
        partial = _partial(path)
        try:
            with partial.open("w", encoding="utf-8", newline="\n") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror})") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(row, dict):
            raise ValueError("no object")
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}); delete it, and run again") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})") from None
    return row


def _finished(folder: Path, options: BenchOptions) -> dict[int, SeedResult]:
    """The seeds of these options whose files are in a folder."""
    done = {}
    for seed in options.seeds:
        path = folder / f"{seed}.json"
        if path.exists():
            try:
                result = SeedResult.from_json(_read_json(path))
                good = result.seed == seed and len(result.oracle) == options.replications
                if not good or result.profile not in PROFILES or not np.isfinite([result.floor, *result.oracle]).all():
                    raise ValueError("it is of another run")
            except (KeyError, TypeError, ValueError) as error:
                if isinstance(error, InputError):
                    raise
                raise InputError(f"{path} is no result of seed {seed} ({error}); delete it, and run again") from None
            done[seed] = result
    return done


def _partial(path: Path) -> Path:
    # Always the same name, so that what a killed process left is overwritten by the next one.
    return path.with_name(f".{path.name}.partial")


def _pretty(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _csv(rows: Sequence[Mapping[str, object]]) -> str:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def _changed(name: str, before: Any, now: Any) -> str:
    """How an option differs, in one line."""
    if name in ("world", "true_world") and isinstance(before, str):
        old = dict(parameter_values(before))
        for key, value in parameter_values(now):
            if old.get(key) != value:
                return f"--{name.replace('_', '-')} had {key} = {_brief(old.get(key))}, and has {_brief(value)} now"
    flag = "--" + name.replace("_", "-")
    if name == "agents":
        return f"{flag} has other costs now"
    return f"{flag} was {_brief(before)}, and is {_brief(now)} now"


def parameter_values(toml: str) -> list[tuple[str, Any]]:
    """Every value of a world's TOML document by dotted name."""
    return [(f"{section}.{key}", v) for section, table in tomllib.loads(toml).items() for key, v in table.items()]


def _brief(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
