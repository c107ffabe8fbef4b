"""`stocktake plot KIND`: figures from saved results, or from seeds where none are needed.

Thin commands over `stocktake_jax.plots`. `-o` names the files; nothing is drawn on a screen. `mount(app)` adds them to the
main command line.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stocktake_jax.cli_shared import ALL, Factors, TrueFile, factors_of, one_of, world_of
from stocktake_jax.errors import InputError

if TYPE_CHECKING:
    from stocktake_jax.evaluation.benchmark import BenchResult, SeedResult
    from stocktake_jax.evaluation.ledger import Ledger
    from stocktake_jax.models import Tape, World

plot_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Figures from saved results or seeds, as PNG and SVG: stocktake plot KIND ... -o FILE.",
)

Seed = Annotated[int, typer.Argument(min=0, help="Which tape.")]
Out = Annotated[
    list[Path],
    typer.Option("-o", "--out", help="File to write: NAME.png, NAME.svg, or NAME for both. Repeatable."),
]
Title = Annotated[str | None, typer.Option("--title", help="In place of the title that says what was found.")]
Json = Annotated[bool, typer.Option("--json", help="Print the kind and the files as JSON, and nothing else.")]
ModelFile = Annotated[Path | None, typer.Option("--world", help="TOML file: the world that the model believes in.")]
LikelihoodKind = Annotated[str, typer.Option("--likelihood", help="How readings are taken: paper or exact.")]
Start = Annotated[str, typer.Option("--initial", help="Where the filters start: uniform or baseline.")]
Buying = Annotated[str, typer.Option("--policy", help="What is ordered meanwhile: idle, or spot20 (fill is read).")]
Results = Annotated[Path | None, typer.Option("--results", help="Folder that `stocktake bench --out` filled.")]
Replication = Annotated[int, typer.Option("--replication", min=1, help="Which of the oracle's runs.")]
RuleSet = Annotated[str, typer.Option("--rules", help="Rules of the books: paper or strict.")]
Group = Annotated[str, typer.Option("--group", help="isolated, persistent, compound or all.")]
Scores = Annotated[
    Path | None,
    typer.Argument(help="What `stocktake score --json` printed, or rates.csv of its --out; the published agents."),
]


def mount(app: typer.Typer) -> None:
    """Add the commands to an application."""
    app.add_typer(plot_app, name="plot")


# ---- the hidden world -----------------------------------------------------------------------------------------------


@plot_app.command("tape")
def tape(seed: Seed, out: Out, true_world: TrueFile = None, title: Title = None, as_json: Json = False) -> None:
    """An episode's tape: regimes and readings of the six factors."""
    files = _files(out)
    from stocktake_jax import plots
    from stocktake_jax.models import Tape

    world = world_of(true_world)
    _done("tape", plots.tape(Tape.published(seed, world), world, title=title), files, as_json)


@plot_app.command("posterior")
def posterior(
    seed: Seed,
    out: Out,
    factors: Factors = ALL,
    results: Results = None,
    policy: Buying = "idle",
    likelihood: LikelihoodKind = "paper",
    initial: Start = "uniform",
    world: ModelFile = None,
    true_world: TrueFile = None,
    title: Title = None,
    as_json: Json = False,
) -> None:
    """What the filters believe of each factor, week by week, with the truth over it.

    With --results, what the oracle believed in its first run of the benchmark there.
    """
    files, names = _files(out), factors_of(factors)
    from stocktake_jax import plots
    from stocktake_jax.models import Tape

    if results is not None:
        saved = _results(results)
        model, truth = saved.options.model, saved.options.true_world
        one = _of_seed(saved, seed)
        beliefs: dict[str, Any] = {n: _saved_belief(one, n, model.factors[n].labels) for n in names}
    else:
        model, truth = world_of(world), world_of(true_world)
        kind = one_of("--likelihood", likelihood, "paper", "exact")
        beliefs = _beliefs(model, truth, seed, policy, kind, initial, names)
    axes = plots.posteriors(model, beliefs, Tape.published(seed, truth), title=title)
    _done("posterior", axes, files, as_json)


@plot_app.command("beliefs")
def beliefs(
    seed: Seed,
    out: Out,
    factors: Factors = ALL,
    policy: Buying = "idle",
    likelihood: Annotated[str, typer.Option("--likelihood", help="paper, exact, or paper,exact.")] = "paper,exact",
    initial: Start = "uniform",
    world: Annotated[
        list[Path] | None,
        typer.Option("--world", help="TOML file that filters believe in. Repeatable; else the true one."),
    ] = None,
    true_world: TrueFile = None,
    title: Title = None,
    as_json: Json = False,
) -> None:
    """The probability of stress by two filters that read the same tape: other likelihoods, or other worlds."""
    files, names = _files(out), factors_of(factors)
    from stocktake_jax import plots
    from stocktake_jax.models import Tape

    truth = world_of(true_world)
    models = {f"{p.parent.name}/{p.stem}" if p.stem == "world" else p.stem: world_of(p) for p in world or []}
    if len(models) < len(world or []):
        raise InputError("two --world files have the same name; rename one")
    if len(models) == 1:
        models = {"true": truth} | models
    models = models or {"true": truth}
    kinds = list(dict.fromkeys(one_of("--likelihood", k.strip(), "paper", "exact") for k in likelihood.split(",")))
    if len(models) * len(kinds) < 2:
        raise InputError("a comparison needs two filters: --likelihood paper,exact, or two worlds with --world")
    found = {}
    for name, model in models.items():
        for kind in kinds:
            said = kind if len(models) == 1 else name if len(kinds) == 1 else f"{name}, {kind}"
            found[said] = _beliefs(model, truth, seed, policy, kind, initial, names)
    axes = plots.beliefs(truth, found, Tape.published(seed, truth), title=title)
    _done("beliefs", axes, files, as_json)


# ---- episodes -------------------------------------------------------------------------------------------------------


@plot_app.command("decision")
def decision(
    seed: Seed,
    week: Annotated[int, typer.Argument(help="The week whose observation it decides on, 0 to 25.")],
    out: Out,
    replication: Replication = 1,
    futures: Annotated[
        int | None, typer.Option("--futures", help="Futures sampled per decision; 190 + r in run r by default.")
    ] = None,
    most: Annotated[int, typer.Option("--most", min=1, help="Candidates shown, the cheapest ones.")] = 12,
    likelihood: LikelihoodKind = "paper",
    initial: Start = "uniform",
    world: ModelFile = None,
    true_world: TrueFile = None,
    rules: RuleSet = "paper",
    title: Title = None,
    as_json: Json = False,
) -> None:
    """One decision of the oracle: its candidates on the sampled futures, the one it took, and what happened."""
    files = _files(out)
    from stocktake_jax import plots
    from stocktake_jax.evaluation.explain import explain
    from stocktake_jax.policies import Oracle

    oracle = Oracle(
        world_of(world),
        likelihood=one_of("--likelihood", likelihood, "paper", "exact"),
        initial=one_of("--initial", initial, "uniform", "baseline"),
        futures=futures,
    )
    truth, how = world_of(true_world), one_of("--rules", rules, "paper", "strict")
    with _busy("the oracle plays"):
        found = explain(seed, week, replication=replication, oracle=oracle, world=truth, rules=how)
    _done("decision", plots.decision(found, most=most, title=title), files, as_json)


@plot_app.command("books")
def books(
    seed: Seed,
    out: Out,
    results: Results = None,
    journal: Annotated[
        list[str] | None,
        typer.Option("--journal", help="Journal of an episode on the seed, or NAME=FILE to name it. Repeatable."),
    ] = None,
    references: Annotated[
        bool, typer.Option("--references/--no-references", help="With floor and oracle; they are there by default.")
    ] = True,
    replication: Replication = 1,
    true_world: TrueFile = None,
    rules: RuleSet = "paper",
    title: Title = None,
    as_json: Json = False,
) -> None:
    """The books of one or several policies on a tape: stock, orders, and the weekly bill by its items.

    Floor and oracle come from --results, or are played anew.
    """
    files = _files(out)
    from stocktake_jax import plots
    from stocktake_jax.models import Tape

    truth = world_of(true_world)
    episodes: dict[str, Ledger] = {}
    if results is not None:
        saved = _results(results)
        truth = saved.options.true_world
        episodes |= plots.saved_ledgers(_of_seed(saved, seed)) if references else {}
    elif references:
        with _busy("floor and oracle play"):
            episodes |= _played(seed, replication, truth, one_of("--rules", rules, "paper", "strict"))
    for text in journal or []:
        name, ledger = _journal(text, seed)
        if name in episodes:
            raise InputError(f"two episodes are called {name}; name one with --journal NAME=FILE")
        episodes[name] = ledger
    if not episodes:
        raise InputError("there is no episode to draw: give --journal FILE, or leave out --no-references")
    _done("books", plots.books(episodes, Tape.published(seed, truth), truth, title=title), files, as_json)


def _played(seed: int, replication: int, world: World, rules: Any) -> dict[str, Ledger]:
    import numpy as np

    from stocktake_jax.evaluation.ledger import of_trajectories
    from stocktake_jax.evaluation.simulate import simulate
    from stocktake_jax.models import Tape
    from stocktake_jax.policies import BaseStock, Oracle, Runs

    tapes, runs = Tape.published_batch([seed], world), Runs(np.array([seed]), np.array([replication]))
    return {
        policy.name: of_trajectories(simulate(policy, tapes, runs, np.zeros(1, np.int64), world, rules))[0]
        for policy in (BaseStock(world), Oracle(world))
    }


def _journal(text: str, seed: int) -> tuple[str, Ledger]:
    from stocktake_jax.evaluation.ledger import read_journal

    name, equals, rest = text.partition("=")
    path = Path(rest) if equals and not Path(text).exists() else Path(text)
    record = read_journal(path)
    if record.seed != seed:
        raise InputError(f"{path} is an episode on seed {record.seed}, not on {seed}")
    ledger = record.play()
    if ledger is None:
        raise InputError(f"{path}: the episode was not finished; play it to its end")
    # Journals of an agent are SEED files in a folder of its name.
    return (name if path == Path(rest) else path.parent.name or path.stem), ledger


# ---- scores ---------------------------------------------------------------------------------------------------------


@plot_app.command("skill")
def skill(
    out: Out,
    results: Annotated[
        Path | None, typer.Argument(help="Folder that `stocktake bench --out` filled; else the published references.")
    ] = None,
    agents: Annotated[
        Path | None,
        typer.Option("--agents", help="CSV file (agent,seed,cost[,repeat]) instead of the published agents."),
    ] = None,
    title: Title = None,
    as_json: Json = False,
) -> None:
    """Every agent's skill by seed and stress profile, with means, intervals and medians."""
    files = _files(out)
    from stocktake_jax import plots
    from stocktake_jax.evaluation.published import published_agents
    from stocktake_jax.evaluation.skill import References, read_costs, score

    costs = None if agents is None else read_costs(agents)
    if results is None:
        table = score(costs or published_agents(), References.published())
    else:
        saved = _results(results)
        table = saved.skill if costs is None else score(costs, saved.references)
    _done("skill", plots.skill(table, title=title), files, as_json)


@plot_app.command("detection")
def detection(
    out: Out, scores: Scores = None, group: Group = "all", title: Title = None, as_json: Json = False
) -> None:
    """How much stress agents' rationales miss, how late they name it, and how often they are right."""
    files = _files(out)
    from stocktake_jax import plots

    of = _group(group)
    found = _scores(scores)
    _done("detection", plots.detection(found, group=of, title=title), files, as_json)


@plot_app.command("knowing-doing")
def knowing_doing(
    out: Out, scores: Scores = None, group: Group = "all", title: Title = None, as_json: Json = False
) -> None:
    """How often the shelf runs empty: in calm weeks, in stress that goes unnamed, in stress that is named."""
    files = _files(out)
    from stocktake_jax import plots

    of = _group(group)
    found = _scores(scores)
    _done("knowing-doing", plots.knowing_doing(found, group=of, title=title), files, as_json)


def _scores(path: Path | None) -> Any:
    if path is None:
        from stocktake_jax.evaluation.scoring import published_runs, score_runs

        with _busy("the published agents are scored"):
            return score_runs(published_runs())
    if path.is_dir():
        path = path / "rates.csv"
    if path.suffix != ".csv":
        found = _document(path)
        cells = [c for of in found.values() if isinstance(of, dict) for c in of.values() if isinstance(c, dict)]
        if not cells or not all(isinstance(v, dict) and "value" in v for c in cells for v in c.values()):
            raise InputError(f"{path} is no document of `stocktake score --json` (agent, metric, profile -> value)")
        return found
    document: dict[str, dict[str, dict[str, Any]]] = {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                cell = {k: float(row[k]) if row[k] else None for k in ("value", "low", "high", "denominator")}
                document.setdefault(row["agent"], {}).setdefault(row["metric"], {})[row["group"]] = cell
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give what `stocktake score` wrote") from None
    except (KeyError, ValueError, TypeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no rates.csv of `stocktake score --out` ({error!r})") from None
    return document


def _group(group: str) -> str:
    return str(one_of("--group", group, "isolated", "persistent", "compound", "all"))


# ---- studies --------------------------------------------------------------------------------------------------------

File = Annotated[Path, typer.Argument(help="The JSON document, or the folder that holds it.")]


@plot_app.command("tornado")
def tornado(
    study: File,
    out: Out,
    most: Annotated[int, typer.Option("--most", min=1, help="Parameters shown, the costliest ones.")] = 20,
    title: Title = None,
    as_json: Json = False,
) -> None:
    """What misjudging each parameter costs, from `stocktake study misspecify`."""
    _drawn("tornado", "tornado", study, "study.json", out, as_json, most=most, title=title)


@plot_app.command("models")
def models(
    study: File,
    out: Out,
    order: Annotated[
        str, typer.Option("--order", help="cost: the costliest on top; given: as the study has them.")
    ] = "cost",
    most: Annotated[int, typer.Option("--most", min=1, help="Models shown, the costliest ones.")] = 40,
    title: Title = None,
    as_json: Json = False,
) -> None:
    """What believing each wrong model costs, from `stocktake study misspecify`, whatever is wrong."""
    how = one_of("--order", order, "cost", "given")
    _drawn("models", "models", study, "study.json", out, as_json, order=how, most=most, title=title)


@plot_app.command("curves")
def curves(study: File, out: Out, title: Title = None, as_json: Json = False) -> None:
    """Cost against the value believed of a parameter, from `stocktake study misspecify` with several of them."""
    _drawn("curves", "curves", study, "study.json", out, as_json, title=title)


@plot_app.command("grid")
def grid(study: File, out: Out, title: Title = None, as_json: Json = False) -> None:
    """A heat map over two parameters believed wrongly together, from `stocktake study misspecify --grid`."""
    _drawn("grid", "grid", study, "study.json", out, as_json, title=title)


@plot_app.command("learning")
def learning(study: File, out: Out, title: Title = None, as_json: Json = False) -> None:
    """What a learned world costs, by the tapes it was learned from, from `stocktake study learned`."""
    _drawn("learning", "sample_complexity", study, "learned.json", out, as_json, title=title)


@plot_app.command("reliability")
def reliability(calibration: File, out: Out, title: Title = None, as_json: Json = False) -> None:
    """Reliability diagrams of the filters, from `stocktake study calibration`."""
    _drawn("reliability", "reliability", calibration, "calibration.json", out, as_json, title=title)


@plot_app.command("ranks")
def ranks(sbc: File, out: Out, title: Title = None, as_json: Json = False) -> None:
    """Rank histograms of simulation-based calibration, from `stocktake study sbc`."""
    _drawn("ranks", "rank_histograms", sbc, "sbc.json", out, as_json, title=title)


@plot_app.command("coverage")
def coverage(study: File, out: Out, title: Title = None, as_json: Json = False) -> None:
    """How often intervals hold the truth, from `stocktake study coverage`."""
    _drawn("coverage", "coverage", study, "coverage.json", out, as_json, title=title)


@plot_app.command("parameters")
def parameters(
    fit: Annotated[Path, typer.Argument(help="Folder that `stocktake fit --out` filled.")],
    out: Out,
    factors: Factors = ALL,
    world: Annotated[
        Path | None, typer.Option("--world", help="TOML file that the fit started from, which centres the priors.")
    ] = None,
    true_world: Annotated[
        Path | None, typer.Option("--true-world", help="TOML file with the truth; by default what the fit says of it.")
    ] = None,
    title: Title = None,
    as_json: Json = False,
) -> None:
    """What was learned of each parameter: posterior against prior and truth."""
    files, names = _files(out), factors_of(factors)
    import jax

    from stocktake_jax import plots
    from stocktake_jax.inference.learning import load_draws
    from stocktake_jax.inference.priors import entries, value_of

    draws = load_draws(fit / "posterior.npz")
    prior = plots.prior_draws(world_of(world), list(draws), key=jax.random.key(0))
    if true_world is None:
        rows = _document(fit, "fit.json").get("parameters", [])
        truth = {r["name"]: r["truth"] for r in rows if r.get("truth") is not None}
    else:
        known = world_of(true_world).factors.values()
        truth = {name: value_of(f, e) for f in known for name, e in entries(f).items()}
    chosen = {n: x for n, x in draws.items() if n.partition(".")[0] in names}
    if not chosen:
        raise InputError(
            f"{fit} holds no draws of {factors}; it has {', '.join(sorted({n.partition('.')[0] for n in draws}))}"
        )
    _done("parameters", plots.parameters(chosen, prior, truth or None, title=title), files, as_json)


# ---- what commands share --------------------------------------------------------------------------------------------


def _files(out: Sequence[Path]) -> tuple[Path, ...]:
    """The files, before anything is computed that could not be written."""
    from stocktake_jax.plots.style import in_style, wanted_files

    in_style()
    return wanted_files(*out)


def _drawn(kind: str, function: str, path: Path, name: str, out: Sequence[Path], as_json: bool, **options: Any) -> None:
    """Draw a study's document, a file or what its folder holds under a name, by a function of `plots`."""
    files = _files(out)
    from stocktake_jax import plots

    with _of(path):
        axes = getattr(plots, function)(_document(path, name), **options)
    _done(kind, axes, files, as_json)


def _done(kind: str, axes: Any, files: Sequence[Path], as_json: bool) -> None:
    from stocktake_jax import plots

    written = plots.save(axes, *files)
    if as_json:
        print(json.dumps({"kind": kind, "files": [str(f) for f in written]}))
    else:
        for file in written:
            print(file)


@contextlib.contextmanager
def _of(path: Path) -> Iterator[None]:
    """Whatever is missing in a document is a fault of the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is no such document, or is damaged ({error!r})") from None


@contextlib.contextmanager
def _busy(what: str) -> Iterator[None]:
    """Say on standard error what takes a while, if somebody is looking."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(f"{what} ..."):
        yield


def _results(folder: Path) -> BenchResult:
    from stocktake_jax.evaluation.benchmark import read_results

    return read_results(folder)


def _of_seed(results: BenchResult, seed: int) -> SeedResult:
    for one in results.seeds:
        if one.seed == seed:
            return one
    raise InputError(f"the results have no seed {seed}; they have {', '.join(str(one.seed) for one in results.seeds)}")


def _saved_belief(result: SeedResult, factor: str, labels: Sequence[str]) -> Any:
    """(week, regime) what the oracle believed after the readings of weeks 0 .. 25."""
    import numpy as np

    return np.array([[week["belief"][factor][label] for label in labels] for week in result.weeks["oracle"]])


def _beliefs(
    model: World, truth: World, seed: int, policy: str, likelihood: Any, initial: str, names: Sequence[str]
) -> dict[str, Any]:
    """factor -> (week, state) posterior of a seed's readings."""
    import numpy as np

    from stocktake_jax.inference import spot_alive_before
    from stocktake_jax.models import Tape

    one_of("--policy", policy, "idle", "spot20")
    start: Any = one_of("--initial", initial, "uniform", "baseline")
    found: Tape = Tape.published(seed, truth)
    sourced: Any = spot_alive_before(truth, found) if policy == "spot20" else None
    readings = {
        n: {k: np.asarray(v, np.float32) for k, v in channels.items()}
        for n, channels in found.readings(truth, sourced).items()
        if n in names
    }

    run = _filter_jit()
    return {n: np.asarray(run(model.factors[n], y, likelihood, start), np.float64) for n, y in readings.items()}


@functools.cache
def _filter_jit() -> Any:
    """A factor's filter: of the parameters only the shapes are compiled in, so that another world costs nothing more."""
    import jax

    from stocktake_jax.inference import filter_factor

    def run(factor: Any, series: Any, likelihood: Any, initial: Any) -> Any:
        return filter_factor(factor, series, likelihood, initial).belief

    return jax.jit(run, static_argnums=(2, 3))


def _document(path: Path, name: str = "") -> Mapping[str, Any]:
    """A JSON document: the file, or the one of this name in the folder."""
    file = path / name if name and path.is_dir() else path
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is no JSON document ({error})") from None
    if not isinstance(document, dict):
        raise InputError(f"{file} holds no JSON object")
    return document
