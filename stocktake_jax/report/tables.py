"""The page's tables: plain HTML that is complete without the script, which then makes them sortable and filterable."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

from stocktake_jax.evaluation.benchmark import BenchResult
from stocktake_jax.evaluation.scoring import Run, ScoreBoard
from stocktake_jax.evaluation.skill import GROUPS, SkillTable
from stocktake_jax.report.document import clean, unfinished_seeds

DASH = "–"
SEES = "sees hidden states"


class Cell(NamedTuple):
    """What a cell shows, and what it is sorted by: a number, or else its text.

    Attributes:
        text: shown.
        value: for sorting; None where there is none, which sorts last.
        link: a place on the page, or nothing.
    """

    text: str
    value: float | None = None
    link: str = ""


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Attributes:
        name: its id.
        caption: what it is.
        columns: title -> what it means; an empty text where the title says it.
        rows: cells of each row; the first one names it.
        profiles: of each row, what the profile filter compares; empty: there is no such filter.
        words: the first so many columns are text, all others numbers.
        notes: lines under it.
    """

    name: str
    caption: str
    columns: Mapping[str, str]
    rows: Sequence[Sequence[Cell]]
    profiles: Sequence[str] = ()
    words: int = 1
    notes: Sequence[str] = field(default_factory=tuple)

    def html(self) -> str:
        """The table, in a frame that can be scrolled when the window is narrow."""
        head = "".join(
            f'<th scope="col"{_kind(i < self.words)}{_title(about)}>{escape(title)}</th>'
            for i, (title, about) in enumerate(self.columns.items())
        )
        body = "\n".join(self._row(i, row) for i, row in enumerate(self.rows))
        notes = "".join(f'<p class="note">{escape(note)}</p>\n' for note in self.notes)
        what = ' data-profiles="1"' if self.profiles else ""
        return (
            f'<div class="frame" tabindex="0" role="region" aria-labelledby="{self.name}-caption">\n'
            f'<table id="{self.name}"{what}>\n<caption id="{self.name}-caption"><span>{escape(self.caption)}</span></caption>\n'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>\n{notes}{self._meanings()}"
        )

    def _meanings(self) -> str:
        """The columns' meanings for whoever cannot point at them."""
        rows = [f"<dt>{escape(title)}</dt><dd>{escape(about)}</dd>" for title, about in self.columns.items() if about]
        if not rows:
            return ""
        return f'<details class="data"><summary>What the columns mean</summary><dl>{"".join(rows)}</dl></details>\n'

    def _row(self, i: int, row: Sequence[Cell]) -> str:
        profile = f' data-profile="{escape(self.profiles[i])}"' if self.profiles else ""
        return f"<tr{profile}>{''.join(_cell(cell, j, j < self.words) for j, cell in enumerate(row))}</tr>"


def _kind(word: bool) -> str:
    return "" if word else ' class="number"'


def _title(about: str) -> str:
    return f' title="{escape(about)}"' if about else ""


def _cell(cell: Cell, column: int, word: bool) -> str:
    text = escape(cell.text)
    if cell.link:
        text = f'<a href="{escape(cell.link)}">{text}</a>'
    if word:
        text = f"<bdi>{text}</bdi>"  # a name from a file may be in a script that runs from right to left
    value = "" if cell.value is None else f' data-value="{cell.value!r}"'
    return f'<th scope="row"{value}>{text}</th>' if column == 0 else f"<td{_kind(word)}{value}>{text}</td>"


# ---- cells ----------------------------------------------------------------------------------------------------------


def word(text: str) -> Cell:
    """A name, possibly from a user's file."""
    return Cell(clean(text))


def number(x: float | None, decimals: int = 2, *, sign: bool = False) -> Cell:
    """A number; a dash where it is undefined."""
    if x is None or math.isnan(x):
        return Cell(DASH)
    text = f"{x:{'+' if sign else ''},.{decimals}f}"
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("+-")
    return Cell(text.replace("-", "−"), float(x))


def money(dollars: float | None, *, sign: bool = False) -> Cell:
    """Dollars to the cent."""
    return number(dollars, 2, sign=sign)


def seed_link(seed: int) -> Cell:
    """A seed, linked to its episode."""
    return Cell(str(seed), seed, f"#seed-{seed}")


# ---- the tables of a benchmark --------------------------------------------------------------------------------------


def references(result: BenchResult) -> Table:
    """Floor and oracle by seed, beside the published oracle where the two may be compared."""
    agreement = result.agreement()
    theirs = {row["seed"]: row for row in agreement.rows} if agreement else {}
    columns = {
        "seed": "a link to its episode",
        "profile": "which stress its tape has",
        "floor": "cost of the base-stock floor, $",
        "oracle": "mean cost of the fair oracle, $",
        "s.e.": "standard error of that mean",
        "min": "its cheapest run",
        "max": "its dearest run",
        "headroom": "floor less oracle; skill has no scale where it is not above 0",
    }
    if theirs:
        columns |= {
            "published": "the published oracle's mean, $",
            "difference": "this oracle less the published one",
            "in s.e.": "that difference in standard errors of both",
        }
    rows = []
    for i, row in enumerate(result.to_json()["seeds"]):
        oracle, ref = row["oracle"], result.references
        cells = [seed_link(row["seed"]), Cell(row["profile"]), money(row["floor"]), money(oracle["mean"])]
        cells += [money(oracle["se"]), money(oracle["min"]), money(oracle["max"])]
        cells.append(money(float(ref.floor[i] - ref.oracle[i])))
        if theirs:
            other = theirs.get(row["seed"])
            gap = None if other is None else other["difference"]
            in_se = None if other is None or not other["difference_se"] else gap / other["difference_se"]
            published = None if other is None else other["published"]
            cells += [money(published), money(gap, sign=True), number(in_se, 1, sign=True)]
        rows.append(cells)
    caption = f"References by seed: dollars in 26 weeks; the oracle is the mean of {result.options.replications} runs"
    return Table("references", caption, columns, rows, [r.profile for r in result.seeds], words=2)


def profile_means(result: BenchResult) -> Table:
    """Means by profile."""
    ref = result.references
    rows = []
    for group in GROUPS:
        of = ref.in_group(group)
        if not of.any():
            rows.append([Cell(group), Cell("0", 0), *[Cell(DASH)] * 5])
            continue
        floor, oracle = float(ref.floor[of].mean()), float(ref.oracle[of].mean())
        lacking = int((~ref.scoreable & of).sum())
        cells = [Cell(group), number(int(of.sum()), 0), money(floor), money(oracle), money(floor - oracle)]
        rows.append([*cells, number(100 * (floor - oracle) / floor, 1), number(lacking, 0)])
    columns = {
        "profile": "",
        "seeds": "",
        "floor": "mean, $",
        "oracle": "mean, $",
        "headroom": "floor less oracle, $",
        "headroom, %": "of the floor",
        "without headroom": "seeds on which the floor is no dearer than the oracle; they have no skill",
    }
    return Table("profiles", "Means by profile: dollars in 26 weeks", columns, rows, list(GROUPS))


def skill(own: SkillTable, published: SkillTable | None, privileged: frozenset[str] = frozenset()) -> Table:
    """Skill by agent and profile, against this run's references and the published ones."""
    columns = {
        "agent": "",
        "profile": "",
        "seeds": "with a skill",
        "mean": "mean skill: 0 as dear as the floor, 1 as cheap as the oracle",
        "median": "",
        "low": "95 % bootstrap interval of the mean, lower end",
        "high": "upper end",
        "below floor": "seeds with a skill below 0",
        "above oracle": "seeds with a skill above 1",
    }
    if published is not None:
        columns |= {"mean, published": "against the published references", "median, published": ""}
    rows, profiles = [], []
    for entry in own.agents:
        for group, e in entry.groups.items():
            of = own.references.in_group(group)
            values = entry.skill[of]
            counts = (int((values < 0).sum()), int((values > 1).sum()))
            cells = [word(marked(entry.agent, privileged)), Cell(group), number(e.n, 0)]
            cells += [number(x) for x in (e.mean, e.median, e.percentile.low, e.percentile.high)]
            cells += [number(x, 0) if e.n else Cell(DASH) for x in counts]
            if published is not None:
                p = published[entry.agent].groups[group]
                cells += [number(p.mean), number(p.median)]
            rows.append(cells)
            profiles.append(group)
    notes = ["Skill is (floor − cost) / (floor − oracle), seed by seed: 0 is the floor, 1 the fair oracle."]
    if own.excluded:
        seeds = ", ".join(map(str, own.excluded))
        notes.append(f"Not scoreable, because the floor is no dearer than the oracle: {seeds}.")
    caption = "Skill by agent and profile, against this run's references"
    return Table("skill", caption, columns, rows, profiles, words=2, notes=notes)


def skill_by_seed(own: SkillTable, privileged: frozenset[str] = frozenset()) -> Table:
    """Skill by agent and seed."""
    rows, profiles = [], []
    for row in own.seed_rows():
        if not row["repeats"]:
            continue
        cost, floor, oracle, value = (_float(row[name]) for name in ("cost", "floor", "oracle", "skill"))
        cells = [
            seed_link(int(str(row["seed"]))),
            word(marked(str(row["agent"]), privileged)),
            Cell(str(row["profile"])),
        ]
        gap = None if cost is None or oracle is None else cost - oracle
        rows.append([*cells, money(cost), money(floor), money(oracle), money(gap, sign=True), number(value)])
        profiles.append(str(row["profile"]))
    columns = {
        "seed": "a link to its episode",
        "agent": "",
        "profile": "",
        "cost": "the agent's, mean over repeats, $",
        "floor": "$",
        "oracle": "mean, $",
        "above oracle": "cost less the oracle's, $",
        "skill": "",
    }
    return Table("skill-by-seed", "Skill by seed and agent", columns, rows, profiles, words=3)


def _float(x: object) -> float | None:
    return x if isinstance(x, float) else None


def marked(agent: str, privileged: frozenset[str]) -> str:
    """An agent's name, which says so if it was shown hidden states."""
    return f"{agent} ({SEES})" if agent in privileged else agent


# ---- what agents saw, and what they did -----------------------------------------------------------------------------

_DETECTION = {
    "missed": ("missed, %", 100, 1, "stress episodes whose factor is never named from their onset on"),
    "missed_bounded": ("missed in time, %", 100, 1, "the same, naming counting until one week after the episode"),
    "mean_lag": ("lag, weeks", 1, 2, "from onset to the first naming, over the episodes that are named"),
    "detected_in_budget": ("in budget, %", 100, 1, "named in time if one name a week counts"),
    "precision": ("precision, %", 100, 1, "names whose factor is under stress, of all names"),
    "names_calm": ("false names, %", 100, 1, "names whose factor is neither under stress nor brewing, of all names"),
    "names_per_week": ("names a week", 1, 2, "in a graded week"),
    "missed_paper": ("missed (paper), %", 100, 1, "counting episodes that begin in week 26, which nobody can name"),
}
_KNOWING = {
    "diagnosed": ("diagnosed, %", 100, 1, "weeks with stress in which a factor under stress is named"),
    "knowing_doing": ("knowing–doing, %", 100, 1, "diagnosed weeks with a stockout, by the books"),
    "knowing_doing_full": (
        "all named, %",
        100,
        1,
        "weeks in which every factor under stress is named, with a stockout",
    ),
    "stockout_undiagnosed": ("undiagnosed, %", 100, 1, "weeks with stress and no right name, with a stockout"),
    "stockout_calm": ("calm, %", 100, 1, "weeks without stress, with a stockout"),
}


def detection(board: ScoreBoard) -> Table:
    """Whether stress was named, and when."""
    counts = {"stress episodes": ("missed", "that begin by week 25")}
    caption = "Detection: is a factor under stress named in the week's rationale, and when?"
    return _rates("detection", caption, board, _DETECTION, counts)


def knowing_doing(board: ScoreBoard) -> Table:
    """Whether naming it kept the shelf from running empty."""
    counts = {"weeks with stress": ("diagnosed", "graded ones"), "diagnosed weeks": ("knowing_doing", "")}
    caption = "Knowing and doing: how often does the shelf run empty although the trouble is named?"
    return _rates("knowing", caption, board, _KNOWING, counts, quoted=True)


def _rates(
    name: str,
    caption: str,
    board: ScoreBoard,
    metrics: Mapping[str, tuple[str, int, int, str]],
    counts: Mapping[str, tuple[str, str]],
    *,
    quoted: bool = False,
) -> Table:
    agents = [agent for agent in board.agents if "missed" in board.rates[agent]]
    columns = {"agent": "", "profile": ""} | {title: about for title, (_, about) in counts.items()}
    columns |= {title: about for title, _, _, about in metrics.values()}
    if quoted := quoted and any(board.quoted.get(agent) for agent in agents):
        columns["quoted, %"] = "the knowing–doing rate as the paper prints it, from stockouts without units flown in"
    rows, profiles = [], []
    for agent in agents:
        for group in GROUPS:
            rates = board.rates[agent]
            cells = [word(marked(agent, board.privileged)), Cell(group)]
            cells += [number(rates[metric][group].rate.denominator, 0) for metric, _ in counts.values()]
            for metric, (_, scale, decimals, _) in metrics.items():
                cells.append(number(scale * rates[metric][group].rate.value, decimals))
            if quoted:
                printed = board.quoted.get(agent, {}).get("knowing_doing_quoted", {}).get(group)
                cells.append(number(None if printed is None else 100 * printed[0], 0))
            rows.append(cells)
            profiles.append(group)
    return Table(name, caption, columns, rows, profiles, words=2)


def agents_runs(runs: Iterable[Run], own: SkillTable, seeds: Sequence[int]) -> Table:
    """The runs that the user gave: finished ones, and unfinished ones of which nothing hidden is told."""
    runs = list(runs)
    hidden = unfinished_seeds(runs)
    references = {seed: i for i, seed in enumerate(own.references.seeds)}
    rows = []
    for run in runs:
        state, skill_of = "finished", None
        if math.isnan(run.cost):
            state = "unfinished" if run.seed in hidden and run.statements is None else "labels alone"
        elif run.ledger is None:
            state = "cost alone"
        if run.seed not in references:
            state += ", seed not in these results"
        elif not math.isnan(run.cost):
            i = references[run.seed]
            room = float(own.references.floor[i] - own.references.oracle[i])
            skill_of = (float(own.references.floor[i]) - run.cost) / room if room > 0 else None
        link = seed_link(run.seed) if run.seed in seeds else Cell(str(run.seed), run.seed)
        cells = [link, word(marked(run.agent, frozenset([run.agent] if run.privileged else []))), Cell(state)]
        cells += [word(str(run.notes.get("grader") or DASH)), number(run.repeat, 0), money(run.cost), number(skill_of)]
        rows.append(cells)
    columns = {
        "seed": "a link to its episode",
        "agent": "",
        "state": "",
        "labels by": "who labelled the rationales",
        "repeat": "",
        "cost": "$",
        "skill": "of this run",
    }
    notes = []
    if hidden:
        listed = ", ".join(map(str, sorted(hidden)))
        notes.append(
            f"An unfinished episode may still be played, so nothing hidden is told of its seed: the episode of {listed} "
            "is left out below. Make the page again when it is finished, or without its journal."
        )
    return Table("runs", "Agents' runs that were given for this page", columns, rows, words=4, notes=notes)
