"""`stocktake fit` and `study coverage`: learn a world from readings, and check the intervals.

Plain functions that `cli` mounts. Exit codes as there; 1 is a fit that did not converge.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from stocktake_jax.cli_shared import (
    ALL,
    Factors,
    Json,
    TrueFile,
    factors_of,
    new_console,
    new_table,
    number,
    one_of,
    resumable,
    without,
    world_of,
)
from stocktake_jax.errors import InputError

if TYPE_CHECKING:
    from stocktake_jax.inference.coverage import Coverage
    from stocktake_jax.inference.learning import WorldFit
    from stocktake_jax.inference.series import Series
    from stocktake_jax.models import World

LearnWhat = Annotated[
    str,
    typer.Option("--learn", help="transitions, emissions or all; or parameters, such as port.wait_sd,quality.repair."),
]
Seed = Annotated[int, typer.Option("--seed", help="Of the randomness of the fit; not of the tapes.")]


def fit(
    factors: Factors = ALL,
    tapes: Annotated[
        int | None, typer.Option("--tapes", help="Learn from so many published tapes, seeds 5000 and on (200).")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Learn from a .csv or .parquet of weekly readings instead.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column", help="CHANNEL=COLUMN, such as port.berth_wait=wait; also week= and series=. Repeatable."
        ),
    ] = None,
    column_map: Annotated[Path | None, typer.Option("--map", help="TOML file with such a column map.")] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="What was bought on the tapes: idle (default) or spot20.")
    ] = None,
    first_seed: Annotated[
        int | None, typer.Option("--first-seed", help="Seed of the first training tape (5000).")
    ] = None,
    method: Annotated[str, typer.Option("--method", help="nuts, svi, map or em.")] = "map",
    learn: LearnWhat = ALL,
    likelihood: Annotated[str, typer.Option("--likelihood", help="Law of the readings: exact or paper.")] = "exact",
    initial: Annotated[
        str | None,
        typer.Option("--initial", help="How series start: baseline (default for tapes) or uniform (for --from)."),
    ] = None,
    prior: Annotated[
        list[str] | None,
        typer.Option("--prior", help="NAME=LAW in place of the default prior: port.wait_sd=Gamma(4, 2). Repeatable."),
    ] = None,
    world: Annotated[
        Path | None, typer.Option("--world", help="TOML file: where the search starts, and what is not learned.")
    ] = None,
    true_world: TrueFile = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for world.toml, draws and tables; a broken-off fit goes on.")
    ] = None,
    seed: Seed = 0,
    restarts: Annotated[int, typer.Option("--restarts", help="Searches for the mode.")] = 3,
    chains: Annotated[int, typer.Option("--chains", help="NUTS chains.")] = 4,
    warmup: Annotated[int, typer.Option("--warmup", help="NUTS warm-up per chain.")] = 1000,
    samples: Annotated[int, typer.Option("--samples", help="NUTS samples per chain.")] = 1000,
    steps: Annotated[int, typer.Option("--steps", help="SVI steps.")] = 2000,
    iterations: Annotated[int, typer.Option("--iterations", help="EM steps at most.")] = 2000,
    workers: Annotated[int, typer.Option("--workers", help="Factors fitted at the same time.")] = 2,
    as_json: Json = False,
) -> None:
    """Learn a world's parameters from observation series alone."""
    from stocktake_jax.inference.fit import Method
    from stocktake_jax.inference.learning import Settings, fit_world, has_arviz
    from stocktake_jax.inference.series import Buying, training_series

    base, truth = world_of(world), world_of(true_world)
    kind = one_of("--likelihood", likelihood, "exact", "paper")
    if source is not None:
        without("--from", tapes=tapes, policy=policy, first_seed=first_seed)
    if source is None and (column or column_map is not None):
        raise InputError("a column map goes with --from FILE")
    settings = Settings(
        method=one_of("--method", method, *get_args(Method)),
        learn=_learn(learn),
        likelihood=kind,
        initial=one_of("--initial", initial or ("baseline" if source is None else "uniform"), "baseline", "uniform"),
        seed=seed,
        restarts=restarts,
        chains=chains,
        warmup=warmup,
        samples=samples,
        steps=steps,
        iterations=iterations,
    )
    settings.check()
    laws = _priors(prior or [], base)
    if source is None:
        buying = one_of("--policy", policy or "idle", *get_args(Buying))
        first = 5000 if first_seed is None else first_seed
        series = training_series(truth, 200 if tapes is None else tapes, buying, first)
    else:
        series = _from_file(source, column or [], column_map, base, likelihood=kind)
    known = truth if source is None else (None if true_world is None else truth)
    with resumable(out, "finished factors"), _steps(factors_of(factors)) as tell:
        result = fit_world(
            base,
            series,
            settings,
            factors=factors_of(factors),
            priors=laws,
            out=out,
            workers=workers,
            tell=tell,
        )
    files = () if out is None else result.save(out, known)
    if files and result.draws() and not has_arviz():
        print("stocktake: no posterior.nc without ArviZ: pip install 'stocktake-jax[fit]'", file=_stderr())
    if as_json:
        from stocktake_jax.inference.learning import no_nan

        print(json.dumps(no_nan(result.summary(known)), allow_nan=False))
    else:
        _print_fit(result, series, known, files)
    if not result.converged:
        for name, reasons in result.problems.items():
            print(f"stocktake: {name} did not converge: {'; '.join(reasons)}", file=_stderr())
        raise typer.Exit(1)


def coverage(
    repeats: Annotated[int, typer.Option("--repeats", help="How many times tapes are drawn and fitted.")] = 50,
    tapes: Annotated[int, typer.Option("--tapes", help="Fresh published tapes per fit, seeds 100000 and on.")] = 200,
    factors: Factors = ALL,
    learn: LearnWhat = "transitions",
    policy: Annotated[str, typer.Option("--policy", help="What was bought on the tapes: idle or spot20.")] = "idle",
    true_world: TrueFile = None,
    restarts: Annotated[int, typer.Option("--restarts", help="Searches for each mode.")] = 2,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for tables and a figure; a broken-off study goes on.")
    ] = None,
    as_json: Json = False,
) -> None:
    """How often 90 % intervals of the MAP fit hold the truth, over many fits of fresh tapes."""
    from stocktake_jax.inference.coverage import Plan
    from stocktake_jax.inference.coverage import coverage as run_coverage
    from stocktake_jax.inference.learning import no_nan
    from stocktake_jax.inference.series import Buying

    buying = one_of("--policy", policy, *get_args(Buying))
    plan = Plan(repeats, tapes, _learn(learn), buying, restarts, seed=seed)
    with resumable(out, "finished fits"), _bar("fits", repeats) as update:
        found = run_coverage(world_of(true_world), plan, factors=factors_of(factors), out=out, on_repeat=update)
    if out is not None:
        found.save(out)
        _save_figure(found, out / "coverage")
    if as_json:
        print(json.dumps(no_nan(found.document()), allow_nan=False))
    else:
        _print_coverage(found)


# ---- arguments ------------------------------------------------------------------------------------------------------


def _learn(text: str) -> Any:
    groups = ("transitions", "emissions", "all")
    if text in groups:
        return text
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if "." not in name:
            raise InputError(f"--learn must be {', '.join(groups)}, or dotted names of parameters, not {name!r}")
    return names


def _priors(given: Sequence[str], base: World) -> dict[str, Any]:
    from stocktake_jax.inference.priors import full_name, read_law
    from stocktake_jax.models import FACTORS

    out: dict[str, Any] = {}
    for pair in given:
        name, equals, law = pair.partition("=")
        factor = name.strip().partition(".")[0]
        if not equals or factor not in FACTORS:
            raise InputError(f"--prior must look like port.congest_persist=Beta(8, 2), not {pair!r}")
        out[full_name(base.factors[factor], name.strip())] = read_law(law)
    return out


def _from_file(
    source: Path, columns: Sequence[str], column_map: Path | None, base: World, *, likelihood: Any
) -> Series:
    from stocktake_jax.inference.series import read_column_map, read_series

    mapped = {} if column_map is None else read_column_map(column_map)
    for pair in columns:
        key, equals, name = pair.partition("=")
        if not equals or not key or not name:
            raise InputError(f"--column must look like port.berth_wait=name, not {pair!r}")
        mapped[key.strip()] = name.strip()
    return read_series(source, mapped, base, likelihood)


# ---- progress -------------------------------------------------------------------------------------------------------


def _stderr() -> Any:
    import sys

    return sys.stderr


@contextlib.contextmanager
def _progress() -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress


@contextlib.contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    with _progress() as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextlib.contextmanager
def _steps(factors: Sequence[str]) -> Iterator[Callable[[str, str], None]]:
    with _progress() as progress:
        task = progress.add_task("fitting", total=len(factors))
        busy: list[str] = []

        def tell(factor: str, what: str) -> None:
            if what == "starts":
                busy.append(factor)
            else:
                busy[:] = [n for n in busy if n != factor]
                progress.advance(task)
            progress.update(task, description=f"fitting {', '.join(busy)}")

        yield tell


# ---- tables and files -----------------------------------------------------------------------------------------------


def _print_fit(result: WorldFit, series: Series, truth: World | None, files: Sequence[Path]) -> None:
    from stocktake_jax.inference.fit import PER_NUMBER

    console = new_console()
    method = result.settings.method
    title = f"Learned from {series.count} series ({result.source}) by {method}; intervals hold 90 % of the posterior"
    recovery = ("truth", "z") if truth is not None else ()
    quality = ("R-hat", "ESS") if method == "nuts" else ()
    table = new_table("parameter", "estimate", "low", "high", *recovery, *quality, title=title)
    for row in result.rows(truth):
        cells = [number(row[k], 4) for k in ("estimate", "low", "high")]
        if truth is not None:
            cells += [number(row["truth"], 4), number(row["z"], 2)]
        if quality:
            cells += [number(row["r_hat"], 3), number(row["ess"], 0)]
        table.add_row(row["name"], *cells)
    console.print(table)
    if truth is not None and method != "em":
        covered = [row["covered"] for row in result.rows(truth)]
        console.print(f"{sum(covered)} of {len(covered)} intervals hold the truth.")
    for n, f in result.fits.items():
        known = {k: v for k, v in f.diagnostics.items() if k not in PER_NUMBER}
        listed = ", ".join(f"{k.replace('_', ' ')} {v:g}" for k, v in known.items())
        console.print(
            f"{n}: {'converged' if f.converged else 'NOT CONVERGED'}; log evidence {f.log_evidence:.2f}; {listed}"
        )
    weak = [row["name"] for row in result.rows() if row["contraction"] < 0.75]
    if weak:
        console.print(f"Hardly informed by these readings (standard error over half the prior's): {', '.join(weak)}")
    reasons: dict[str, list[str]] = {}
    for name, why in result.fixed.items():
        reasons.setdefault(why, []).append(name)
    for why, names in reasons.items():
        console.print(f"Kept at the base world's value ({why}): {', '.join(names)}")
    for note in result.notes:
        console.print(f"Note: {note}")
    if files:
        console.print(f"Written: {', '.join(str(f) for f in files)}")


def _print_coverage(found: Coverage) -> None:
    title = f"{len(found.estimate)} fits of {found.plan.tapes} series each; coverage of the 90 % intervals"
    table = new_table("parameter", "truth", "mean estimate", "mean s.e.", "coverage", "", title=title)
    for row in found.rows():
        cells = [number(row[k], 4) for k in ("truth", "mean_estimate", "mean_standard_error")]
        mark = "" if row["identifiable"] else "hardly identified"
        table.add_row(row["name"], *cells, number(row["coverage"], 2), mark)
    console, pooled = new_console(), found.pooled()
    console.print(table)
    if pooled["parameters"]:
        console.print(
            f"{pooled['parameters']} identifiable transition parameters together: {pooled['coverage']:.3f}; "
            f"least {pooled['least']:.2f}, of {pooled['least_name']}."
        )


def _save_figure(found: Coverage, path: Path) -> None:
    """Save the figure as PNG and SVG, or say what is missing: tables are of use without it."""
    from stocktake_jax import plots

    try:
        plots.save(plots.coverage(found), path)
    except InputError as error:
        print(f"stocktake: no figure: {error}", file=_stderr())
