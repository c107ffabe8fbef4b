"""`stocktake study ...`: what a wrong or a learned world costs, and whether filters and posteriors are calibrated.

Plain functions that `cli` mounts. Exit codes as there; 1 is a fit that did not converge, or ranks that are not uniform.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stocktake_jax.cli_shared import (
    ALL,
    Factors,
    Json,
    SeedList,
    TrueFile,
    devices_of,
    factors_of,
    new_console,
    new_table,
    number,
    one_of,
    resumable,
    seeds_of,
    whole,
    without,
    world_of,
)
from stocktake_jax.errors import InputError

if TYPE_CHECKING:
    from stocktake_jax.evaluation.learned import LearnedStudy, LearnedWorld
    from stocktake_jax.evaluation.studies import Study, Variant
    from stocktake_jax.inference.sbc import Ranks
    from stocktake_jax.models import World

Replications = Annotated[int, typer.Option("--replications", help="Runs per seed and model.")]
Futures = Annotated[int | None, typer.Option("--futures", help="Futures per decision; 190 + r in run r by default.")]
Devices = Annotated[
    int | None, typer.Option("--devices", help="Devices that share the work; all (on CPU: all cores) by default.")
]
Figures = Annotated[bool, typer.Option("--figures", help="Draw figures (PNG and SVG) into the folder of --out.")]


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
    from stocktake_jax.evaluation.studies import presets, run_study

    _figures_need(out, figures)
    chosen = devices_of(devices)
    world = world_of(true_world)
    variants: list[Variant] = []
    for name in preset.split(",") if preset else []:
        variants += presets(world, name.strip())
    variants += _changes(world, change or [], grid, values)
    if not variants:
        raise InputError("say what is believed wrongly: NAME=FACTOR,.. arguments, or --preset tornado")
    with resumable(out, "finished models"), _bar("models") as update:
        study = run_study(
            variants,
            true_world=world,
            seeds=seeds_of(seeds),
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
            from stocktake_jax import plots

            for name, axes in plots.misspecified(document).items():
                plots.save(axes, out / name)
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
    table = new_table(
        "model believed in", "cost", "s.e.", "more than true", "s.e.", "95 % over seeds", "p", "worst seed", "changed"
    )
    truth, *others = study.outcomes
    for o in (truth, *sorted(others, key=lambda o: -o.difference)):
        paired = ("-",) * 5 if o is truth else (
            number(o.difference, 1), number(o.difference_se, 1), f"{number(o.low, 0)} to {number(o.high, 0)}",
            number(o.p_value, 3), f"{o.worst_seed} ({o.worst:+.1%})",
        )  # fmt: skip
        table.add_row(o.label, number(o.cost, 1), number(o.cost_se, 1), *paired, f"{o.changed:.1%}")
    console = new_console()
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
    method: Annotated[str | None, typer.Option("--method", help="map (default), nuts, svi or em.")] = None,
    learn: Annotated[str | None, typer.Option("--learn", help="transitions, emissions or all (default).")] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="What was bought on the tapes: idle (default) or spot20.")
    ] = None,
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
    from stocktake_jax.evaluation.learned import LearnedWorld, learn_worlds, run_learned
    from stocktake_jax.inference.learning import Settings

    _figures_need(out, figures)
    if fits:
        without("--fits", tapes=tapes, method=method, learn=learn, policy=policy, world=world)
    counts = [] if fits else _counts("200" if tapes is None else tapes)
    settings = Settings(
        method=one_of("--method", method or "map", "map", "nuts", "svi", "em"),
        learn=one_of("--learn", learn or "all", "transitions", "emissions", "all"),
    )
    settings.check()
    buying = one_of("--policy", policy or "idle", "idle", "spot20")
    chosen, truth = devices_of(devices), world_of(true_world)
    with resumable(out, "finished fits and models"):
        if fits:
            worlds = [LearnedWorld.load(folder) for folder in fits]
        else:
            with _bar("fits") as update:
                worlds = learn_worlds(
                    counts,
                    settings,
                    buying=buying,
                    base=world_of(world),
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
                seeds=seeds_of(seeds),
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
    table = new_table(
        "learned", "cost", "more than true", "95 % over seeds", "p", "worst seed", "error of moves", "of readings",
        "log score",
    )  # fmt: skip
    for row in result.rows():
        error = row["parameter_error"]
        table.add_row(
            row["label"],
            number(row["cost"], 1),
            f"{number(row['difference'], 1)} ± {number(row['difference_se'], 1)}",
            f"{number(row['low'], 0)} to {number(row['high'], 0)}",
            number(row["p_value"], 3),
            f"{row['worst_seed']} ({row['worst']:+.1%} ± {row['worst_se']:.1%})",
            number(error["transitions"], 4),
            number(error["emissions"], 4),
            number(sum(row["fresh_log_score"].values()), 4),
        )
    console = new_console()
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
        typer.Option("--world", help="TOML file: a world that filters believe in, beside the true one. Repeatable."),
    ] = None,
    true_world: TrueFile = None,
    fits: Annotated[
        list[Path] | None,
        typer.Option("--fits", help="A folder that `stocktake fit --out` wrote: plug-in and averaged. Repeatable."),
    ] = None,
    draws: Annotated[
        int, typer.Option("--draws", help="Posterior draws of an averaged filter; 0: the plug-in filter alone.")
    ] = 32,
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

    from stocktake_jax.evaluation.studies import save_tables
    from stocktake_jax.inference.calibration import calibrate, document_of

    _figures_need(out, figures)
    whole("--seed", seed, 0, 2**32 - 1)
    truth = world_of(true_world)
    models = _believed(truth, world or [], fits or [], draws)
    kinds = tuple(one_of("--likelihood", k.strip(), "paper", "exact") for k in likelihood.split(","))
    with _bar("tapes") as update:
        found = calibrate(
            models,
            tapes,
            key=jax.random.key(seed),
            true_world=truth,
            likelihoods=kinds,
            initial=one_of("--initial", initial, "uniform", "baseline"),
            sourced=one_of("--policy", policy, "idle", "spot20") == "spot20",
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


def _believed(
    truth: World, files: Sequence[Path], fits: Sequence[Path], draws: int
) -> dict[str, World | Sequence[World]]:
    """The models whose filters are compared, by their names in the tables; the true one is the first."""
    import jax

    from stocktake_jax.evaluation.learned import LearnedWorld
    from stocktake_jax.inference.learning import posterior_worlds
    from stocktake_jax.policies.posterior import worlds_of

    if draws < 0:
        raise InputError(f"--draws must be at least 0, not {draws}")
    found: list[tuple[str, World | Sequence[World]]] = [("true", truth)]
    found += [(f"{p.parent.name}/{p.stem}" if p.stem == "world" else p.stem, world_of(p)) for p in files]
    for learned in map(LearnedWorld.load, fits):
        found.append((f"{learned.label}, plug-in", learned.world))
        if draws and learned.draws:
            drawn = posterior_worlds(learned.world, learned.draws, draws, key=jax.random.key(0))
            found.append((f"{learned.label}, averaged", worlds_of(drawn)))
    models = dict(found)
    if len(models) < len(found):
        raise InputError("two models have the same name; rename a file or a folder (`true` is the true world)")
    return models


def _print_calibration(document: Mapping[str, Any]) -> None:
    title = f"Filters on {document['tapes']} fresh tapes: log score in nats a week, Brier score, calibration error"
    columns = ("model", "likelihood", "factor", "log score", "s.e.", "Brier", "s.e.", "ECE", "impossible")
    table = new_table(*columns, title=title)
    for row in document["scores"]:
        scores = [number(row[k], 5) for k in ("log_score", "log_score_se", "brier", "brier_se", "ece")]
        table.add_row(row["model"], row["likelihood"], row["factor"], *scores, str(row["impossible"]))
    new_console().print(table)


# ---- simulation-based calibration -----------------------------------------------------------------------------------


def sbc(
    factors: Factors = ALL,
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

    from stocktake_jax.evaluation.studies import save_tables
    from stocktake_jax.inference.priors import of_factor, require_known
    from stocktake_jax.inference.sbc import document_of, rank_rows, simulation_based_calibration
    from stocktake_jax.models import FACTORS

    _figures_need(out, figures)
    whole("--seed", seed, 0, 2**32 - 1)
    if not 0 < level < 1:
        raise InputError(f"--level must lie between 0 and 1, not {level}")
    base = world_of(world)
    wanted: Any = learn if learn in ("transitions", "emissions", "all") else tuple(n.strip() for n in learn.split(","))
    require_known(base.factors, wanted)
    jobs = {n: of_factor(base.factors[n], wanted) for n in factors_of(factors)}
    jobs = {n: what for n, what in jobs.items() if what}
    if not jobs:
        raise InputError("no factor has a parameter that was asked for")
    found: list[Ranks] = []
    with resumable(out, "finished data sets"), _bar("data sets") as update:
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
                likelihood=one_of("--likelihood", likelihood, "exact", "paper"),
                sourced=one_of("--policy", policy, "idle", "spot20") == "spot20",
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
            _draw(out, {"rank_histograms": document})
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
    console = new_console()
    for r in found:
        title = (
            f"{r.factor}: ranks among {r.draws} draws, {len(r.ranks)} data sets, {int(r.divergences.sum())} divergences"
        )
        table = new_table("quantity", "histogram", "p", "", title=title)
        for name, counts, p in zip(r.quantities, r.histogram(), r.p_values(), strict=True):
            mark = "NOT UNIFORM" if name in r.failures(level) else ""
            table.add_row(name, " ".join(f"{c:3d}" for c in counts), number(float(p), 3), mark)
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


def _figures_need(out: Path | None, figures: bool) -> None:
    """Refuse what could not be drawn, before anything is computed."""
    if not figures:
        return
    if out is None:
        raise InputError("--figures draws into a folder: give --out DIR")
    from stocktake_jax.plots.style import in_style

    in_style()


def _draw(out: Path, documents: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw documents with the function of `plots` that each is named after."""
    from stocktake_jax import plots

    for name, document in documents.items():
        plots.save(getattr(plots, name)(document), out / name)
