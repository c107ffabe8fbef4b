"""The page: tables, the script and the style, and the episodes' data, put together into one file."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from stocktake_jax import __version__
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.benchmark import BenchResult, parameter_values
from stocktake_jax.evaluation.published import published_agents
from stocktake_jax.evaluation.scoring import Run, published_runs, score_runs
from stocktake_jax.evaluation.skill import ALL, AgentSkill, Costs, SkillTable, score
from stocktake_jax.models import FACTORS, World
from stocktake_jax.report import tables
from stocktake_jax.report.document import MOST_CHARACTERS, clean, episodes, has_published_agents

MANY = 8
"""Changed parameters of a world that are listed one by one."""


@dataclasses.dataclass(frozen=True)
class Report:
    """A page.

    Attributes:
        html: the whole file.
        document: the episodes' data in it; see `document.episodes`.
        warnings: what a reader must know before reading on; they stand at the top of the page.
    """

    html: str
    document: Mapping[str, Any]
    warnings: tuple[str, ...]


def make_report(result: BenchResult, runs: Sequence[Run] = (), *, most_characters: int = MOST_CHARACTERS) -> Report:
    """Make the page of a benchmark's results. The same results and runs always give the same page.

    Args:
        result: what `run_benchmark` or `read_results` gave.
        runs: agents' runs, labelled (`scoring.labelled`, `labels.relabelled`), whose books and rationales are shown.
        most_characters: of a rationale that are kept.

    Raises:
        InputError: if a run is of another world, has the name of a published agent, or is given twice.
    """
    _check(result, runs)
    added, warnings = _costs(result, runs)
    warnings = [*_warnings(result), *warnings]
    seeds = [of_seed.seed for of_seed in result.seeds]
    privileged = frozenset(run.agent for run in runs if run.privileged)
    own = _with(result.skill, added)
    published = _with(result.published, added) if result.published.references.seeds else None
    document = episodes(result, runs, most_characters)
    document["skill"] = [_forest(entry, privileged) for entry in own.agents]
    parts = {
        "title": f"STOCKTAKE benchmark: {len(seeds)} seeds, {result.options.replications} oracle runs each",
        "warnings": "".join(f'<p class="warning">{escape(text)}</p>\n' for text in warnings),
        "headline": _headline(result, own, privileged),
        "about": _about(result, runs),
        "references": tables.references(result).html(),
        "profiles": tables.profile_means(result).html(),
        "skill": tables.skill(own, published, privileged).html() + tables.skill_by_seed(own, privileged).html(),
        "beliefs": _beliefs(result, runs),
        "runs": _runs(runs, own, seeds),
        "runs_link": '<li><a href="#h-runs">Agents’ runs</a></li>\n' if runs else "",
        "episodes": "\n".join(_episode(row) for row in document["seeds"]),
    }
    return Report(_filled(parts, document), document, tuple(warnings))


def write_report(report: Report, path: str | os.PathLike[str]) -> int:
    """Write a page, as a whole or not at all.

    Returns:
        Its size in bytes.

    Raises:
        InputError: if the file cannot be written.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    content = report.html.encode()
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); give another -o FILE") from None
    return len(content)


# ---- what may be shown together -------------------------------------------------------------------------------------


def _check(result: BenchResult, runs: Sequence[Run]) -> None:
    true = result.options.true_world.to_toml()
    described: dict[int, str] = {}
    seen: set[tuple[str, int, int]] = set()
    for run in runs:
        which = f"agent {run.agent}, seed {run.seed}, repeat {run.repeat}"
        if id(run.world) not in described:
            described[id(run.world)] = run.world.to_toml()
        if run.ledger is not None and described[id(run.world)] != true:
            raise InputError(f"{which} was played in another world than the results; give journals of the same world")
        if (run.agent, run.seed, run.repeat) in seen:
            raise InputError(f"{which} is given twice")
        seen.add((run.agent, run.seed, run.repeat))
        if run.agent in published_agents() and has_published_agents(result):
            raise InputError(
                f"{run.agent} is the name of a published agent; call yours otherwise: --journals my-{run.agent}=FOLDER"
            )


def _costs(result: BenchResult, runs: Sequence[Run]) -> tuple[dict[str, dict[int, tuple[float, ...]]], list[str]]:
    """Costs of the agents that the benchmark has none of, and where journals contradict those that it has."""
    base = published_agents() if result.options.agents is None else result.options.agents
    added: dict[str, dict[int, tuple[float, ...]]] = {}
    warnings = []
    for run in runs:
        if run.agent not in base:
            by_seed = added.setdefault(run.agent, {})
            by_seed[run.seed] = (*by_seed.get(run.seed, ()), run.cost)
        elif not math.isnan(run.cost):
            listed = np.atleast_1d(np.asarray(base[run.agent].get(run.seed, ()), np.float64))
            if not (np.abs(listed - run.cost) < 0.005).any():
                warnings.append(
                    f"The benchmark's file of costs has none of {run.cost:,.2f} for agent {clean(run.agent)} on seed "
                    f"{run.seed}, which its journal comes to. The tables of skill follow the file."
                )
    return added, warnings


def _with(table: SkillTable, added: Costs) -> SkillTable:
    """A table with more agents; no agent's row depends on the others. Their contrasts are not on the page."""
    return (
        dataclasses.replace(table, agents=(*table.agents, *score(added, table.references).agents)) if added else table
    )


def _warnings(result: BenchResult) -> list[str]:
    out = []
    wanted, done = len(result.options.seeds), len(result.seeds)
    if done < wanted:
        out.append(
            f"This run is not finished: {done} of {wanted} seeds are there, and everything below is about those alone. "
            "The same `stocktake bench` command goes on where it stopped; then make this page again."
        )
    package = result.run.get("package")
    if package != __version__:
        out.append(
            f"The results were made with version {package} of stocktake-jax and this page with {__version__}; tapes and "
            "posteriors on it were computed by the latter."
        )
    if result.options.agents is None and not has_published_agents(result):
        out.append(
            "The published agents played the published world by the paper's rules, not what was run here. Their skill "
            "below is no result; their labels are left out."
        )
    return out


# ---- sections -------------------------------------------------------------------------------------------------------


def _forest(entry: AgentSkill, privileged: frozenset[str]) -> dict[str, Any]:
    e = entry.groups[ALL]
    numbers = {"mean": e.mean, "median": e.median, "low": e.percentile.low, "high": e.percentile.high}
    return {"agent": clean(tables.marked(entry.agent, privileged)), "n": e.n} | {
        k: None if math.isnan(x) else round(x, 4) for k, x in numbers.items()
    }


def _headline(result: BenchResult, own: SkillTable, privileged: frozenset[str]) -> str:
    floor, oracle = float(result.references.floor.mean()), float(result.references.oracle.mean())
    saving = f"{100 * (floor - oracle) / floor:.0f} %"
    tiles = [
        (
            saving,
            "cheaper than the floor is the fair oracle",
            f"on average, ${floor:,.0f} against ${oracle:,.0f} in 26 weeks",
        )
    ]
    agreement = result.agreement()
    if agreement is None:
        tiles.append((tables.DASH, "no comparison with the published oracle", _why_no_agreement(result)))
    else:
        gap = f"{'−' if agreement.mean < 0 else '+'}${abs(agreement.mean):.1f} ± {agreement.se:.1f}"
        far = f"{agreement.beyond_2} of {len(agreement.rows)} seeds beyond 2 standard errors, {agreement.beyond_3} beyond 3"
        tiles.append((gap, "this oracle less the published one, mean over seeds (± s.e.)", far))
    # An agent that was shown hidden states competes with nobody.
    ranked = [agent for agent in own.agents if agent.groups[ALL].n and agent.agent not in privileged]
    if ranked:
        best = max(ranked, key=lambda agent: agent.groups[ALL].mean)
        e = best.groups[ALL]
        where = f"{best.beats_floor} of {int((best.repeats > 0).sum())} seeds cheaper than the floor"
        tiles.append((tables.number(e.mean).text, f"best mean skill: {clean(best.agent)}", where))
    return "\n".join(
        f'<div class="tile"><p class="big">{escape(big)}</p><p>{escape(what)}</p><p class="note">{escape(more)}</p></div>'
        for big, what, more in tiles
    )


def _why_no_agreement(result: BenchResult) -> str:
    if not result.published.references.seeds:
        return "none of these seeds is among the published fifty"
    if result.options.replications < 2:
        return "one run a seed has no standard error"
    return "the options are not the published ones"


def _about(result: BenchResult, runs: Sequence[Run]) -> str:
    options, run = result.options, result.run
    futures = "190 + r in run r, as published" if options.futures is None else str(options.futures)
    rows = [
        ("seeds", f"{len(result.seeds)} of {len(options.seeds)}"),
        ("oracle runs per seed", str(options.replications)),
        ("futures per decision", futures),
        ("filters", f"{options.likelihood} likelihood, {options.initial} start"),
        ("rules of the books", options.rules),
        ("world of tapes, books and floor", _world(options.true_world)),
        ("world that the oracle believes in", _world(options.model)),
        ("agents", "the four published ones" if options.agents is None else ", ".join(map(clean, options.agents))),
        ("stocktake-jax", str(run.get("package"))),
        ("made with", "; ".join(sorted({of_seed.made_with for of_seed in result.seeds}))),
    ]
    if runs:
        given = dict.fromkeys(clean(r.agent) for r in runs)
        rows.append(("journals", f"{len(runs)} runs of {', '.join(given)}"))
    for name in ("python", "jax", "jaxlib", "numpy", "platform"):
        if name in run:
            rows.append((name, str(run[name])))
    if isinstance(device := run.get("device"), Mapping):
        rows.append(("device", f"{device.get('count')} × {device.get('kind')}"))
    if isinstance(seconds := run.get("seconds"), (int, float)):
        rows.append(("time of the last call", f"{seconds:.1f} s, {run.get('seeds_resumed', 0)} seeds there already"))
    return "\n".join(f"<div><dt>{escape(name)}</dt><dd>{escape(clean(text))}</dd></div>" for name, text in rows)


def _world(world: World) -> str:
    mine, paper = (dict(parameter_values(w.to_toml())) for w in (world, World.paper()))
    changed = [f"{name} = {value} (published: {paper[name]})" for name, value in mine.items() if paper[name] != value]
    if not changed:
        return "the published one"
    more = f", and {len(changed) - MANY} more" if len(changed) > MANY else ""
    return f"with {', '.join(changed[:MANY])}{more}"


def _beliefs(result: BenchResult, runs: Sequence[Run]) -> str:
    seeds = {of_seed.seed for of_seed in result.seeds}
    theirs = [run for run in published_runs() if run.seed in seeds] if has_published_agents(result) else []
    # Without their ledgers: what is computed from those, and takes long, is not on the page.
    mine = [dataclasses.replace(r, ledger=None) for r in runs if r.seed in seeds and r.statements is not None]
    if not theirs and not mine:
        return "<p>No labelled rationales: the published agents' labels are of other tapes, and no journals were given.</p>"
    # One resample: the intervals, which take the time, are not on the page.
    board = score_runs([*mine, *theirs], result.references, resamples=1)
    notes = (
        "A factor is under stress in the regimes that the page shades; weeks 1 to 25 are scored. Stockouts are the books'. "
        "`stocktake score` prints intervals, tests, and what every measure counts."
    )
    return (
        tables.detection(board).html() + tables.knowing_doing(board).html() + f'<p class="note">{escape(notes)}</p>\n'
    )


def _runs(runs: Sequence[Run], own: SkillTable, seeds: Sequence[int]) -> str:
    if not runs:
        return ""
    table = tables.agents_runs(runs, own, seeds).html()
    return f'<section aria-labelledby="h-runs">\n<h2 id="h-runs">Agents’ runs</h2>\n{table}</section>'


def _episode(row: Mapping[str, Any]) -> str:
    seed, profile = row["seed"], row["profile"]
    money = [f"{row['floor'] / 100:,.0f}", f"{row['oracle']['mean'] / 100:,.0f}"]
    if row.get("withheld"):
        told = "left out: an episode on it is not finished"
    else:
        told = "stress: " + (", ".join(dict.fromkeys(FACTORS[factor] for factor, *_ in row["stress"])) or "none")
        agents = dict.fromkeys(run["name"] for run in row["runs"] if run["who"] == "agent")
        told += f"; journals: {', '.join(agents)}" if agents else ""
    return (
        f'<details class="episode" id="seed-{seed}" data-profile="{profile}">\n<summary><h3>Seed {seed}</h3> '
        f'<span class="told">{profile}; floor ${money[0]}, oracle ${money[1]}; <bdi>{escape(told)}</bdi></span></summary>\n'
        '<div class="inside"></div>\n</details>'
    )


# ---- the file -------------------------------------------------------------------------------------------------------


def embedded(document: Mapping[str, Any]) -> str:
    """JSON that can stand in a script element whatever its texts hold."""
    text = json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # No "<" means no end tag, no comment and no nested script; the others end a line in old readers of JavaScript.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _filled(parts: Mapping[str, str], document: Mapping[str, Any]) -> str:
    folder = files("stocktake_jax.report")
    template, style, script = (
        folder.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    # Only this style and this script may run, and nothing may be fetched from anywhere.
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    plain = {name: parts[name] for name in parts if name != "title"}
    return Template(template).substitute(
        plain,
        title=escape(parts["title"]),
        policy=policy,
        style=style,
        script=script,
        data=embedded(document),
        version=escape(__version__),
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
