"""`stocktake study misspecify`: what believing in a wrong world costs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stocktake_jax.errors import InputError

if TYPE_CHECKING:
    from stocktake_jax.evaluation.studies import Study, Variant
    from stocktake_jax.models import World


def misspecify(
    change: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=FACTOR,..]...", help="Parameters by dotted name, with factors: port.wait_sd=0.5,2."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option("--preset", help="tornado, noise, stress, duration, ignore, likelihood or initial; or a list."),
    ] = None,
    grid: Annotated[bool, typer.Option("--grid", help="Take two NAME=FACTORS arguments as a grid.")] = False,
    values: Annotated[
        bool, typer.Option("--values", help="The numbers are values of the parameter, not factors.")
    ] = False,
    seeds: Annotated[str | None, typer.Option("--seeds", help="Seeds such as 1,5-9; the published fifty.")] = None,
    replications: Annotated[int, typer.Option("--replications", help="Runs per seed and model.")] = 20,
    futures: Annotated[int | None, typer.Option("--futures", help="Futures per decision; 190 + r by default.")] = None,
    true_world: Annotated[Path | None, typer.Option("--true-world", help="TOML file of the true world.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for study.json, study.csv and runs.csv.")] = None,
    devices: Annotated[int | None, typer.Option("--devices", help="Devices that share the work.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the study as JSON, and nothing else.")] = False,
) -> None:
    """The oracle under wrong models, all as one batch: cost on the true world, paired with the true model's."""
    from stocktake_jax.cli import _devices, _seeds, _world
    from stocktake_jax.evaluation.studies import presets, run_study

    chosen = _devices(devices)
    world = _world(true_world)
    variants: list[Variant] = []
    for name in preset.split(",") if preset else []:
        variants += presets(world, name.strip())
    variants += _changes(world, change or [], grid, values)
    if not variants:
        raise InputError("say what is believed wrongly: NAME=FACTOR,.. arguments, or --preset tornado")
    with _progress() as update:
        study = run_study(
            variants,
            true_world=world,
            seeds=_seeds(seeds),
            replications=replications,
            futures=futures,
            devices=chosen,
            progress=update,
        )
    if out is not None:
        try:
            study.save(out)
        except OSError as error:
            raise InputError(f"--out {out} cannot be written: {error.strerror}") from None
    if as_json:
        print(json.dumps(study.document(), allow_nan=False))
    else:
        _print(study)


def _changes(world: World, arguments: list[str], grid: bool, values: bool) -> list[Variant]:
    from stocktake_jax.evaluation.studies import Variant, grid_of, variants_of

    parsed = [_change(a) for a in arguments]
    if grid:
        if len(parsed) != 2 or values:
            raise InputError("--grid takes exactly two NAME=FACTORS arguments, and factors only")
        return grid_of(world, parsed[0], parsed[1])
    if values:
        return [Variant(f"{name} = {v:g}", world.replace({name: v}), parameter=name) for name, vs in parsed for v in vs]
    return [v for name, factors in parsed for v in variants_of(world, name, factors)]


def _change(argument: str) -> tuple[str, list[float]]:
    name, _, numbers = argument.partition("=")
    if not re.fullmatch(r"\w+\.\w+", name) or not numbers:
        raise InputError(f"a change looks like port.congest_persist=0.5,2, not {argument!r}")
    try:
        return name, [float(x) for x in numbers.split(",")]
    except ValueError:
        raise InputError(f"{argument!r}: {numbers!r} is not a list of numbers like 0.5,2") from None


def _progress() -> Any:
    import contextlib

    from rich.console import Console
    from rich.progress import Progress

    @contextlib.contextmanager
    def bar() -> Any:
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("models", total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    return bar()


def _print(study: Study) -> None:
    from stocktake_jax.cli import _console, _number, _table

    table = _table(
        "model believed in", "cost", "more than true", "s.e.", "s.e. over seeds", "worst seed", "decisions changed"
    )
    truth, *others = study.outcomes
    for o in (truth, *sorted(others, key=lambda o: -o.difference)):
        worst = "-" if o is truth else f"{o.worst_seed} ({o.worst:+.1%})"
        numbers = (o.cost, o.difference, o.difference_se, o.difference_spread)
        table.add_row(o.label, *(_number(x, 1) for x in numbers), worst, f"{o.changed:.1%}")
    console = _console()
    console.print(table)
    console.print(
        f"{len(study.seeds)} seeds x {study.replications} runs of {len(study.outcomes)} models, common random numbers. "
        "s.e.: Monte Carlo, seeds fixed; over seeds: their spread too. Dollars in 26 weeks."
    )
