"""STOCKTAKE as an Inspect AI task: `inspect eval stocktake_jax/stocktake --model provider/name`.

Inspect is imported when the task is asked for, not with this module: its entry point names the attribute `stocktake`,
which the module makes on first use.

The loop is ours: generate, carry out the calls, until the episode is done. The model is sent our prompt, the reports,
the answers of its calls and our tools, and nothing else; calls are checked by the episode itself, so that they are
refused here for the same reasons and in the same words as everywhere else.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from stocktake_jax.agents.extras import require
from stocktake_jax.agents.graders import LexicalGrader, ModelGrader, instructions_hash
from stocktake_jax.agents.play import renumbered, version
from stocktake_jax.agents.prompt import NUDGE, check_arm
from stocktake_jax.agents.session import Session
from stocktake_jax.desk import RULES, Episode, Rules
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.beliefs import (
    FIRST,
    LAST,
    Rate,
    Statements,
    Truth,
    belief_counts,
    split_rationale,
)
from stocktake_jax.evaluation.catalog import classify_seed, parse_seeds, published_seeds
from stocktake_jax.evaluation.ledger import Ledger, Record
from stocktake_jax.evaluation.published import PROFILES
from stocktake_jax.evaluation.scoring import Run, filter_stress
from stocktake_jax.evaluation.skill import References, skill
from stocktake_jax.models import FACTORS, HORIZON, Tape, World

STORE = "stocktake"
"""Key of a sample's store under which its episode is kept: what was called, and who answered."""

IDLE = 3
"""Messages in a row without a call after which an episode is given up as unfinished."""

TURNS = 12 * HORIZON
"""Messages of the model after which an episode is given up as unfinished."""

BELIEF_METRICS = (
    "missed",
    "missed_paper",
    "mean_lag",
    "missed_bounded",
    "precision",
    "precision_lenient",
    "names_per_week",
    "knowing_doing",
    "knowing_doing_full",
    "stockout_undiagnosed",
    "ungraded",
    "brier",
    "brier_filter",
    "log_score",
    "log_score_filter",
)


def tool_infos(session: Session) -> list[Any]:
    """The session's tools as Inspect describes them to models."""
    tool, params = require("inspect_ai.tool"), require("inspect_ai.tool").ToolParams
    return [
        tool.ToolInfo(name=t.name, description=t.description, parameters=params(**t.schema()))
        for t in session.tools.values()
    ]


async def play_sample(session: Session, model: Any, messages: list[Any], notes: Mapping[str, Any]) -> Any:
    """One episode: yields nothing, changes `messages` and the sample's store.

    Args:
        session: of a fresh episode.
        model: an Inspect model.
        messages: the conversation so far: the prompt and the first report.
        notes: what is known of the run, for the log.
    """
    inspect_model, util = require("inspect_ai.model"), require("inspect_ai.util")
    tool = require("inspect_ai.tool")
    infos, config = tool_infos(session), inspect_model.GenerateConfig(parallel_tool_calls=False)
    kept: dict[str, Any] = dict(notes) | {"calls": [], "refused": 0, "models": [], "done": False}
    idle = 0

    def keep() -> None:
        util.store().set(STORE, kept)

    keep()
    for _ in range(TURNS):
        output = await model.generate(messages, tools=infos, tool_choice="auto", config=config)
        # Who answered, message by message: what a model's name stands for can change within an episode.
        kept["models"] = [*kept["models"], output.model]
        if output.empty:
            keep()
            break
        messages.append(output.message)
        calls = output.message.tool_calls or []
        idle = 0 if calls else idle + 1
        if not calls:
            keep()
            if idle >= IDLE or output.stop_reason in ("max_tokens", "model_length"):
                break
            messages.append(inspect_model.ChatMessageUser(content=NUDGE))
            continue
        session.begin_turn()
        for call in calls:
            if call.parse_error:
                ok, text = False, f"{call.function}: the arguments are not a JSON object; call it again"
            else:
                answer = session.answer(call.function, call.arguments)
                ok, text = answer.ok, answer.text
            if ok:
                kept["calls"] = [*kept["calls"], [call.function, call.arguments]]
            else:
                kept["refused"] += 1
            error = None if ok else tool.ToolCallError("unknown", text)
            messages.append(
                inspect_model.ChatMessageTool(content=text, tool_call_id=call.id, function=call.function, error=error)
            )
        kept["done"] = session.done
        keep()
        if session.done:
            break
    return messages


def record_of(kept: Mapping[str, Any]) -> Ledger | None:
    """What a sample's store holds, played again; None if the episode was not finished."""
    session = Session(Episode(kept["seed"], rules=kept["rules"]), kept["arm"])
    calls = []
    for name, arguments in kept["calls"]:
        # In the episode's own words: the arm's session translates, and the episode is closed to peeking.
        calls.append(session.translate(name, arguments))
    return Record(kept["seed"], kept["rules"], World.paper(), tuple(calls)).play()


def _build() -> Any:
    """Make and register the task, its agent and its scorers."""
    inspect_ai, inspect_model = require("inspect_ai"), require("inspect_ai.model")
    dataset, scorers, solvers = (require(f"inspect_ai.{part}") for part in ("dataset", "scorer", "solver"))

    def stocktake_episode() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            seed, arm, rules = (state.metadata[key] for key in ("seed", "arm", "rules"))
            session = Session(Episode(seed, rules=rules), arm)
            state.messages = [
                inspect_model.ChatMessageSystem(content=session.prompt),
                inspect_model.ChatMessageUser(content=session.opening()),
            ]
            notes = {
                "seed": seed,
                "rules": rules,
                "arm": arm,
                "prompt_sha256": session.prompt_hash,
                "package": version(),
                "harness": f"inspect-ai {inspect_ai.__version__}",
            }
            await play_sample(session, inspect_model.get_model(), state.messages, notes)
            state.completed = True
            return state

        return solve

    def outcome_table() -> Any:
        def compute(scores: Sequence[Any]) -> dict[str, float]:
            return outcomes([(s.score.value, s.sample_metadata or {}) for s in scores])

        return compute

    def pooled_rates() -> Any:
        def compute(scores: Sequence[Any]) -> dict[str, float]:
            return pooled_beliefs([(s.score.value, s.sample_metadata or {}) for s in scores])

        return compute

    def outcome() -> Any:
        async def score(state: Any, target: Any) -> Any:
            ledger = record_of(state.store.get(STORE)) if state.store.get(STORE) else None
            return scorers.Score(
                value=outcome_values(ledger, state.metadata["seed"], state.metadata["rules"]),
                explanation=None if ledger else "the episode was not finished",
            )

        return score

    def beliefs(grader: str = "lexical") -> Any:
        async def score(state: Any, target: Any) -> Any:
            kept = state.store.get(STORE)
            ledger = record_of(kept) if kept else None
            if ledger is None:
                return scorers.Score(value=belief_values(None), explanation="the episode was not finished")
            seed, words = state.metadata["seed"], [split_rationale(t) for t in ledger.rationales]
            texts = [words[week][0] for week in range(FIRST, LAST + 1)]
            if grader == "model":
                # A role of its own, required: otherwise the model under test would grade itself.
                judge = ModelGrader(inspect_model.get_model(role="grader", required=True))
                labels = [await judge.grade(text) for text in texts]
                name, resolved = judge.name, sorted(judge.resolved)
            else:
                labels, name, resolved = LexicalGrader()(texts), LexicalGrader.name, []
            counts = sample_beliefs(ledger, seed, labels, words)
            return scorers.Score(
                value=belief_values(counts),
                metadata={
                    "grader": name,
                    "grader_models": resolved,
                    "grader_instructions": instructions_hash(),
                    "labels": {
                        str(week): None if label is None else sorted(label)
                        for week, label in zip(range(FIRST, LAST + 1), labels, strict=True)
                    },
                },
            )

        return score

    # Called and not written as decorators: those are untyped where Inspect is not installed.
    episode = solvers.solver(name="stocktake_episode")(stocktake_episode)
    table = scorers.metric(name="outcome_table")(outcome_table)
    rates = scorers.metric(name="pooled_rates")(pooled_rates)
    outcome_scorer = scorers.scorer(metrics=[table()], name="outcome")(outcome)
    belief_scorer = scorers.scorer(metrics=[rates()], name="beliefs")(beliefs)

    def stocktake(
        seeds: str | list[int | str] | int | None = None,
        arm: str = "rules",
        rules: str = "paper",
        repeats: int = 1,
        grader: str = "lexical",
    ) -> Any:
        """26 weeks of buying stock on published seeds.

        Args:
            seeds: such as 1,5-9; the fifty published ones by default.
            arm: of the prompt: rules, belief, coached or anonymous.
            rules: of the books: paper or strict.
            repeats: episodes on each seed.
            grader: of the rationales: lexical, or model (`--model-role grader=provider/name`).
        """
        check_arm(arm)
        if rules not in RULES:
            raise InputError(f"rules must be one of {', '.join(RULES)}, not {rules!r}")
        if grader not in ("lexical", "model"):
            raise InputError(f"grader must be lexical or model, not {grader!r}")
        chosen = _seeds(seeds)
        session = Session(Episode(chosen[0], rules=rules), arm)
        # Week 0's report is the same on every seed, and this is what the model is sent first.
        opening = [
            inspect_model.ChatMessageSystem(content=session.prompt),
            inspect_model.ChatMessageUser(content=session.opening()),
        ]
        samples = [
            dataset.Sample(
                id=f"seed-{seed}",
                input=list(opening),
                metadata={
                    "seed": seed,
                    "profile": classify_seed(seed).profile,
                    "arm": arm,
                    "rules": rules,
                    "prompt_sha256": session.prompt_hash,
                },
            )
            for seed in chosen
        ]
        return inspect_ai.Task(
            dataset=dataset.MemoryDataset(samples, name="stocktake"),
            solver=episode(),
            scorer=[outcome_scorer(), belief_scorer(grader)],
            epochs=inspect_ai.Epochs(repeats, ["mean"]),
            version=version(),
            metadata={"prompt_sha256": session.prompt_hash, "package": version(), "arm": arm, "rules": rules},
        )

    return inspect_ai.task(name="stocktake")(stocktake)


@functools.cache
def _built() -> Any:
    return _build()


def __getattr__(name: str) -> Any:
    """`stocktake`, the task: made when it is first asked for."""
    if name == "stocktake":
        return _built()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _seeds(seeds: Any) -> tuple[int, ...]:
    if seeds is None:
        return published_seeds()
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        return (seeds,)
    if isinstance(seeds, str):
        return parse_seeds(seeds)
    if isinstance(seeds, (list, tuple)) and seeds and not any(isinstance(s, bool) for s in seeds):
        # Inspect's command line cuts `-T seeds=1,5-9` into its parts before it comes here.
        return parse_seeds(",".join(map(str, seeds)))
    raise InputError(f"seeds must look like 1,5-9, not {seeds!r}")


# -- scores of a sample


def outcome_values(ledger: Ledger | None, seed: int, rules: str = "paper") -> dict[str, float]:
    """skill, cost, complete; an unfinished episode has no cost and no skill, and completeness 0.

    Only seeds and rules with published references have a skill.
    """
    if ledger is None:
        return {"skill": math.nan, "cost": math.nan, "complete": 0.0}
    references = References.published([seed] if rules == "paper" else [])
    value = skill(ledger.cost, references.floor[0], references.oracle[0]) if references.seeds else math.nan
    return {"skill": float(value), "cost": ledger.cost, "complete": 1.0}


def outcomes(rows: Sequence[tuple[Mapping[str, float], Mapping[str, Any]]]) -> dict[str, float]:
    """Means over samples, by profile and over all, standard errors clustered by seed; nan where nothing counts."""
    out: dict[str, float] = {}
    for group in (*PROFILES, "all"):
        mine = [(v, m) for v, m in rows if group in ("all", m.get("profile"))]
        if not mine:
            continue
        for key in ("skill", "cost"):
            by_seed: dict[Any, list[float]] = {}
            for values, metadata in mine:
                if not math.isnan(values[key]):
                    by_seed.setdefault(metadata.get("seed"), []).append(values[key])
            means = np.array([np.mean(v) for v in by_seed.values()])
            out[f"{key} {group}"] = float(means.mean()) if means.size else math.nan
            if group == "all" and means.size > 1:
                out[f"{key} stderr"] = float(means.std(ddof=1) / math.sqrt(means.size))
        out[f"complete {group}"] = float(np.mean([v["complete"] for v, _ in mine]))
    out["finished"] = float(sum(v["complete"] for v, _ in rows))
    out["samples"] = float(len(rows))
    return out


def sample_beliefs(
    ledger: Ledger,
    seed: int,
    labels: Sequence[frozenset[str] | None],
    words: Sequence[tuple[str, Mapping[str, float] | None]],
) -> dict[str, Rate]:
    """The belief metrics of one finished episode."""
    probability = np.full((HORIZON + 1, len(FACTORS)), math.nan)
    for week in range(FIRST, LAST + 1):
        stated = words[week][1]
        if stated is not None:
            probability[week] = [stated[factor] for factor in FACTORS]
    by_week = dict(zip(range(FIRST, LAST + 1), labels, strict=True))
    statements = Statements.make("", seed, by_week, ledger.stockout, probability)
    world = World.paper()
    tape = Tape.published(seed, world)
    posterior = None if np.isnan(probability).all() else filter_stress(world, tape, ledger.sourced)
    return belief_counts(statements, Truth.of(tape, world), posterior=posterior)


def belief_values(counts: Mapping[str, Rate] | None) -> dict[str, float]:
    """Counts as a flat score: `<metric>.over` and `<metric>.under`; zeros for an unfinished episode."""
    none = Rate(0, 0)
    rates = {metric: (counts or {}).get(metric, none) for metric in BELIEF_METRICS}
    over = {f"{metric}.over": float(rate.numerator) for metric, rate in rates.items()}
    return over | {f"{metric}.under": float(rate.denominator) for metric, rate in rates.items()}


def pooled_beliefs(rows: Sequence[tuple[Mapping[str, float], Mapping[str, Any]]]) -> dict[str, float]:
    """Rates pooled over samples, by profile and over all; nan where there is nothing to divide by."""
    out: dict[str, float] = {}
    for group in (*PROFILES, "all"):
        mine = [v for v, m in rows if group in ("all", m.get("profile"))]
        if not mine:
            continue
        for metric in BELIEF_METRICS:
            over, under = (sum(v[f"{metric}.{part}"] for v in mine) for part in ("over", "under"))
            out[f"{metric} {group}"] = over / under if under else math.nan
    return out


# -- logs


def read_log(path: str | Path) -> tuple[Run, ...]:
    """The runs in an Inspect log (`.eval` or `.json`), finished or not: agent is the model, repeat the epoch.

    Samples that ended in an error or at a limit are unfinished runs, not missing ones. Of a run that was killed, the log
    holds the samples that were over by then.

    Raises:
        InputError: if it is no log of this task.
    """
    return tuple(run for _, run in _log_runs(_open_log(path)))


def read_logs(paths: Sequence[str | Path]) -> tuple[Run, ...]:
    """The runs in several Inspect logs, each once.

    A log of an interrupted run and the log of its second go hold the same samples: of those the finished ones count,
    and no sample twice. What was run anew on purpose counts as further repeats.

    Raises:
        InputError: if one of them is no log of this task.
    """
    logs = sorted((_open_log(path) for path in paths), key=lambda log: str(log.eval.created))
    found: dict[tuple[Any, ...], Run] = {}
    for log in logs:
        for _, run in _log_runs(log):
            key = (log.eval.task_id, run.agent, run.seed, run.repeat)
            if key not in found or math.isnan(found[key].cost):
                found[key] = run
    return renumbered(found.values())


def is_log(path: Path) -> bool:
    """Whether a JSON file has an Inspect log's outline; other JSON may lie beside logs."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and isinstance(document.get("eval"), dict) and "task" in document["eval"]


def _open_log(path: str | Path) -> Any:
    logs = require("inspect_ai.log")
    try:
        log = logs.read_eval_log(str(path))
    except Exception as error:
        raise InputError(f"{path}: not an Inspect log ({error})") from None
    if log.eval.task.rpartition("/")[2] != "stocktake":
        raise InputError(f"{path}: a log of the task {log.eval.task}, not of stocktake")
    return log


def _log_runs(log: Any) -> list[tuple[Any, Run]]:
    """The samples of a log with their runs."""
    out = []
    given = log.eval.task_args or {}
    arm, rules = str(given.get("arm", "rules")), str(given.get("rules", "paper"))
    different = [word for word, usual in ((arm, "rules"), (f"{rules} rules", "paper rules")) if word != usual]
    agent = f"{log.eval.model} ({', '.join(different)})" if different else str(log.eval.model)
    for sample in log.samples or []:
        kept = sample.store.get(STORE)
        ledger = record_of(kept) if kept else None
        notes: dict[str, Any] = {
            "model": log.eval.model,
            "harness": f"inspect-ai {log.eval.packages.get('inspect_ai', '?')}",
        }
        if kept:
            notes |= {key: kept[key] for key in ("arm", "rules", "prompt_sha256", "package")}
            notes["resolved model"] = tuple(dict.fromkeys(kept["models"]))
        cost = math.nan if ledger is None else ledger.cost
        run = Run(
            agent,
            int(sample.metadata["seed"]),
            cost,
            int(sample.epoch),
            ledger,
            notes=notes,
            rules=cast("Rules", rules),
        )
        out.append((sample, run))
    return out
