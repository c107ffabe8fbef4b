"""`stocktake study ...`: what a wrong or a learned world costs, and whether filters and posteriors are calibrated.

Plain functions that `cli` mounts. Exit codes as there; 1 is a fit that did not converge, or ranks that are not uniform.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stocktake_jax.errors import InputError

if TYPE_CHECKING:
    from stocktake_jax.evaluation.learned import LearnedStudy, LearnedWorld
    from stocktake_jax.evaluation.studies import Study, Variant
    from stocktake_jax.inference.sbc import Ranks
    from stocktake_jax.models import World

SeedList = Annotated[str | None, typer.Option("--seeds", help="Seeds such as 1,5-9; the published fifty by default.")]
Replications = Annotated[int, typer.Option("--replications", help="Runs per seed and model.")]
Futures = Annotated[int | None, typer.Option("--futures", help="Futures per decision; 190 + r in run r by default.")]
TrueFile = Annotated[Path | None, typer.Option("--true-world", help="TOML file: the world of tapes and books.")]
Devices = Annotated[
    int | None, typer.Option("--devices", help="Devices that share the work; all (on CPU: all cores) by default.")
]
Figures = Annotated[bool, typer.Option("--figures", help="Draw figures (PNG and SVG) into the folder of --out.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, to standard output.")]


def mount(app: typer.Typer) -> None:
    """Add the commands to `stocktake study`."""
    for command in (misspecify, learned, calibration, sbc):
        app.command()(command)


# ---- misspecify -----------------------------------------------------------------------------------------------------


def misspecify(
    change: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=FACTOR,..]...", help="Parameters by dotted name, with factors: port.wait_sd=0.5,2."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            help="tornado, transitions, noise, stress, duration, ignore, likelihood or initial; or a list of them.",
        ),
    ] = None,
    grid: Annotated[bool, typer.Option("--grid", help="Take two NAME=.. arguments as a grid.")] = False,
    values: Annotated[
        bool, typer.Option("--values", help="The numbers are values of the parameter, not factors.")
    ] = False,
    seeds: SeedList = None,
    replications: Replications = 20,
    futures: Futures = None,
    true_world: TrueFile = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for study.json and tables; an interrupted study goes on from it."),
    ] = None,
    figures: Figures = False,
    devices: Devices = None,
    as_json: Json = False,
) -> None:
    """The oracle under wrong models, all as one batch: cost on the true world, paired with the true model's."""
    from stocktake_jax.cli import _devices, _seeds, _world
    from stocktake_jax.evaluation.studies import presets, run_study

    _figures_need(out, figures)
    chosen = _devices(devices)
    world = _world(true_world)
    variants: list[Variant] = []
    for name in preset.split(",") if preset else []:
        variants += presets(world, name.strip())
    variants += _changes(world, change or [], grid, values)
    if not variants:
        raise InputError("say what is believed wrongly: NAME=FACTOR,.. arguments, or --preset tornado")
    if figures and all(math.isnan(v.factor) for v in variants):
        raise InputError("--figures draws a tornado chart of factors on parameters, and there are none; leave it out")
    with _resumable(out, "finished models"), _bar("models") as update:
        study = run_study(
            variants,
            true_world=world,
            seeds=_seeds(seeds),
            replications=replications,
            futures=futures,
            devices=chosen,
            out=out,
            progress=update,
        )
    document = study.document()
    if out is not None:
        study.save(out)
        if figures:
            _draw(out, {"tornado": document})
    if as_json:
        print(json.dumps(document, allow_nan=False))
    else:
        _print_study(study)


def _changes(world: World, arguments: list[str], grid: bool, values: bool) -> list[Variant]:
    from stocktake_jax.evaluation.studies import grid_of, variants_of

    parsed = [_change(a) for a in arguments]
    if grid:
        if len(parsed) != 2:
            raise InputError(f"--grid takes exactly two NAME=.. arguments, not {len(parsed)}")
        return grid_of(world, parsed[0], parsed[1], values)
    return [v for name, numbers in parsed for v in variants_of(world, name, numbers, values)]


def _change(argument: str) -> tuple[str, list[float]]:
    name, _, numbers = argument.partition("=")
    if not re.fullmatch(r"\w+\.\w+", name) or not numbers:
        raise InputError(f"a change looks like port.congest_persist=0.5,2, not {argument!r}")
    try:
        return name, [float(x) for x in numbers.split(",")]
    except ValueError:
        raise InputError(f"{argument!r}: {numbers!r} is not a list of numbers like 0.5,2") from None


def _print_study(study: Study) -> None:
    table = _table(
        "model believed in", "cost", "s.e.", "more than true", "s.e.", "95 % over seeds", "p", "worst seed", "changed"
    )
    truth, *others = study.outcomes
    for o in (truth, *sorted(others, key=lambda o: -o.difference)):
        paired = ("-",) * 5 if o is truth else (
            _number(o.difference, 1), _number(o.difference_se, 1), f"{_number(o.low, 0)} to {_number(o.high, 0)}",
            _number(o.p_value, 3), f"{o.worst_seed} ({o.worst:+.1%})",
        )  # fmt: skip
        table.add_row(o.label, _number(o.cost, 1), _number(o.cost_se, 1), *paired, f"{o.changed:.1%}")
    console = _console()
    console.print(table)
    console.print(
        f"{len(study.seeds)} seeds x {study.replications} runs of {len(study.outcomes)} models, common random numbers. "
        "s.e.: Monte Carlo, seeds fixed; the interval is a bootstrap over seeds, p Wilcoxon's. Dollars in 26 weeks."
    )


# ---- learned --------------------------------------------------------------------------------------------------------


def learned(
    tapes: Annotated[
        str | None,
        typer.Option("--tapes", help="Learn from so many training tapes, seeds 5000 and on: 200, or 10,20,50 (200)."),
    ] = None,
    fits: Annotated[
        list[Path] | None, typer.Option("--fits", help="A folder that `stocktake fit --out` wrote. Repeatable.")
    ] = None,
    method: Annotated[str, typer.Option("--method", help="map, nuts, svi or em.")] = "map",
    learn: Annotated[str, typer.Option("--learn", help="transitions, emissions or all.")] = "all",
    policy: Annotated[str, typer.Option("--policy", help="What was bought on the tapes: idle or spot20.")] = "idle",
    draws: Annotated[
        int, typer.Option("--draws", help="Posterior draws of the averaged oracle; 0: the plug-in oracle alone.")
    ] = 32,
    fresh: Annotated[int, typer.Option("--fresh", help="Fresh tapes for the filters' log scores.")] = 2000,
    seeds: SeedList = None,
    replications: Replications = 20,
    futures: Futures = None,
    world: Annotated[
        Path | None, typer.Option("--world", help="TOML file: where fits start, and what is not learned.")
    ] = None,
    true_world: TrueFile = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for fits, learned.json and tables; what is interrupted goes on from it."),
    ] = None,
    figures: Figures = False,
    workers: Annotated[int, typer.Option("--workers", help="Factors fitted at the same time.")] = 2,
    devices: Devices = None,
    as_json: Json = False,
) -> None:
    """The oracle on learned worlds, plug-in and averaged over the posterior, paired with the true model's."""
    from stocktake_jax.cli import _devices, _seeds, _world
    from stocktake_jax.evaluation.learned import LearnedWorld, learn_worlds, run_learned
    from stocktake_jax.inference.learning import Settings

    _figures_need(out, figures)
    if fits and tapes is not None:
        raise InputError("give --tapes or --fits, not both")
    counts = [] if fits else _counts("200" if tapes is None else tapes)
    settings = Settings(
        method=_one_of("--method", method, ("map", "nuts", "svi", "em")),
        learn=_one_of("--learn", learn, ("transitions", "emissions", "all")),
    )
    settings.check()
    buying = _one_of("--policy", policy, ("idle", "spot20"))
    chosen, truth = _devices(devices), _world(true_world)
    with _resumable(out, "finished fits and models"):
        if fits:
            worlds = [LearnedWorld.load(folder) for folder in fits]
        else:
            with _bar("fits") as update:
                worlds = learn_worlds(
                    counts,
                    settings,
                    buying=buying,
                    base=_world(world),
                    true_world=truth,
                    out=out,
                    workers=workers,
                    progress=update,
                )
        with _bar("models") as update:
            result = run_learned(
                worlds,
                draws=draws,
                fresh=fresh,
                true_world=truth,
                seeds=_seeds(seeds),
                replications=replications,
                futures=futures,
                devices=chosen,
                out=out,
                progress=update,
            )
    document = result.document()
    if out is not None:
        result.save(out)
        if figures:
            _draw(out, {"sample_complexity": document})
    if as_json:
        print(json.dumps(document, allow_nan=False))
    else:
        _print_learned(result)
    _complain_of_fits(worlds)


def _counts(text: str) -> list[int]:
    try:
        return [int(x) for x in text.split(",")]
    except ValueError:
        raise InputError(f"--tapes must be a number or a list like 10,20,50, not {text!r}") from None


def _complain_of_fits(worlds: Sequence[LearnedWorld]) -> None:
    import sys

    for w in worlds:
        for factor, reasons in w.problems.items():
            print(f"stocktake: {w.label}: {factor} did not converge: {'; '.join(reasons)}", file=sys.stderr)
    if any(w.problems for w in worlds):
        raise typer.Exit(1)


def _print_learned(result: LearnedStudy) -> None:
    table = _table(
        "learned", "cost", "more than true", "95 % over seeds", "p", "worst seed", "error of moves", "of readings",
        "log score",
    )  # fmt: skip
    for row in result.rows():
        error = row["parameter_error"]
        table.add_row(
            row["label"],
            _number(row["cost"], 1),
            f"{_number(row['difference'], 1)} ± {_number(row['difference_se'], 1)}",
            f"{_number(row['low'], 0)} to {_number(row['high'], 0)}",
            _number(row["p_value"], 3),
            f"{row['worst_seed']} ({row['worst']:+.1%} ± {row['worst_se']:.1%})",
            _number(error["transitions"], 4),
            _number(error["emissions"], 4),
            _number(sum(row["fresh_log_score"].values()), 4),
        )
    console = _console()
    console.print(table)
    truth = result.study.outcomes[0]
    console.print(
        f"True model: {truth.cost:.1f} ± {truth.cost_se:.1f}. {len(result.study.seeds)} seeds x "
        f"{result.study.replications} runs. ±: Monte Carlo s.e., seeds fixed; the interval is a bootstrap over seeds, p "
        "Wilcoxon's. Errors: root mean square, of probabilities and of estimate / truth - 1. Log score: of the true "
        "regimes, all factors, less the true model's, nats a week on fresh tapes."
    )


# ---- calibration ----------------------------------------------------------------------------------------------------


def calibration(
    tapes: Annotated[int, typer.Option("--tapes", help="Fresh tapes.")] = 10_000,
    world: Annotated[
        list[Path] | None,
        typer.Option(
            "--world", help="TOML file: a world that filters believe in. Repeatable; the true one by default."
        ),
    ] = None,
    true_world: TrueFile = None,
    likelihood: Annotated[str, typer.Option("--likelihood", help="paper, exact, or paper,exact.")] = "paper,exact",
    initial: Annotated[
        str, typer.Option("--initial", help="Where the filters start: uniform or baseline.")
    ] = "uniform",
    policy: Annotated[str, typer.Option("--policy", help="idle, or spot20: fill is read while spot lives.")] = "idle",
    bins: Annotated[int, typer.Option("--bins", help="Bins of stated probability.")] = 10,
    chunk: Annotated[int, typer.Option("--chunk", help="Tapes at a time.")] = 1000,
    seed: Annotated[int, typer.Option("--seed", help="Of the fresh tapes.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for calibration.json, calibration.csv and reliability.csv.")
    ] = None,
    figures: Figures = False,
    as_json: Json = False,
) -> None:
    """Reliability, calibration error, log and Brier score of the filters on fresh tapes, by factor and regime."""
    import jax

    from stocktake_jax.cli import _whole, _world
    from stocktake_jax.evaluation.studies import save_tables
    from stocktake_jax.inference.calibration import calibrate, document_of

    _figures_need(out, figures)
    _whole("--seed", seed, 0, 2**32 - 1)
    truth = _world(true_world)
    models = {f"{p.parent.name}/{p.stem}" if p.stem == "world" else p.stem: _world(p) for p in world or []}
    if len(models) < len(world or []):
        raise InputError("two --world files have the same name; rename one")
    kinds = tuple(_one_of("--likelihood", k.strip(), ("paper", "exact")) for k in likelihood.split(","))
    with _bar("tapes") as update:
        found = calibrate(
            models or {"true": truth},
            tapes,
            key=jax.random.key(seed),
            true_world=truth,
            likelihoods=kinds,
            initial=_one_of("--initial", initial, ("uniform", "baseline")),
            sourced=_one_of("--policy", policy, ("idle", "spot20")) == "spot20",
            bins=bins,
            chunk=chunk,
            on_chunk=lambda done: update(done, tapes),
        )
    document = document_of(found, tapes)
    if out is not None:
        tables = {"calibration.csv": document["scores"], "reliability.csv": document["reliability"]}
        save_tables(out, tables, {"calibration.json": document})
        if figures:
            _draw(out, {"reliability": document})
    if as_json:
        print(json.dumps(document, allow_nan=False))
    else:
        _print_calibration(document)


def _print_calibration(document: Mapping[str, Any]) -> None:
    title = f"Filters on {document['tapes']} fresh tapes: log score in nats a week, Brier score, calibration error"
    columns = ("model", "likelihood", "factor", "log score", "s.e.", "Brier", "s.e.", "ECE", "impossible")
    table = _table(*columns, title=title)
    for row in document["scores"]:
        scores = [_number(row[k], 5) for k in ("log_score", "log_score_se", "brier", "brier_se", "ece")]
        table.add_row(row["model"], row["likelihood"], row["factor"], *scores, str(row["impossible"]))
    _console().print(table)


# ---- simulation-based calibration -----------------------------------------------------------------------------------


def sbc(
    factors: Annotated[str, typer.Option("--factors", help="Factors, such as port,quality; all six by default.")] = "",
    replicates: Annotated[int, typer.Option("--replicates", help="Simulated data sets per factor.")] = 100,
    series: Annotated[int, typer.Option("--series", help="Series per data set.")] = 20,
    weeks: Annotated[int, typer.Option("--weeks", help="Weeks per series.")] = 27,
    learn: Annotated[
        str, typer.Option("--learn", help="transitions, emissions or all; or parameters by dotted name.")
    ] = "all",
    likelihood: Annotated[str, typer.Option("--likelihood", help="Law of the readings: exact or paper.")] = "exact",
    policy: Annotated[str, typer.Option("--policy", help="idle, or spot20: fill is read.")] = "idle",
    world: Annotated[Path | None, typer.Option("--world", help="TOML file: the world at the priors' centre.")] = None,
    warmup: Annotated[int, typer.Option("--warmup", help="NUTS warm-up.")] = 300,
    draws: Annotated[int, typer.Option("--draws", help="Posterior draws that the truth is ranked among.")] = 63,
    thin: Annotated[int, typer.Option("--thin", help="NUTS transitions per draw.")] = 4,
    seed: Annotated[int, typer.Option("--seed", help="Of everything.")] = 0,
    level: Annotated[float, typer.Option("--level", help="Family-wise level of the test, per factor.")] = 0.01,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for sbc.json and ranks.csv; an interrupted run goes on from it."),
    ] = None,
    figures: Figures = False,
    as_json: Json = False,
) -> None:
    """Simulation-based calibration: ranks of the truth among posterior draws, for each factor."""
    import sys

    import jax

    from stocktake_jax.cli import _whole, _world
    from stocktake_jax.evaluation.studies import save_tables
    from stocktake_jax.inference.priors import of_factor
    from stocktake_jax.inference.sbc import document_of, rank_rows, simulation_based_calibration
    from stocktake_jax.models import FACTORS

    _figures_need(out, figures)
    _whole("--seed", seed, 0, 2**32 - 1)
    if not 0 < level < 1:
        raise InputError(f"--level must lie between 0 and 1, not {level}")
    base = _world(world)
    names = [_one_of("--factors", n.strip(), FACTORS) for n in factors.split(",")] if factors else list(FACTORS)
    wanted: Any = learn if learn in ("transitions", "emissions", "all") else tuple(n.strip() for n in learn.split(","))
    jobs = {n: of_factor(base.factors[n], wanted) for n in FACTORS if n in names}
    jobs = {n: what for n, what in jobs.items() if what}
    if not jobs:
        raise InputError("no factor has a parameter that was asked for")
    found: list[Ranks] = []
    with _resumable(out, "finished data sets"), _bar("data sets") as update:
        for n, what in jobs.items():

            def report(done: int, before: int = len(found)) -> None:
                update(before * replicates + done, len(jobs) * replicates)

            ranks = simulation_based_calibration(
                base.factors[n],
                key=jax.random.fold_in(jax.random.key(seed), FACTORS.index(n)),
                replicates=replicates,
                series=series,
                weeks=weeks,
                learn=what,
                likelihood=_one_of("--likelihood", likelihood, ("exact", "paper")),
                sourced=_one_of("--policy", policy, ("idle", "spot20")) == "spot20",
                warmup=warmup,
                draws=draws,
                thin=thin,
                out=out,
                on_replicate=report,
            )
            found.append(ranks)
    document = document_of(found, level)
    if out is not None:
        save_tables(out, {"ranks.csv": list(rank_rows(found))}, {"sbc.json": document})
        if figures:
            _draw(out, {"ranks": document})
    if as_json:
        print(json.dumps(document, allow_nan=False))
    else:
        _print_ranks(found, level)
    for r in found:
        if r.failures(level):
            print(f"stocktake: ranks of {r.factor} are not uniform: {', '.join(r.failures(level))}", file=sys.stderr)
    if any(r.failures(level) for r in found):
        raise typer.Exit(1)


def _print_ranks(found: Sequence[Ranks], level: float) -> None:
    console = _console()
    for r in found:
        title = (
            f"{r.factor}: ranks among {r.draws} draws, {len(r.ranks)} data sets, {int(r.divergences.sum())} divergences"
        )
        table = _table("quantity", "histogram", "p", "", title=title)
        for name, counts, p in zip(r.quantities, r.histogram(), r.p_values(), strict=True):
            mark = "NOT UNIFORM" if name in r.failures(level) else ""
            table.add_row(name, " ".join(f"{c:3d}" for c in counts), _number(float(p), 3), mark)
        console.print(table)


# ---- progress, tables, figures --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextlib.contextmanager
def _resumable(out: Path | None, what: str) -> Iterator[None]:
    """Say at an interruption what is kept."""
    from stocktake_jax.cli import _InterruptedError

    try:
        yield
    except KeyboardInterrupt:
        kept = "nothing is kept; with --out DIR an interrupted study can go on"
        if out is not None:
            kept = f"{what} are in {out}; run the same command again to go on"
        raise _InterruptedError(f"interrupted; {kept}") from None


def _figures_need(out: Path | None, figures: bool) -> None:
    if figures and out is None:
        raise InputError("--figures draws into a folder: give --out DIR")


def _draw(out: Path, documents: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw documents with the function of `plots` that each is named after."""
    from stocktake_jax import plots

    for name, document in documents.items():
        plots.save(getattr(plots, name)(document), out / name)


def _console() -> Any:
    from stocktake_jax.cli import _console

    return _console()


def _table(*columns: str, title: str | None = None) -> Any:
    from stocktake_jax.cli import _table

    return _table(*columns, title=title)


def _number(x: float | None, decimals: int) -> str:
    from stocktake_jax.cli import _number

    return _number(x, decimals)


def _one_of(flag: str, value: str, allowed: Sequence[str]) -> Any:
    if value not in allowed:
        raise InputError(f"{flag} must be one of {', '.join(allowed)}, not {value!r}")
    return value
