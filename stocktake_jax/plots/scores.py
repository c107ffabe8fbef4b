"""What agents were worth: skill, detection, and what they do with what they know."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.scoring import ScoreBoard
from stocktake_jax.evaluation.skill import ALL, GROUPS, AgentSkill, SkillTable
from stocktake_jax.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    VERMILLION,
    Axes,
    Canvas,
    axes_of,
    headline,
    new_figure,
    styled,
)

# ---- skill ----------------------------------------------------------------------------------------------------------

FARTHEST = -2.0
"""Skills below this are drawn as arrows at the edge: one seed far below the floor would flatten everything else."""


@styled
def skill(
    table: SkillTable,
    *,
    groups: Sequence[str] | None = None,
    lowest: float = FARTHEST,
    title: str | None = None,
    figure: Canvas | None = None,
) -> dict[str, Axes]:
    """Every agent's skill on every seed, by stress profile, with means, their intervals, and medians.

    Args:
        table: the agents' skills.
        groups: profiles, or "all"; by default those that have a scoreable seed, and all.
        lowest: skills below this are arrows at the edge, with their number.
        title: of the figure; by default which agent has the highest mean.
        figure: to draw in; a new one by default.

    Returns:
        group -> axes.

    Raises:
        InputError: for no agents, an unknown group, or a group without seeds.
    """
    if not table.agents:
        raise InputError("there are no agents in the table")
    some = {g: bool((table.references.in_group(g) & table.references.scoreable).any()) for g in GROUPS}
    chosen = [g for g in GROUPS if some[g]] if groups is None else list(groups)
    for g in chosen:
        if not some.get(g):
            raise InputError(
                f"no scoreable seed in the group {g!r}; there are {', '.join(x for x in GROUPS if some[x])}"
            )
    agents = sorted(table.agents, key=lambda a: -_or(a.groups[ALL].mean, -math.inf))
    figure = figure if figure is not None else new_figure(max(2.9 * len(chosen) + 1.2, 5.8), 0.62 * len(agents) + 1.7)
    panels = figure.subplots(1, len(chosen), sharex=True, sharey=True, squeeze=False)[0]
    for group, ax in zip(chosen, panels, strict=True):
        of = table.references.in_group(group) & table.references.scoreable
        for row, agent in enumerate(agents):
            _skill_row(ax, row, agent, group, agent.skill[of], lowest)
        for x, name in ((0.0, "floor"), (1.0, "oracle")):
            ax.axvline(x, color=GREY, linewidth=1.0, linestyle=":" if name == "oracle" else "-", zorder=0)
            ax.annotate(
                name,
                (x, 1.0),
                xycoords=("data", "axes fraction"),
                fontsize=7.5,
                color="#444444",
                ha="center",
                va="bottom",
            )
        ax.set_title(f"{group} ({int(of.sum())} seeds)", fontweight="bold", pad=14)
        ax.set_xlabel("skill (floor 0, oracle 1)")
        ax.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(agents)), [a.agent for a in agents])
    panels[0].set_ylim(len(agents) - 0.4, -0.6)
    highest = max([1.2, *(float(np.nanmax(a.skill)) for a in agents if np.isfinite(a.skill).any())])
    least = min([-0.2, *(float(np.nanmin(a.skill)) for a in agents if np.isfinite(a.skill).any())])
    panels[0].set_xlim(max(least, lowest) - 0.15, highest + 0.1)
    best = agents[0]
    mean = best.groups[ALL].mean
    said = f"{best.agent} has the highest mean skill, {mean:.2f}" if mean == mean else "Skill"
    if len(agents) > 1 and mean == mean:
        said += f"; {agents[-1].agent} the lowest, {agents[-1].groups[ALL].mean:.2f}"
    headline(figure, title or said)
    _skill_legend(figure)
    return dict(zip(chosen, panels, strict=True))


def _skill_row(ax: Axes, row: int, agent: AgentSkill, group: str, skills: np.ndarray, lowest: float) -> None:
    good = np.sort(skills[np.isfinite(skills)])
    inside = good[good >= lowest]
    # Seeds beside each other in turn, so that equal skills do not hide each other; no randomness.
    offset = 0.18 + 0.09 * (np.arange(len(inside)) % 3 - 1)
    ax.plot(inside, row + offset, linestyle="none", marker="o", markersize=3.2, color=BLUE, alpha=0.55, mew=0)
    beyond = len(good) - len(inside)
    if beyond:
        ax.plot(lowest, row + 0.4, linestyle="none", marker="<", markersize=4.5, color=BLUE)
        ax.annotate(
            f"{beyond} farther below",
            (lowest, row + 0.4),
            xytext=(5, 0),
            textcoords="offset points",
            fontsize=7,
            color=BLUE,
            va="center",
        )
    e = agent.groups[group]
    if e.n == 0:
        return
    if e.percentile.low == e.percentile.low:
        left, right = max(e.percentile.low, lowest), e.percentile.high
        ax.plot([left, right], [row - 0.14, row - 0.14], color=BLACK, linewidth=2.0, solid_capstyle="butt")
    ax.plot(max(e.mean, lowest), row - 0.14, marker="D", color=BLACK, markersize=5.5, linestyle="none")
    ax.plot(max(e.median, lowest), row - 0.14, marker="|", color=VERMILLION, markersize=13, mew=2.2, linestyle="none")
    ax.annotate(
        f"{e.mean:.2f}",
        (max(e.mean, lowest), row - 0.14),
        xytext=(0, 6),
        textcoords="offset points",
        fontsize=7.5,
        ha="center",
    )


def _skill_legend(figure: Canvas) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            color=BLACK,
            marker="D",
            markersize=5.5,
            linewidth=2.0,
            label="mean and its 95 % interval over seeds",
        ),
        Line2D([], [], color=VERMILLION, marker="|", markersize=11, mew=2.2, linestyle="none", label="median"),
        Line2D([], [], color=BLUE, marker="o", markersize=4, linestyle="none", alpha=0.6, label="one seed"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)


def _or(x: float, other: float) -> float:
    return x if x == x else other


# ---- rates ----------------------------------------------------------------------------------------------------------

Scores = ScoreBoard | Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]
"""A score board, or the document that `stocktake score --json` prints: agent -> metric -> group -> value."""


class _Value(NamedTuple):
    value: float
    low: float
    high: float
    denominator: float


def _values(scores: Scores, metric: str, group: str) -> dict[str, _Value]:
    """agent -> value, interval (nan where none is known) and denominator of a metric."""
    if isinstance(scores, ScoreBoard):
        found = {
            agent: (e.rate.value, e.interval.low, e.interval.high, e.rate.denominator)
            for agent in scores.agents
            if (e := scores.rates[agent].get(metric, {}).get(group)) is not None
        }
        return {agent: _Value(*map(float, row)) for agent, row in found.items()}
    out = {}
    for agent, metrics in scores.items():
        cell = metrics.get(metric, {}).get(group)
        if cell is not None:
            row = (cell.get(k) for k in ("value", "low", "high", "denominator"))
            out[agent] = _Value(*(math.nan if x is None else float(x) for x in row))
    return out


def _agents(scores: Scores, metrics: Sequence[str], group: str) -> list[str]:
    known = list(scores.agents if isinstance(scores, ScoreBoard) else scores)
    having = [a for a in known if any(a in _values(scores, m, group) for m in metrics)]
    if not having:
        raise InputError(
            f"nobody has any of {', '.join(metrics)} in the group {group!r}; are there labels in the scores?"
        )
    return having


DETECTION = (
    ("missed_bounded", "never named in time", "% of stress episodes", 100.0, "less is better"),
    ("mean_lag_bounded", "named after", "weeks from the onset", 1.0, "less is better"),
    ("precision", "names that are right", "% of all names", 100.0, "more is better"),
)
"""Panels of `detection`: metric, title, unit, scale, what is good."""


@styled
def detection(
    scores: Scores, *, group: str = ALL, title: str | None = None, figure: Canvas | None = None
) -> dict[str, Axes]:
    """How well agents' rationales find stress: what they miss, how late they are, how often they are right.

    Args:
        scores: see `Scores`; a board carries intervals.
        group: a stress profile, or "all".
        title: of the figure; by default who misses least.
        figure: to draw in; a new one by default.

    Returns:
        metric -> axes.

    Raises:
        InputError: if no agent has these metrics in the group.
    """
    names = [m for m, *_ in DETECTION]
    agents = _agents(scores, names, group)
    missed = _values(scores, names[0], group)
    agents.sort(key=lambda a: _or(missed[a].value if a in missed else math.nan, math.inf))
    figure = figure if figure is not None else new_figure(10.0, 0.42 * len(agents) + 1.7)
    panels = figure.subplots(1, len(DETECTION), sharey=True)
    for (metric, said, unit, scale, good), ax in zip(DETECTION, panels, strict=True):
        values = _values(scores, metric, group)
        for row, agent in enumerate(agents):
            if agent not in values or math.isnan(values[agent].value):
                ax.annotate(
                    "none", (0.02, row), xycoords=("axes fraction", "data"), fontsize=8, color=GREY, va="center"
                )
                continue
            v = values[agent]
            _dot(ax, v.value * scale, v.low * scale, v.high * scale, row, BLUE, "o")
            ax.annotate(
                f"{v.value * scale:.0f} %" if scale == 100.0 else f"{v.value * scale:.1f}",
                (v.value * scale, row),
                xytext=(0, 6),
                textcoords="offset points",
                fontsize=8,
                ha="center",
            )
        ax.set_title(said, fontweight="bold")
        ax.set_xlabel(f"{unit} ({good})")
        high = ax.get_xlim()[1]
        ax.set_xlim(0, 100 if scale == 100.0 else max(high * 1.1, 1.0))
        ax.grid(axis="x")
        ax.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(agents)), agents)
    panels[0].set_ylim(len(agents) - 0.5, -0.7)
    best = agents[0]
    told = f"{best} names {1 - missed[best].value:.0%} of stress episodes in time" if best in missed else "Detection"
    headline(figure, title or told + ("" if group == ALL else f" ({group} seeds)"))
    return dict(zip(names, panels, strict=True))


def _dot(ax: Axes, x: float, low: float, high: float, row: float, color: str, marker: str) -> None:
    if low == low and high == high:
        ax.plot([low, high], [row, row], color=color, linewidth=1.6, solid_capstyle="butt")
    ax.plot(x, row, marker=marker, color=color, markersize=6.5, linestyle="none", mec="white", mew=0.6)


KNOWING = (
    ("stockout_calm", "no stress", GREEN, "^"),
    ("stockout_undiagnosed", "stress, not named", ORANGE, "s"),
    ("knowing_doing", "stress, named", VERMILLION, "o"),
)


@styled
def knowing_doing(scores: Scores, *, group: str = ALL, title: str | None = None, ax: Axes | None = None) -> Axes:
    """How often the shelf runs empty in calm weeks, in stress that goes unnamed, and in stress that the agent names.

    Who acts on what they know runs out of stock no more often in weeks whose trouble they name.

    Args:
        scores: see `Scores`; a board carries intervals.
        group: a stress profile, or "all".
        title: by default for how many agents naming the trouble goes with more stockouts.
        ax: to draw in; new ones by default.

    Raises:
        InputError: if no agent has these metrics in the group.
    """
    names = [m for m, *_ in KNOWING]
    agents = _agents(scores, names, group)
    values = {m: _values(scores, m, group) for m in names}

    def gap(agent: str) -> float:
        nothing = _Value(math.nan, math.nan, math.nan, 0)
        return (
            values["knowing_doing"].get(agent, nothing).value - values["stockout_undiagnosed"].get(agent, nothing).value
        )

    agents.sort(key=lambda a: -_or(gap(a), -math.inf))
    ax = axes_of(ax, 8.0, 0.62 * len(agents) + 1.6)
    for row, agent in enumerate(agents):
        known = [
            values[m][agent].value
            for m in names
            if agent in values[m] and values[m][agent].value == values[m][agent].value
        ]
        if known:
            ax.plot(
                [100 * min(known), 100 * max(known)],
                [row, row],
                color=PALE,
                linewidth=5,
                solid_capstyle="round",
                zorder=0,
            )
        for k, (metric, _, color, marker) in enumerate(KNOWING):
            v = values[metric].get(agent)
            if v is None or math.isnan(v.value):
                continue
            at = row + 0.16 * (k - 1)
            _dot(ax, 100 * v.value, 100 * v.low, 100 * v.high, at, color, marker)
            ax.annotate(
                f"{100 * v.value:.0f} %",
                (100 * (v.high if v.high == v.high else v.value), at),
                xytext=(6, 0),
                textcoords="offset points",
                fontsize=7.5,
                va="center",
            )
    ax.set_yticks(range(len(agents)), agents)
    ax.set_ylim(len(agents) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.set_xlabel("weeks with a stockout (% of such weeks)")
    ax.grid(axis="x")
    ax.tick_params(axis="y", length=0)
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=c, marker=m, linestyle="none", markersize=6.5, label=s) for _, s, c, m in KNOWING]
    ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), title="weeks with")
    gaps = [gap(a) for a in agents if gap(a) == gap(a)]
    more = sum(g > 0 for g in gaps)
    said = f"{more} of {len(gaps)} agents run out of stock more often when they name the trouble than when they do not"
    ax.set_title((title or said) + ("" if group == ALL or title else f" ({group} seeds)"))
    return ax
