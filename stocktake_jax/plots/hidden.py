"""The hidden world and what can be known of it: tapes, posteriors, two filters side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stocktake_jax.desk.contracts import host
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.catalog import stress
from stocktake_jax.models import FACTORS, Factor, Tape, World
from stocktake_jax.models.quality import RESULTS
from stocktake_jax.models.supplier import WORDS
from stocktake_jax.plots.style import (
    BLACK,
    BREWING,
    GREY,
    LOOKS,
    ORANGE,
    STRESS,
    Axes,
    Canvas,
    Look,
    axes_of,
    first_free,
    headline,
    new_figure,
    runs_of,
    shade,
    styled,
    weeks_axis,
    words,
)

# ---- tapes ----------------------------------------------------------------------------------------------------------


class _Line(NamedTuple):
    channel: str
    name: str
    scale: float = 1.0


STRIPS: dict[str, tuple[str, tuple[_Line, ...]]] = {
    "canal": (
        "transits\n(ships/week)",
        (_Line("suez_count", "Suez"), _Line("bab_count", "Bab-el-Mandeb"), _Line("cape_count", "Cape")),
    ),
    "supplier": ("days", (_Line("realized_lead_slip", "lead slip (days)"),)),
    "demand": ("units/week", (_Line("pos_units", "demand"), _Line("demand_forecast", "forecast"))),
    "freight": ("index\n(100 = normal)", (_Line("freight_index", "charged"), _Line("freight_outlook", "outlook"))),
    "port": ("berth wait\n(days)", (_Line("berth_wait", "this week"), _Line("wait_outlook", "outlook"))),
    "quality": ("inspection", (_Line("aql_result", "result"),)),
}
"""Factor -> label of its axis, and the numeric readings that are drawn."""


@styled
def tape(
    tape: Tape, world: World | None = None, *, title: str | None = None, figure: Canvas | None = None
) -> dict[str, Axes]:
    """An episode's tape: a strip a factor, with its readings over its hidden regimes.

    Weeks under stress are shaded and hatched, weeks in which stress is brewing are shaded lightly, and the regime's name
    stands over them. Readings are those of a buyer who orders from spot every week, so that its fill is read.

    Args:
        tape: a single tape.
        world: its world; the published one by default.
        title: of the figure; by default how much stress there is.
        figure: to draw in; a new one by default.

    Returns:
        factor -> axes.

    Raises:
        InputError: for a batch of tapes.
    """
    world = world or World.paper()
    stressed = stress(tape, world)
    if stressed.ndim != 2:
        raise InputError(f"a figure shows one tape, not a batch of shape {stressed.shape[1:-1]}")
    weeks = stressed.shape[1]
    figure = figure if figure is not None else new_figure(9.5, 9.5)
    panels = figure.subplots(len(FACTORS), 1, sharex=True)
    readings = tape.readings(world, host(np.ones(weeks), np.bool_))
    regimes = tape.regimes(world)
    for i, (name, ax) in enumerate(zip(FACTORS, panels, strict=True)):
        factor, states = world.factors[name], np.asarray(tape.states[name])
        shade(ax, factor.brewing_mask[states], BREWING)
        shade(ax, stressed[i], STRESS, "////")
        lines = _name_regimes(ax, regimes[name], factor)
        shown = {k: np.asarray(v, np.float64) for k, v in readings[name].items()}
        _strip(ax, name, shown)
        ax.set_title(name, fontweight="bold", pad=5 + 9 * max(lines, 1))
        weeks_axis(ax, weeks, label=i == len(FACTORS) - 1)
    total = int(stressed.any(0).sum())
    most = int(stressed.sum(0).max())
    said = f"Stress in {total} of {weeks - 1} weeks, "
    said += f"in up to {most} factors at once" if most > 1 else "never in two factors at once"
    headline(figure, title or said)
    _legend_of_shades(figure)
    return dict(zip(FACTORS, panels, strict=True))


def _strip(ax: Axes, name: str, shown: Mapping[str, np.ndarray]) -> None:
    """The readings of one factor."""
    label, lines = STRIPS[name]
    week = np.arange(len(next(iter(shown.values()))))
    ends = []
    for look, line in zip(LOOKS, lines, strict=False):
        y = shown[line.channel]
        style = "none" if name == "quality" else look.line
        ax.plot(week, y, color=look.color, linestyle=style, marker=look.marker, markersize=3.5, label=line.name)
        ends.append((float(y[-1]), line.name, look))
    ax.set_ylabel(label)
    if name == "quality":
        ax.set_yticks(range(len(RESULTS)), RESULTS)
        ax.set_ylim(-0.5, len(RESULTS) - 0.5)
        return
    if name == "supplier":
        _supplier(ax, shown, week, ends)
    low, high = ax.get_ylim()
    ax.set_ylim(min(low, 0.0), high)
    _direct_labels(ax, ends, float(week[-1]))


def _supplier(ax: Axes, shown: Mapping[str, np.ndarray], week: np.ndarray, ends: list[tuple[float, str, Look]]) -> None:
    """Fill on an axis of its own, and the scorecard's word where it is not the best one."""
    ax.set_ylabel("lead slip\n(days)")
    other = ax.twinx()
    look = LOOKS[2]
    other.plot(
        week,
        100 * shown["realized_fill"],
        color=look.color,
        linestyle=look.line,
        marker=look.marker,
        markersize=3.5,
        label="fill (%)",
    )
    other.set_ylim(0, 105)
    other.set_ylabel("fill of a\nspot order (%)")
    handles = [*ax.get_legend_handles_labels()[0], *other.get_legend_handles_labels()[0]]
    ax.legend(handles=handles, loc="center left", bbox_to_anchor=(1.09, 0.5))
    other.spines["right"].set_visible(True)
    ends.clear()
    free: list[float] = []
    bad = sorted((a, b, level) for level in range(1, len(WORDS)) for a, b in runs_of(shown["band"] == level))
    for a, b, level in bad:
        name = f"scorecard: {WORDS[level]}"
        late, wide = b > len(week) - 3, WEEKS_A_LETTER * len(name)
        middle = (a + b) / 2
        line = first_free(free, *((middle - wide, middle) if late else (middle - wide / 2, middle + wide / 2)))
        ax.annotate(
            name,
            (middle, 0.04),
            xycoords=("data", "axes fraction"),
            xytext=(0, 9 * line),
            textcoords="offset points",
            fontsize=6.5,
            ha="right" if late else "center",
            va="bottom",
            bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.5},
        )


def _direct_labels(ax: Axes, ends: Sequence[tuple[float, str, Look]], last: float) -> None:
    """Names of lines at their right ends with their markers, moved apart where they would meet."""
    if not ends:
        return
    low, high = ax.get_ylim()
    gap = (high - low) * 0.2
    ranked = sorted(ends, key=lambda end: end[0])
    at: list[float] = []
    for y, _, _ in ranked:
        at.append(max(y, at[-1] + gap) if at else y)
    middle = (sum(at) - sum(y for y, _, _ in ranked)) / len(at)
    for place, (_, name, look) in zip(at, ranked, strict=True):
        y = place - middle
        ax.plot(last + 0.95, y, marker=look.marker, color=look.color, markersize=4, linestyle="none", clip_on=False)
        ax.annotate(name, (last + 1.3, y), fontsize=8, va="center", annotation_clip=False)


WEEKS_A_LETTER = 0.2
"""About what a letter of a regime's name is wide."""


def _name_regimes(ax: Axes, regimes: Sequence[str], factor: Factor) -> int:
    """The regime's name over each run of weeks that is not the baseline; how many lines the names take."""
    free: list[float] = []
    start = 0
    for t in range(1, len(regimes) + 1):
        if t < len(regimes) and regimes[t] == regimes[start]:
            continue
        if regimes[start] != factor.labels[0]:
            name = words(regimes[start])
            wide, last = WEEKS_A_LETTER * len(name), len(regimes) - 0.5
            late = start - 0.45 + wide > last
            left = last - wide if late else start - 0.45
            line = first_free(free, left, left + wide)
            ax.annotate(
                name,
                (last if late else left, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 2 + 8.5 * line),
                textcoords="offset points",
                fontsize=7,
                ha="right" if late else "left",
                va="bottom",
                annotation_clip=False,
            )
        start = t
    return len(free)


def _legend_of_shades(figure: Canvas) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=STRESS, edgecolor="white", hatch="////", label="under stress"),
        Patch(facecolor=BREWING, edgecolor=GREY, linewidth=0.4, label="stress brewing"),
    ]
    figure.legend(handles=handles, loc="outside lower right", ncols=2, fontsize=8)


# ---- posteriors -----------------------------------------------------------------------------------------------------


def regime_table(factor: Factor, belief: Any) -> np.ndarray:
    """(week, regime) probabilities of a factor's report regimes, from whatever holds a belief.

    Args:
        factor: the factor.
        belief: (week, state) or (week, regime) probabilities, or a result with such a `belief` (`Filtered`, `Smoothed`).

    Raises:
        InputError: for another shape.
    """
    table = np.asarray(getattr(belief, "belief", belief), np.float64)
    if table.ndim == 2 and table.shape[1] == len(factor.states):
        pool = np.array([[r.label == name for name in factor.labels] for r in factor.state_regimes], np.float64)
        return np.asarray(table @ pool)
    if table.ndim == 2 and table.shape[1] == len(factor.labels):
        return table
    raise InputError(
        f"{factor.name}: a belief has the shape (week, {len(factor.states)} states) or (week, {len(factor.labels)} "
        f"regimes), not {table.shape}"
    )


@styled
def posterior(
    factor: Factor,
    belief: Any,
    states: Any = None,
    *,
    first_week: int = 0,
    title: str | None = None,
    colorbar: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """What a filter believes of one factor: a heat map of regimes by weeks, with the true regime framed.

    Args:
        factor: the factor; one of the world's, or one of your own.
        belief: see `regime_table`.
        states: (week,) the true states, if they are known.
        first_week: the week of the first entry.
        title: by default the factor, and how probable the filter found the truth on average.
        colorbar: whether to explain the shades beside the map.
        ax: to draw in; new ones by default.

    Raises:
        InputError: for a belief of another shape, or of other weeks than the states.
    """
    table = regime_table(factor, belief)
    weeks = len(table)
    truth = None if states is None else _true_regimes(factor, states, weeks)
    ax = axes_of(ax, 9.0, 2.4)
    image = ax.imshow(
        table.T,
        aspect="auto",
        cmap="Blues",
        vmin=0.0,
        vmax=1.0,
        origin="upper",
        interpolation="nearest",
        extent=(first_week - 0.5, first_week + weeks - 0.5, len(factor.labels) - 0.5, -0.5),
    )
    ax.set_yticks(range(len(factor.labels)), [words(x) for x in factor.labels])
    ax.tick_params(axis="y", length=0)
    for spine in ax.spines.values():
        spine.set_visible(True)
        spine.set_color(GREY)
    for edge in np.arange(0.5, len(factor.labels) - 1):
        ax.axhline(edge, color="#CCCCCC", linewidth=0.6)
    weeks_axis(ax, weeks, first_week)
    said = factor.name
    if truth is not None:
        _frame(ax, truth, first_week)
        right = float(table[np.arange(weeks), truth].mean())
        said = f"{factor.name}: the true regime (framed) has probability {right:.2f} on average"
    ax.set_title(title or said)
    if colorbar:
        ax.figure.colorbar(image, ax=ax, label="probability", pad=0.01, fraction=0.04)
    return ax


def _true_regimes(factor: Factor, states: Any, weeks: int) -> np.ndarray:
    index = np.asarray(states)
    if index.shape != (weeks,):
        raise InputError(f"{factor.name}: {weeks} weeks of belief and states of shape {index.shape}; give one a week")
    labels = [factor.labels.index(r.label) for r in factor.state_regimes]
    return np.array([labels[int(s)] for s in index])


def _frame(ax: Axes, truth: np.ndarray, first: int) -> None:
    """Frames around the true regime: orange in a black casing, so that they show on any shade and in grey."""
    from matplotlib.patches import Rectangle

    start = 0
    for t in range(1, len(truth) + 1):
        if t == len(truth) or truth[t] != truth[start]:
            corner = (first + start - 0.5, truth[start] - 0.46)
            for color, width in ((BLACK, 3.0), (ORANGE, 1.6)):
                ax.add_patch(
                    Rectangle(corner, t - start, 0.92, fill=False, edgecolor=color, linewidth=width, clip_on=False)
                )
            start = t


@styled
def posteriors(
    world: World,
    beliefs: Mapping[str, Any],
    tape: Tape | None = None,
    *,
    first_week: int = 0,
    title: str | None = None,
    figure: Canvas | None = None,
) -> dict[str, Axes]:
    """`posterior` of several factors, one under the other.

    Args:
        world: the model of the filters.
        beliefs: factor -> see `regime_table`; as `filter_world` gives them.
        tape: a single tape with the truth, if it is known.
        first_week: the week of the first entry of the beliefs; the tape begins in week 0.
        title: of the figure.
        figure: to draw in; a new one by default.

    Returns:
        factor -> axes.

    Raises:
        InputError: for an unknown factor, or see `posterior`.
    """
    names = _known(beliefs)
    heights = [len(world.factors[n].labels) + 1.6 for n in names]
    figure = figure if figure is not None else new_figure(9.0, 0.4 + 0.3 * sum(heights))
    panels = figure.subplots(len(names), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for name, ax in zip(names, panels, strict=True):
        factor = world.factors[name]
        weeks = len(regime_table(factor, beliefs[name]))
        states = None if tape is None else np.asarray(tape.states[name])[first_week : first_week + weeks]
        posterior(factor, beliefs[name], states, first_week=first_week, colorbar=False, ax=ax)
        if name != names[-1]:
            ax.set_xlabel("")
    figure.colorbar(panels[0].images[0], ax=list(panels), label="probability of the regime", fraction=0.025, pad=0.01)
    if title:
        headline(figure, title)
    return dict(zip(names, panels, strict=True))


def _known(beliefs: Mapping[str, Any]) -> list[str]:
    unknown = sorted(set(beliefs) - set(FACTORS))
    if unknown or not beliefs:
        what = f"unknown factor {unknown[0]!r}" if unknown else "no factor"
        raise InputError(f"{what}; there are {', '.join(FACTORS)}")
    return [n for n in FACTORS if n in beliefs]


@styled
def beliefs(
    world: World,
    beliefs: Mapping[str, Mapping[str, Any]],
    tape: Tape | None = None,
    *,
    title: str | None = None,
    figure: Canvas | None = None,
) -> dict[str, Axes]:
    """The probability of stress by two filters (or more) that read the same tape, a panel a factor.

    Args:
        world: gives regimes and stress; the filters' models must have the same states.
        beliefs: name of the filter -> factor -> see `regime_table`.
        tape: a single tape; weeks that are truly under stress are shaded.
        title: of the figure; by default where the first two differ most.
        figure: to draw in; a new one by default.

    Returns:
        factor -> axes.

    Raises:
        InputError: for fewer than two filters, filters of different factors, or a belief of another shape.
    """
    if len(beliefs) < 2:
        raise InputError(f"a comparison needs two filters, not {len(beliefs)}")
    first, second, *_ = beliefs
    names = _known(beliefs[first])
    lines = {who: {n: _stress(world.factors[n], of[n]) for n in _known(of)} for who, of in beliefs.items()}
    if any(list(of) != names for of in lines.values()):
        raise InputError("the filters must be of the same factors")
    figure = figure if figure is not None else new_figure(9.5, 1.2 + 1.25 * len(names))
    panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for name, ax in zip(names, panels, strict=True):
        weeks = len(lines[first][name])
        if tape is not None:
            shade(ax, world.factors[name].stress_mask[np.asarray(tape.states[name])[:weeks]], STRESS, "////")
        for k, (look, (who, of)) in enumerate(zip(LOOKS, lines.items(), strict=False)):
            # The first one lies broad and pale under the others, so that equal lines are seen to be equal.
            broad = k == 0
            ax.plot(
                np.arange(weeks),
                of[name],
                color=look.color,
                linestyle=look.line,
                linewidth=4.5 if broad else 1.5,
                alpha=0.4 if broad else 1.0,
                marker="" if broad else look.marker,
                markersize=3.5,
                label=who,
            )
        gap = np.abs(lines[first][name] - lines[second][name])
        at = int(np.argmax(gap))
        told = f"{gap[at]:.2f} apart in week {at}" if gap[at] >= 0.005 else "no difference"
        ax.set_title(f"{name}: {told}")
        ax.set_ylim(-0.04, 1.04)
        ax.set_ylabel("P(stress)")
        weeks_axis(ax, weeks, label=name == names[-1])
    gaps = {n: float(np.abs(lines[first][n] - lines[second][n]).max()) for n in names}
    worst = max(gaps, key=lambda n: gaps[n])
    said = f"The filters {first} and {second} differ most about {worst}: by {gaps[worst]:.2f}"
    headline(figure, title or said)
    handles, labels = panels[0].get_legend_handles_labels()
    if tape is not None:
        from matplotlib.patches import Patch

        handles.append(Patch(facecolor=STRESS, edgecolor="white", hatch="////"))
        labels.append("truly under stress")
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return dict(zip(names, panels, strict=True))


def _stress(factor: Factor, belief: Any) -> np.ndarray:
    """(week,) probability of stress."""
    stressed = [any(r.stress for r in factor.regimes if r.label == label) for label in factor.labels]
    return np.minimum(regime_table(factor, belief)[:, stressed].sum(axis=1), 1.0)
