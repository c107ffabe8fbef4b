"""The command line: thin commands over the library, `--json` on stdout, tables for people, progress on stderr.

Exit codes: 0 done; 1 a check found differences (or whoever read the output closed the pipe); 2 something that was given
cannot be used; 130 interrupted.
Heavy imports stand inside the commands, so that help is quick.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, get_args

import typer

from stocktake_jax import __version__
from stocktake_jax.cli_agents import mount
from stocktake_jax.cli_fit import coverage, fit
from stocktake_jax.cli_plot import mount as mount_plot
from stocktake_jax.cli_report import report
from stocktake_jax.cli_shared import (
    Interrupted,
    Json,
    SeedList,
    TrueFile,
    configure,
    devices_of,
    make_cpu_devices,
    new_console,
    new_table,
    number,
    one_of,
    resumable,
    seeds_of,
    whole,
    world_of,
)
from stocktake_jax.cli_study import mount as mount_study
from stocktake_jax.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from stocktake_jax.evaluation.benchmark import BenchResult
    from stocktake_jax.evaluation.benchmark import Progress as Reached
    from stocktake_jax.evaluation.skill import SkillTable
    from stocktake_jax.models import World

T = TypeVar("T")

app = typer.Typer(
    name="stocktake",
    add_completion=False,
    rich_markup_mode=None,
    help="The STOCKTAKE supply-chain benchmark: world, exact filters, fair oracle, skill.",
)
world_app = typer.Typer(help="Look at, or check, a world's parameters.", rich_markup_mode=None)
app.add_typer(world_app, name="world")
study_app = typer.Typer(
    help="What a wrong, or a learned, model of the world costs; calibration.", rich_markup_mode=None
)
app.add_typer(study_app, name="study")
mount_study(study_app)
study_app.command("coverage")(coverage)
app.command("fit")(fit)
mount(app)
mount_plot(app)
app.command("report")(report)


@study_app.callback()
def _study() -> None:
    """A group, whatever the number of its commands."""


SeedArguments = Annotated[list[str], typer.Argument(metavar="SEED...", help="Seeds or ranges such as 5-9.")]
ModelFile = Annotated[Path | None, typer.Option("--world", help="TOML file: the world that the model believes in.")]
RuleSet = Annotated[str, typer.Option("--rules", help="Rules of the books: paper or strict.")]
LikelihoodKind = Annotated[str, typer.Option("--likelihood", help="How readings are taken: paper or exact.")]
Start = Annotated[str, typer.Option("--initial", help="Where the filters start: uniform or baseline.")]
Check = Annotated[bool, typer.Option("--check", help="Compare with what the file records; exit 1 if anything differs.")]
CompileCache = Annotated[
    Path | None,
    typer.Option(
        "--compile-cache",
        envvar="STOCKTAKE_COMPILE_CACHE",
        help="Keep compiled programs in this folder, for later runs. Off by default.",
    ),
]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; never returns."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_run(given or ["--help"]))


def _run(arguments: list[str]) -> int:
    try:
        code = app(arguments, prog_name="stocktake", standalone_mode=False)
        # Also what is still buffered must meet a closed pipe in here, not when the interpreter shuts down.
        sys.stdout.flush()
        if code == 130:
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except InputError as error:
        return _complain(str(error), 2)
    except Interrupted as error:
        return _complain(str(error), 130)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except BrokenPipeError:
        # Whoever read our output has enough. Nothing more may be written, not even by the interpreter at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        # Older releases of typer raise click's exceptions, newer ones their own; both explain themselves this way.
        explain = getattr(error, "format_message", None)
        if explain is None:
            raise
        return _complain(f"{explain()} (stocktake --help lists what there is)", 2)


def _complain(message: str, code: int) -> int:
    print(f"stocktake: {' '.join(message.split())}", file=sys.stderr)
    return code


def _print_version(asked: bool) -> bool:
    if asked:
        print(f"stocktake {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# ---- bench ----------------------------------------------------------------------------------------------------------


@app.command()
def bench(
    seeds: SeedList = None,
    replications: Annotated[int, typer.Option("--replications", help="Oracle runs per seed.")] = 20,
    futures: Annotated[
        int | None, typer.Option("--futures", help="Futures sampled per decision; 190 + r in run r by default.")
    ] = None,
    likelihood: LikelihoodKind = "paper",
    initial: Start = "uniform",
    world: ModelFile = None,
    true_world: TrueFile = None,
    agents: Annotated[
        Path | None, typer.Option("--agents", help="CSV file (agent,seed,cost) instead of the four published agents.")
    ] = None,
    rules: RuleSet = "paper",
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for all results; an interrupted run goes on from it.")
    ] = None,
    chunk: Annotated[int | None, typer.Option("--chunk", help="Seeds worked on together.")] = None,
    devices: Annotated[
        int | None, typer.Option("--devices", help="Devices that share the work; all (on CPU: all cores) by default.")
    ] = None,
    compile_cache: CompileCache = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="Share the seeds with other processes, on any hosts.")
    ] = False,
    coordinator: Annotated[
        str | None, typer.Option("--coordinator", help="HOST:PORT of process 0; the cluster's own by default.")
    ] = None,
    processes: Annotated[int | None, typer.Option("--processes", help="How many processes share.")] = None,
    process: Annotated[int | None, typer.Option("--process", help="Which of them this is, from 0.")] = None,
    as_json: Json = False,
) -> None:
    """Floor, oracle reference and skill."""
    _keep_compiled(compile_cache)
    if not distributed and (coordinator, processes, process) != (None, None, None):
        raise InputError("--coordinator, --processes and --process go with --distributed")
    share = None
    if distributed:
        from stocktake_jax.evaluation.distributed import join

        make_cpu_devices(devices)
        share = join(coordinator, processes, process)
    chosen = devices_of(devices)
    from stocktake_jax.evaluation.benchmark import BenchOptions, run_benchmark
    from stocktake_jax.evaluation.skill import read_costs

    options = BenchOptions(
        seeds=seeds_of(seeds),
        replications=replications,
        futures=futures,
        likelihood=one_of("--likelihood", likelihood, "paper", "exact"),
        initial=one_of("--initial", initial, "uniform", "baseline"),
        rules=one_of("--rules", rules, "paper", "strict"),
        model=world_of(world),
        true_world=world_of(true_world),
        agents=None if agents is None else read_costs(agents),
    )
    with resumable(out, "finished seeds"), _bar() as update:
        result = run_benchmark(options, out, devices=chosen, chunk=chunk, progress=update, share=share)
    if share is not None and share.index > 0:
        return  # process 0 speaks for all
    if as_json:
        print(json.dumps(result.to_json(), allow_nan=False))
    else:
        _print_bench(result, out)


@contextlib.contextmanager
def _bar() -> Iterator[Any]:
    """A progress bar on stderr, if somebody is looking."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[seeds]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("compiling", total=1.0, seeds="")

        def update(p: Reached) -> None:
            from stocktake_jax.models import HORIZON

            bar.update(
                task,
                completed=p.finished + p.now * p.week / HORIZON,
                total=p.total,
                description="compiling" if p.finished + p.week == 0 else f"week {p.week:2}",
                seeds=f"{p.finished}/{p.total} seeds",
            )

        yield update


def _print_bench(result: BenchResult, out: Path | None) -> None:
    console = new_console()
    options = result.options
    table = new_table(
        "seed", "profile", "floor", "oracle", "s.e.", "min", "max", "runs", title="References ($ in 26 weeks)"
    )
    for row in result.to_json()["seeds"]:
        o = row["oracle"]
        amounts = (row["floor"], o["mean"], o["se"], o["min"], o["max"])
        table.add_row(str(row["seed"]), row["profile"], *(number(x, 1) for x in amounts), str(o["n"]))
    console.print(table)
    references = result.references
    table = new_table("profile", "seeds", "floor", "oracle", "headroom", "without headroom", title="Means by profile")
    for group in ("isolated", "persistent", "compound", "all"):
        of = references.in_group(group)
        floor, oracle = references.floor[of], references.oracle[of]
        means = [number(x.mean(), 1) if of.any() else "-" for x in (floor, oracle, floor - oracle)]
        table.add_row(group, str(int(of.sum())), *means, str(int((~references.scoreable & of).sum())))
    console.print(table)
    theirs = options.agents is not None
    _print_skill(console, result.skill, "Skill: mean (median) [95 %], against these references", theirs)
    if result.published.references.seeds:
        title = "Skill: mean (median) [95 %], against the published references"
        _print_skill(console, result.published, title, theirs)
    agreement = result.agreement()
    if agreement is not None:
        console.print(
            f"Oracle less published oracle, {len(agreement.rows)} seeds: {agreement.mean:+.1f} ± {agreement.se:.1f} "
            f"(s.e.); beyond 2 s.e.: {agreement.beyond_2} seeds, beyond 3 s.e.: {agreement.beyond_3}."
        )
    if options.agents is None and (options.rules != "paper" or not _is_paper(options.true_world)):
        console.print(
            "Note: the published agents played the published world by the paper's rules, not what was run here."
        )
    run = result.run
    device = run["device"]
    console.print(
        f"{len(result.seeds)} seeds × {options.replications} runs in {run['seconds']:.1f} s "
        f"({run['seeds_resumed']} seeds were there already) on {device['count']} × {device['kind']}."
    )
    if out is not None:
        console.print(f"Everything is in {out}; its manifest.json says what is what.")


def _print_skill(console: Console, skill: SkillTable, title: str, theirs: bool) -> None:
    """A skill table, and which seeds it lacks; `theirs` says that the agents' file is the user's own."""
    groups = ("isolated", "persistent", "compound", "all")
    table = new_table("agent", *groups, "below floor", "beats floor", title=title)
    for agent in skill.agents:
        cells = []
        for group in groups:
            e = agent.groups[group]
            interval = f"[{number(e.percentile.low, 2)}, {number(e.percentile.high, 2)}]"
            cells.append(f"{number(e.mean, 2)} ({number(e.median, 2)})\n{interval}" if e.n else "-")
        n, seeds = agent.groups["all"].n, len(skill.references.seeds)
        table.add_row(
            agent.agent, *cells, f"{agent.below_floor} of {n}", f"{agent.beats_floor} of {seeds - agent.missing}"
        )
    console.print(table)
    if skill.excluded:
        console.print(f"Not scoreable (the floor is no dearer than the oracle): {', '.join(map(str, skill.excluded))}.")
    lacking: dict[str, list[str]] = {}
    for agent in skill.agents:
        counts = {"without a run": agent.missing, "with an unfinished run": agent.incomplete}
        if theirs:
            counts["of theirs have no reference here"] = agent.unreferenced
        said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        if said:
            lacking.setdefault(said, []).append(agent.agent)
    for said, agents in lacking.items():
        console.print(f"{', '.join(agents)}: seeds {said}.")


# ---- tapes and floors -----------------------------------------------------------------------------------------------


@app.command()
def tape(seeds: SeedArguments, true_world: TrueFile = None, as_json: Json = False) -> None:
    """Every hidden and emitted value of a seed."""
    from stocktake_jax.models import Tape

    world = world_of(true_world)
    for seed in _seed_arguments(seeds):
        row = Tape.published(seed, world).to_json(seed, world)
        if as_json:
            print(json.dumps(row))
        else:
            _print_tape(row)


def _print_tape(row: dict[str, Any]) -> None:
    table = new_table(
        "week", *row["weeks"][0], title=f"Tape of seed {row['seed']}: hidden regime (age), what is emitted"
    )
    for at, week in enumerate(row["weeks"]):
        cells = []
        for factor in week.values():
            shown = [_cell(v) for k, v in factor.items() if k not in ("regime", "age") and v is not None]
            cells.append(f"{factor['regime']} ({factor['age']}) {' '.join(shown)}")
        table.add_row(str(at), *cells)
    new_console().print(table)


def _cell(value: Any) -> str:
    return {True: "cape", False: ""}[value] if isinstance(value, bool) else str(value)


@app.command()
def floor(seeds: SeedList = None, true_world: TrueFile = None, rules: RuleSet = "paper", as_json: Json = False) -> None:
    """The floor, week by week."""
    from stocktake_jax.evaluation.exchange import floor_rows

    table = new_table("seed", "total", "mean shelf", "lost sales ($)", "shipping ($)", title="The floor, 26 weeks")
    for row in floor_rows(seeds_of(seeds), world_of(true_world), one_of("--rules", rules, "paper", "strict")):
        if as_json:
            print(json.dumps(row))
            continue
        weeks = row["weeks"][1:]
        lost, shipping = (sum(w["breakdown"][item] for w in weeks) for item in ("stockout", "shipping"))
        shelf = sum(w["inventory"] for w in weeks) / len(weeks)
        table.add_row(str(row["seed"]), *(number(x, 1) for x in (row["total"], shelf, lost, shipping)))
    if not as_json:
        new_console().print(table)


# ---- files of recorded rows -----------------------------------------------------------------------------------------


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="Recorded episodes, JSON lines, plain or gzip.")],
    rules: RuleSet = "paper",
    check: Check = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines; what is done anyway without --check.")
    ] = False,
) -> None:
    """Play recorded episodes again.

    Prints what comes of them in the file's shape or, with --check, how that differs from what the file records.
    """
    from stocktake_jax.desk import replay as play_again
    from stocktake_jax.evaluation.exchange import read_rows

    chosen = one_of("--rules", rules, "paper", "strict")
    _checked((_naming(where, play_again, row, chosen) for where, row in read_rows(file)), check, as_json)


def _naming(where: str, play_again: Any, row: Any, rules: Any) -> tuple[dict[str, Any], Sequence[str]]:
    try:
        played = play_again(row, rules)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return played.record, played.differences


@app.command()
def surrogate(
    file: Annotated[Path, typer.Argument(help="Surrogate cases, JSON lines, plain or gzip.")],
    world: ModelFile = None,
    check: Check = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines; what is done anyway without --check.")
    ] = False,
) -> None:
    """Cost decisions on given futures.

    Prints the costs in the file's shape or, with --check, how they differ from those that the file records.
    """
    from stocktake_jax.evaluation.exchange import read_rows, surrogate_row

    model = world_of(world)
    _checked((surrogate_row(row, where, model) for where, row in read_rows(file)), check, as_json)


def _checked(rows: Iterable[tuple[dict[str, Any], Sequence[str]]], check: bool, as_json: bool) -> None:
    """Print rows as they were computed, or only in what they differ and how often."""
    if check and as_json:
        raise InputError("give --check or --json, not both: a check prints its differences as lines of text")
    count = 0
    for row, differences in rows:
        count += len(differences)
        for line in differences if check else [json.dumps(row)]:
            print(line)
    if check:
        print(f"{count} differences")
        if count:
            raise typer.Exit(1)


# ---- filters --------------------------------------------------------------------------------------------------------


@app.command("filter")
def filter_command(
    seeds: SeedList = None,
    policy: Annotated[str, typer.Option("--policy", help="What is ordered meanwhile: idle or spot20.")] = "idle",
    likelihood: LikelihoodKind = "paper",
    initial: Start = "uniform",
    world: ModelFile = None,
    true_world: TrueFile = None,
    as_json: Json = False,
) -> None:
    """The exact filters along a seed's tape."""
    from stocktake_jax.evaluation.exchange import filter_rows

    rows = filter_rows(
        seeds_of(seeds),
        one_of("--policy", policy, "idle", "spot20"),
        model=world_of(world),
        true_world=world_of(true_world),
        likelihood=one_of("--likelihood", likelihood, "paper", "exact"),
        initial=one_of("--initial", initial, "uniform", "baseline"),
    )
    for row in rows:
        if as_json:
            print(json.dumps(row))
            continue
        title = f"Seed {row['seed']}, {policy}: the most probable regime and its probability"
        table = new_table("week", *row["weeks"][0], title=title)
        for at, week in enumerate(row["weeks"]):
            best = [max(f["regime"].items(), key=lambda item: item[1]) for f in week.values()]
            table.add_row(str(at), *(f"{regime} {p:.3f}" for regime, p in best))
        new_console().print(table)


@app.command()
def likelihoods(
    tapes: Annotated[int, typer.Option("--tapes", help="Fresh tapes that are filtered.")] = 2000,
    key: Annotated[int, typer.Option("--key", help="What the tapes are drawn from: a whole number.")] = 0,
    sourced: Annotated[
        bool, typer.Option("--sourced", help="Spot is sourced in every week that it lives, so that its fill is read.")
    ] = False,
    world: ModelFile = None,
    compile_cache: CompileCache = None,
    as_json: Json = False,
) -> None:
    """Compare exact with paper filters.

    Prints the mean log posterior of the true regime on fresh tapes, the same for both, and the paired difference.
    """
    whole("--tapes", tapes, 2, 10_000_000)
    whole("--key", key, 0, 2**32 - 1)
    _keep_compiled(compile_cache)
    import jax

    from stocktake_jax.inference import compare_likelihoods
    from stocktake_jax.models import Initial, Tape

    model = world_of(world)
    drawn = Tape.sample_batch(model, tapes, key=jax.random.key(key))
    found = {start: compare_likelihoods(model, drawn, initial=start, sourced=sourced) for start in get_args(Initial)}
    if as_json:
        starts = {start: {name: c._asdict() for name, c in factors.items()} for start, factors in found.items()}
        print(json.dumps({"tapes": tapes, "key": key, "sourced": sourced, "initial": starts}, allow_nan=False))
        return
    for start, factors in found.items():
        title = f"Log posterior of the true regime, nats a week; {tapes} tapes, filters start {start}"
        table = new_table("factor", "paper", "exact", "exact - paper", "s.e.", title=title)
        for name, c in factors.items():
            cells = (f"{c.paper:.5f}", f"{c.exact:.5f}", f"{c.difference:+.7f}", f"{c.standard_error:.7f}")
            table.add_row(name, *cells)
        new_console().print(table)


# ---- worlds and seeds -----------------------------------------------------------------------------------------------


@world_app.command("show")
def world_show(
    file: Annotated[Path | None, typer.Argument(help="TOML file; the published world by default.")] = None,
    as_json: Json = False,
) -> None:
    """Print a world as a commented TOML file, ready to be changed and passed to --world."""
    toml = world_of(file).to_toml()
    if as_json:
        import tomllib

        print(json.dumps(tomllib.loads(toml)))
    else:
        print(toml, end="")


@world_app.command("check")
def world_check(file: Annotated[Path, typer.Argument(help="TOML file.")], as_json: Json = False) -> None:
    """Read a world, and list in what it differs from the published one."""
    from stocktake_jax.evaluation.benchmark import parameter_values

    mine, published = (parameter_values(world_of(f).to_toml()) for f in (file, None))
    changed = {
        name: {"value": value, "published": old}
        for (name, value), (_, old) in zip(mine, published, strict=True)
        if value != old
    }
    if as_json:
        print(json.dumps({"file": str(file), "changed": changed}))
        return
    if changed:
        table = new_table("parameter", "value", "published")
        for name, pair in changed.items():
            table.add_row(name, str(pair["value"]), str(pair["published"]))
        new_console().print(table)
    print(f"{file}: fine, with {len(changed)} of {len(mine)} parameters changed")


@app.command()
def classify(seeds: SeedArguments, true_world: TrueFile = None, as_json: Json = False) -> None:
    """The stress profile of a seed's tape."""
    import dataclasses

    from stocktake_jax.evaluation.catalog import classify_seed

    world = world_of(true_world)
    table = new_table("seed", "profile", "factors at once", "longest port block", "demand stress weeks")
    for seed in _seed_arguments(seeds):
        profile = {"seed": seed} | dataclasses.asdict(classify_seed(seed, world))
        if as_json:
            print(json.dumps(profile))
        else:
            table.add_row(*(str(value) for value in profile.values()))
    if not as_json:
        new_console().print(table)


# ---- what commands share --------------------------------------------------------------------------------------------


def _seed_arguments(arguments: Sequence[str]) -> tuple[int, ...]:
    from stocktake_jax.evaluation.catalog import parse_seeds

    return parse_seeds(",".join(arguments))


def _is_paper(world: World) -> bool:
    return world.to_toml() == world_of(None).to_toml()


def _keep_compiled(folder: Path | None) -> None:
    """Have JAX keep compiled programs in a folder."""
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--compile-cache {folder} cannot be made ({error.strerror})") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"--compile-cache {folder} cannot be written to")
    configure("jax_compilation_cache_dir", str(folder))
    configure("jax_persistent_cache_min_compile_time_secs", 0.1)


if __name__ == "__main__":
    main()
