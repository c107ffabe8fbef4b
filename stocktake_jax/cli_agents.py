"""Commands about agents: `score`, `agents list`, `agents play`, `agents graders`, `agents prompt`, `mcp`.

Everything heavy is imported inside the commands. `mount(app)` adds them to the main command line.
"""

from __future__ import annotations

import contextlib
import csv
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from stocktake_jax.errors import InputError

agents_app = typer.Typer(no_args_is_help=True, help="Scripted agents, prompts and graders.")


def mount(app: typer.Typer) -> None:
    """Add the commands to an application."""
    app.command("score")(score)
    app.command("mcp")(mcp)
    app.add_typer(agents_app, name="agents")


def score(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            help="journals or folders of them, Inspect logs (.eval), CSV files of costs (agent,seed,cost[,repeat]), "
            "label files (.txt, as the published ones); NAME=PATH calls the agent NAME",
            show_default=False,
        ),
    ] = None,
    published: Annotated[
        bool | None,
        typer.Option("--published/--no-published", help="with the four published agents; by default they stand beside"),
    ] = None,
    grader: Annotated[str, typer.Option(help="lexical, or the exact id of an Inspect model")] = "lexical",
    second_grader: Annotated[
        str | None, typer.Option(help="another grader; its agreement with the first one is reported")
    ] = None,
    oracle_runs: Annotated[int, typer.Option(help="runs of the fair oracle beside journals; 0: none", min=0)] = 2,
    references: Annotated[
        Path | None, typer.Option(help="CSV of reference costs, as the package's own; else the published ones")
    ] = None,
    budget: Annotated[float, typer.Option(help="names a week in the budget-limited detection rate")] = 1.0,
    resamples: Annotated[int, typer.Option(help="bootstrap samples over seeds", min=1)] = 10_000,
    out: Annotated[Path | None, typer.Option(help="folder for rates.csv, contrasts.csv and labels.jsonl")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="one JSON document: agent, metric, profile -> value, numerator, denominator")
    ] = False,
) -> None:
    """Score agents: skill, beliefs, costs and responses, beside the published agents and the oracle."""
    from stocktake_jax.evaluation.scoring import labelled, oracle_ledgers, published_runs, score_runs, toml_of

    runs: list[Any] = []
    for text in inputs or []:
        runs += _read(text)
    paper = {("paper", toml_of(run.world)) for run in published_runs()[:1]}
    settings = {(run.rules, toml_of(run.world)) for run in runs} or paper
    if len(settings | (paper if published else set())) > 1:
        raise InputError("these runs are of different worlds or rules; score them one by one, with --no-published")
    # The published agents stand beside runs of their own world and rules only.
    if published or (published is None and inputs and settings == paper):
        runs = [*runs, *published_runs()]
    if not runs:
        raise InputError("nothing to score: give journals, logs or CSV files, or --published")
    runs = _joined(runs)
    chosen = None if references is None else _references(references)
    judge, name = _grader(grader)
    second = None if second_grader is None else _grader(second_grader)
    runs = list(labelled(runs, judge, name))
    _failures(runs, judge, name)
    seeds = sorted({run.seed for run in runs if run.ledger is not None})
    oracle = None
    if oracle_runs and seeds:
        first = next(run for run in runs if run.ledger is not None)
        with _weeks(f"the oracle, {oracle_runs} runs on {len(seeds)} seeds") as on_week:
            oracle = oracle_ledgers(seeds, oracle_runs, first.world, first.rules, on_week)
    if second is not None and not seeds:
        raise InputError("a second grader needs rationales: give journals or logs")
    board = score_runs(runs, chosen, oracle=oracle, budget=budget, resamples=resamples)
    agreements = {} if second is None else _agreements(runs, *second)
    if out is not None:
        _write(out, board, runs)
    if as_json:
        document = board.to_json()
        for agent, parts in agreements.items():
            document[agent] |= {f"agreement_{part}": {"all": rate.to_json()} for part, rate in parts.items()}
        print(json.dumps(document, allow_nan=False))
    else:
        print(board.text() + (_agreement_text(agreements, name, second[1]) if second else ""), end="")


def _read(text: str) -> list[Any]:
    """The runs behind one argument."""
    import dataclasses

    from stocktake_jax.agents.play import NOTES, SIDECAR, read_folder
    from stocktake_jax.evaluation.scoring import Run, read_label_file
    from stocktake_jax.evaluation.skill import read_costs

    name, equals, rest = text.partition("=")
    renamed = bool(equals) and not Path(text).exists()
    path = Path(rest if renamed else text)
    if renamed and not (name and rest):
        raise InputError(f"{text!r}: give NAME=PATH, or a path")
    if not path.exists():
        raise InputError(f"{path} does not exist")
    runs: list[Any]
    if path.is_dir():
        logs = [*path.rglob("*.eval"), *(p for p in path.rglob("*.json") if p.name != NOTES and _is_log(p, SIDECAR))]
        runs = _logs(logs) if logs else []
        runs += read_folder(path)
        if not runs:
            raise InputError(f"{path} holds no journal (.jsonl) and no Inspect log (.eval, .json)")
    elif path.suffix == ".csv":
        runs = [
            Run(agent, seed, cost, repeat)
            for agent, by_seed in read_costs(path).items()
            for seed, costs in by_seed.items()
            for repeat, cost in enumerate(costs, 1)
        ]
    elif path.suffix == ".txt":
        runs = list(read_label_file(path))
    elif path.suffix in (".eval", ".json"):
        runs = _logs([path])
    else:
        runs = list(read_folder(path))
    if not runs:
        raise InputError(f"{path} holds no run")
    if renamed:
        runs = [
            dataclasses.replace(
                run,
                agent=name,
                statements=None if run.statements is None else dataclasses.replace(run.statements, agent=name),
            )
            for run in runs
        ]
    return runs


def _is_log(path: Path, sidecar: str) -> bool:
    if path.name.endswith(sidecar):
        return False
    from stocktake_jax.agents.inspect_task import is_log

    return is_log(path)


def _logs(paths: Sequence[Path]) -> list[Any]:
    from stocktake_jax.agents.inspect_task import read_logs

    return list(read_logs(paths))


def _joined(runs: Sequence[Any]) -> list[Any]:
    """Costs and labels of the same run from two files become one run; anything else given twice is an error."""
    import dataclasses
    import math

    found: dict[tuple[str, int, int], Any] = {}
    for run in runs:
        key = (run.agent, run.seed, run.repeat)
        other = found.get(key)
        if other is None:
            found[key] = run
            continue
        if (run.statements is None) == (other.statements is None) or (math.isnan(run.cost) == math.isnan(other.cost)):
            raise InputError(f"agent {run.agent}, seed {run.seed}, repeat {run.repeat} is given twice")
        found[key] = dataclasses.replace(
            other,
            cost=run.cost if math.isnan(other.cost) else other.cost,
            statements=run.statements if other.statements is None else other.statements,
        )
    return list(found.values())


def _references(path: Path) -> Any:
    import numpy as np

    from stocktake_jax.evaluation.published import parse_references
    from stocktake_jax.evaluation.skill import References

    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the references {path}: {getattr(error, 'strerror', None) or error}") from None
    rows = parse_references(text, str(path))
    return References(
        tuple(row.seed for row in rows),
        tuple(row.profile for row in rows),
        np.array([row.floor for row in rows]),
        np.array([row.oracle_mean for row in rows]),
        np.array([row.oracle_se for row in rows]),
    )


def _grader(name: str) -> tuple[Any, str]:
    from stocktake_jax.agents.graders import LexicalGrader, ModelGrader

    if name == "lexical":
        return LexicalGrader(), LexicalGrader.name
    judge = ModelGrader(name)
    return judge, judge.name


def _failures(runs: Sequence[Any], judge: Any, name: str) -> None:
    """Say on standard error how many rationales a grader could not grade, and why."""
    graded = [run.statements.graded for run in runs if run.ledger is not None and run.statements is not None]
    weeks = sum(len(g) - 2 for g in graded)
    missing = weeks - sum(int(g.sum()) for g in graded)
    if missing:
        reason = f"; its last failure: {judge.failure}" if getattr(judge, "failure", None) else ""
        _say(f"{name} could not grade {missing} of {weeks} rationales: they are ungraded, and in no rate{reason}")


def _agreements(runs: Sequence[Any], judge: Any, title: str) -> dict[str, dict[str, Any]]:
    """agent -> how far a second grader agrees with the first one on its rationales: exact, relevant, per_factor."""
    from stocktake_jax.evaluation.beliefs import Truth, agreement, pooled
    from stocktake_jax.evaluation.scoring import labelled
    from stocktake_jax.models import Tape

    mine = [run for run in runs if run.ledger is not None and run.statements is not None]
    again = labelled(mine, judge, title)
    _failures(again, judge, title)
    found: dict[str, list[Any]] = {}
    for first, second in zip(mine, again, strict=True):
        truth = Truth.of(Tape.published(first.seed, first.world), first.world)
        assert second.statements is not None
        found.setdefault(first.agent, []).append(agreement(first.statements, second.statements, truth))
    parts = ("exact", "relevant", "per_factor")
    return {
        agent: {part: pooled(getattr(a, part) for a in several) for part in parts} for agent, several in found.items()
    }


def _agreement_text(agreements: dict[str, dict[str, Any]], first: str, second: str) -> str:
    from stocktake_jax.evaluation.score_text import counted, number, table

    rows = [
        [agent, *(f"{number(parts[p].value, 3)} {counted(parts[p])}" for p in ("exact", "relevant", "per_factor"))]
        for agent, parts in agreements.items()
    ]
    notes = ["share of the weeks that both graded; metric-relevant: of those with stress, on what is under stress"]
    head = ["agent", "same names", "metric-relevant", "each factor"]
    return "\n" + table(f"Agreement of the graders {first} and {second}", head, rows, notes) + "\n"


def _write(folder: Path, board: Any, runs: Sequence[Any]) -> None:
    from stocktake_jax.models import FACTORS

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in (("rates", board.rate_rows()), ("contrasts", board.contrast_rows())):
            if rows:
                with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                    writer = csv.DictWriter(file, list(rows[0]))
                    writer.writeheader()
                    writer.writerows(rows)
        with (folder / "labels.jsonl").open("w", encoding="utf-8") as file:
            for run in runs:
                if run.statements is None:
                    continue
                s = run.statements
                weeks = {
                    str(week): [f for f, on in zip(FACTORS, s.named[week], strict=True) if on]
                    if s.graded[week]
                    else None
                    for week in range(1, len(s.graded) - 1)
                }
                row = {"agent": run.agent, "seed": run.seed, "repeat": run.repeat, "grader": run.notes.get("grader")}
                file.write(json.dumps(row | {"labels": weeks}) + "\n")
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from None


def mcp(
    seed: Annotated[int, typer.Option(help="which tape", min=0)],
    journal: Annotated[Path | None, typer.Option(help="file that records the episode; it goes on from there")] = None,
    arm: Annotated[str, typer.Option(help="of the prompt: rules, belief, coached or anonymous")] = "rules",
    rules: Annotated[str, typer.Option(help="of the books: paper or strict")] = "paper",
) -> None:
    """Serve one episode over the Model Context Protocol, on standard input and output."""
    from stocktake_jax.agents.mcp_server import open_session, serve

    serve(open_session(seed, journal, arm=arm, rules=_rules(rules)))


def _rules(rules: str) -> Any:
    from stocktake_jax.desk import RULES

    if rules not in RULES:
        raise InputError(f"rules must be one of {', '.join(RULES)}, not {rules!r}")
    return rules


@agents_app.command("list")
def list_agents(as_json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False) -> None:
    """The scripted agents, their faults, and which of them see hidden states."""
    from stocktake_jax.agents.scripted import SCRIPTED
    from stocktake_jax.evaluation.score_text import PRIVILEGED, table

    if as_json:
        rows = [{"agent": a.name, "fault": a.fault, "privileged": a.privileged} for a in SCRIPTED.values()]
        print(json.dumps(rows))
        return
    lines = [[a.name, PRIVILEGED if a.privileged else "", a.fault] for a in SCRIPTED.values()]
    print(table("Scripted agents", ["agent", "", "fault"], lines))


@agents_app.command("play")
def play_agents(
    names: Annotated[list[str], typer.Argument(help="scripted agents, or all")],
    out: Annotated[Path, typer.Option(help="folder for the journals")],
    seeds: Annotated[str | None, typer.Option(help="such as 1,5-9; the fifty published ones by default")] = None,
    repeats: Annotated[int, typer.Option(help="episodes on each seed", min=1)] = 1,
    futures: Annotated[int, typer.Option(help="futures sampled per decision", min=1)] = 200,
    rules: Annotated[str, typer.Option(help="of the books: paper or strict")] = "paper",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON line per episode")] = False,
) -> None:
    """Let scripted agents play; the journals can be scored with `stocktake score FOLDER`."""
    from stocktake_jax.agents.scripted import SCRIPTED, play_scripted
    from stocktake_jax.evaluation.catalog import parse_seeds, published_seeds

    chosen = list(SCRIPTED) if names == ["all"] else list(dict.fromkeys(names))
    unknown = [name for name in chosen if name not in SCRIPTED]
    if unknown:
        raise InputError(f"there is no scripted agent {unknown[0]!r}; there are {', '.join(SCRIPTED)}")
    played = parse_seeds(seeds) if seeds else published_seeds()
    for name in chosen:
        agent = SCRIPTED[name](futures=futures)
        with _weeks(f"{name} on {len(played)} seeds") as on_week:
            done = play_scripted(agent, played, repeats=repeats, rules=_rules(rules), journals=out, on_week=on_week)
        if as_json:
            for f in done:
                print(json.dumps({"agent": name, "seed": f.seed, "repeat": f.repeat, "cost": f.cost}))
        else:
            mark = " (sees hidden states)" if agent.privileged else ""
            print(f"{name}{mark}: {len(done)} episodes, mean cost {sum(f.cost for f in done) / len(done):.1f}")


@agents_app.command("graders")
def graders(
    examples: Annotated[Path, typer.Argument(help="labelled rationales: JSON lines with text, labels, stressed")],
    grader: Annotated[str, typer.Option(help="lexical, or the exact id of an Inspect model")] = "lexical",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document")] = False,
) -> None:
    """How far a grader agrees with labelled rationales."""
    from stocktake_jax.agents.graders import agreement_on, read_examples

    judge, name = _grader(grader)
    try:
        text = examples.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {examples}: {error}") from None
    found = agreement_on(read_examples(text, str(examples)), judge)
    if as_json:
        print(json.dumps({"grader": name} | found.to_json()))
    else:
        print(f"{name}: {found.text()}")


@agents_app.command("prompt")
def prompt(
    arm: Annotated[str, typer.Argument(help="rules, belief, coached or anonymous")] = "rules",
    rules: Annotated[str, typer.Option(help="of the books: paper or strict")] = "paper",
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document, the tools with it")] = False,
) -> None:
    """The system prompt of an arm, and its hash, which covers the tools, too."""
    from stocktake_jax.agents.prompt import arm_tools, prompt_hash, system_prompt
    from stocktake_jax.desk import TOOLS

    text, digest = system_prompt(arm, rules=_rules(rules)), prompt_hash(arm, rules=_rules(rules))
    if as_json:
        tools = [
            {"name": t.name, "description": t.description, "parameters": t.schema()}
            for t in arm_tools(TOOLS, arm).values()
        ]
        print(json.dumps({"arm": arm, "rules": rules, "prompt": text, "tools": tools, "prompt_sha256": digest}))
    else:
        print(text)
        _say(f"sha256 {digest}")


@contextlib.contextmanager
def _weeks(what: str) -> Iterator[Any]:
    """Progress over the weeks of a batch on standard error: a bar if somebody is looking, else one line."""
    from rich.console import Console
    from rich.progress import Progress

    from stocktake_jax.models import HORIZON

    console = Console(stderr=True)
    if not console.is_terminal:
        _say(f"{what} ...")
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=HORIZON)
        yield lambda week: bar.update(task, completed=week)


def _say(text: str) -> None:
    print(text, file=sys.stderr)
