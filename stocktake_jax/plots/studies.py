"""Studies: whether filters and posteriors are right, and what was learned. `wrong_models` has what a wrong model costs.

The functions take the documents that the `stocktake study` and `stocktake fit` commands save and print, or the objects
that these are made of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from scipy.stats import binom

from stocktake_jax.errors import InputError
from stocktake_jax.inference.priors import Prior, entries, ladders
from stocktake_jax.models import FACTORS, World, unit_interval
from stocktake_jax.plots.style import (
    BLACK,
    BLUE,
    GREY,
    LOOKS,
    ORANGE,
    PALE,
    VERMILLION,
    Axes,
    Canvas,
    axes_of,
    headline,
    looks,
    new_figure,
    styled,
    words,
)

Document = Mapping[str, Any]


def document_of(given: Any, *arguments: Any) -> Document:
    """A document: the one that was given, or what the object that was given makes."""
    make = getattr(given, "document", None)
    found = make(*arguments) if make is not None else given
    if not isinstance(found, Mapping):
        raise InputError(f"a document or a result that makes one is wanted, not {type(given).__name__}")
    return found


def part_of(document: Document, name: str, what: str) -> Any:
    """An entry of a document, or an error that says what was wanted."""
    found = document.get(name)
    if not found:
        raise InputError(f"there is no {name!r} in the document; give one that {what} made")
    return found


def number_of(value: Any) -> float:
    """A number of a document, in which null stands for an undefined one."""
    return math.nan if value is None else float(value)


# ---- calibration of filters -----------------------------------------------------------------------------------------

FEWEST_WEEKS = 30
"""Bins with fewer weeks are left out of a reliability diagram: their shares are noise."""


@styled
def reliability(
    calibration: Any, *, title: str | None = None, figure: Canvas | None = None
) -> dict[str, dict[str, Axes]]:
    """Are the filters' probabilities what they say? How often each regime was there, by the probability it was given.

    A row a filter, a column a factor. Bars are two standard errors.

    Args:
        calibration: `Calibrations`, or the document of `stocktake study calibration`.
        title: of the figure; by default the largest calibration error.
        figure: to draw in; a new one by default.

    Returns:
        filter -> factor -> axes.

    Raises:
        InputError: for a document without reliability.
    """
    rows = _reliability_rows(calibration)
    factors = [n for n in FACTORS if any(r["factor"] == n for r in rows)]
    filters = list(dict.fromkeys((str(r["model"]), str(r["likelihood"])) for r in rows))
    figure = (
        figure if figure is not None else new_figure(max(2.25 * len(factors) + 0.8, 5.0), 2.35 * len(filters) + 1.0)
    )
    panels = figure.subplots(len(filters), len(factors), sharex=True, sharey=True, squeeze=False)
    out: dict[str, dict[str, Axes]] = {}
    worst, most = "", -1.0
    for which, line in zip(filters, panels, strict=True):
        name = _filter_name(which, filters)
        out[name] = dict(zip(factors, line.tolist(), strict=True))
        for factor, ax in out[name].items():
            mine = [r for r in rows if (str(r["model"]), str(r["likelihood"])) == which and str(r["factor"]) == factor]
            error = _reliability_panel(ax, mine)
            if error > most:
                worst, most = f"{factor} ({name})", error
            ax.annotate(f"error {error:.3f}", (0.97, 0.04), xycoords="axes fraction", fontsize=7.5, ha="right")
        line[0].set_ylabel(f"{name}\nshare of weeks")
    for factor, ax in zip(factors, panels[0], strict=True):
        ax.set_title(factor, fontweight="bold")
        ax.legend(loc="upper left", fontsize=6.5, handlelength=1.2, borderaxespad=0.2)
    for ax in panels[-1]:
        ax.set_xlabel("probability stated")
    panels[0, 0].set_xlim(-0.03, 1.03)
    panels[0, 0].set_ylim(-0.03, 1.03)
    headline(figure, title or f"Largest mean distance from the diagonal: {most:.3f}, {worst}")
    return out


def _reliability_panel(ax: Axes, rows: Sequence[Mapping[str, Any]]) -> float:
    """One filter of one factor; returns the mean distance of the shares from what was stated, over all weeks."""
    ax.plot([0, 1], [0, 1], color=GREY, linewidth=1.0, zorder=0)
    regimes = list(dict.fromkeys(str(r["regime"]) for r in rows))
    for look, regime in zip(LOOKS, regimes, strict=False):
        of = [r for r in rows if str(r["regime"]) == regime and number_of(r["weeks"]) >= FEWEST_WEEKS]
        x, y, se = (np.array([number_of(r[k]) for r in of]) for k in ("stated", "observed", "standard_error"))
        ax.errorbar(
            x,
            y,
            2 * se,
            color=look.color,
            linestyle=look.line,
            marker=look.marker,
            markersize=3.5,
            linewidth=1.0,
            label=words(regime),
        )
    weeks = np.array([number_of(r["weeks"]) for r in rows])
    far = np.array([abs(number_of(r["observed"]) - number_of(r["stated"])) for r in rows])
    return float((weeks * far).sum() / weeks.sum()) if weeks.size else 0.0


def _reliability_rows(given: Any) -> list[Mapping[str, Any]]:
    from stocktake_jax.inference.calibration import reliability_rows

    if isinstance(given, Mapping) and "reliability" not in given and all(isinstance(k, tuple) for k in given):
        found: list[Mapping[str, Any]] = list(reliability_rows(dict(given)))
    else:
        found = list(part_of(document_of(given), "reliability", "`stocktake study calibration`"))
    if not found:
        raise InputError("there is no filter in the calibration")
    return found


def _filter_name(which: tuple[str, str], filters: Sequence[tuple[str, str]]) -> str:
    model, likelihood = which
    if len({m for m, _ in filters}) == 1:
        return f"{likelihood} likelihood"
    return model if len({k for _, k in filters}) == 1 else f"{model}, {likelihood}"


# ---- calibration of posteriors --------------------------------------------------------------------------------------


@styled
def rank_histograms(sbc: Any, *, title: str | None = None, figure: Canvas | None = None) -> dict[str, Axes]:
    """Simulation-based calibration: ranks of the truth among posterior draws, which are flat if the posterior is right.

    Args:
        sbc: a `Ranks`, several, or the document of `stocktake study sbc`.
        title: of the figure; by default how many histograms are not flat.
        figure: to draw in; a new one by default.

    Returns:
        name of the quantity -> axes.

    Raises:
        InputError: for a document without factors.
    """
    if isinstance(sbc, Sequence):
        factors = [document_of(r) for r in sbc]
    else:
        document = document_of(sbc)
        factors = (
            [document] if "quantities" in document else list(part_of(document, "factors", "`stocktake study sbc`"))
        )
    if not factors:
        raise InputError("there are no ranks to draw")
    cells = [(f, q) for f in factors for q in f["quantities"]]
    across = min(5, len(cells))
    down = -(-len(cells) // across)
    figure = figure if figure is not None else new_figure(max(2.3 * across + 0.4, 5.5), 1.65 * down + 1.1)
    panels = figure.subplots(down, across, sharey=False, squeeze=False)
    for ax in panels.ravel()[len(cells) :]:
        ax.set_axis_off()
    out, bad = {}, 0
    for (f, q), ax in zip(cells, panels.ravel(), strict=False):
        counts = np.array(q["histogram"], np.float64)
        bins = len(counts)
        low, high = binom.ppf([0.005, 0.995], f["replicates"], 1 / bins)
        ax.axhline(f["replicates"] / bins, color=BLACK, linewidth=0.8, linestyle=":", zorder=3)
        edges = np.linspace(0, 1, bins + 1)
        flat = q["name"] not in f.get("not_uniform", ())
        bad += not flat
        ax.axhspan(low, high, color=PALE, zorder=0)
        ax.bar(
            edges[:-1],
            counts,
            width=1 / bins,
            align="edge",
            color=BLUE if flat else VERMILLION,
            hatch="" if flat else "////",
            edgecolor="white",
            linewidth=0.8,
        )
        name = q["name"] if "." in q["name"] else f"{f['factor']}: {q['name']}"
        ax.set_title(name if flat else f"{name}: not flat", fontsize=7.5, fontweight="normal" if flat else "bold")
        ax.set_xlim(0, 1)
        ax.set_ylim(0, max(1.15 * high, 1.05 * counts.max()))
        ax.set_xticks([0, 0.5, 1])
        ax.yaxis.get_major_locator().set_params(integer=True, nbins=4)
        ax.tick_params(labelsize=7)
        out[name] = ax
    for ax in panels[:, 0]:
        ax.set_ylabel("data sets", fontsize=8)
    for ax in list(out.values())[-across:]:
        ax.set_xlabel("rank of the truth (share of draws below)", fontsize=7)
    said = f"{len(cells) - bad} of {len(cells)} rank histograms are flat, as they must be if the posterior is right"
    headline(figure, title or said)
    from matplotlib.patches import Patch

    band = Patch(facecolor=PALE, label="99 % of the bars lie in here if the posterior is right")
    figure.legend(handles=[band], loc="outside lower center")
    return out


@styled
def coverage(found: Any, *, title: str | None = None, ax: Axes | None = None) -> Axes:
    """Do intervals cover? In how many of many fits each parameter's interval holds the truth.

    Args:
        found: a `Coverage`, or the document of `stocktake study coverage`.
        title: by default the coverage of all identifiable transition parameters together.
        ax: to draw in; new ones by default.

    Raises:
        InputError: for a document without parameters.
    """
    document = document_of(found)
    rows = list(part_of(document, "parameters", "`stocktake study coverage`"))
    level, repeats = number_of(document.get("level")), int(document["plan"]["repeats"])
    ax = axes_of(ax, 7.5, 0.2 * len(rows) + 1.9)
    ax.axvspan(100 * number_of(rows[0]["chance_low"]), 100 * number_of(rows[0]["chance_high"]), color=PALE, zorder=0)
    ax.axvline(100 * level, color=GREY, linewidth=1.0)
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    kinds = {True: (BLUE, "o", "transition that the data can tell"), False: (ORANGE, "s", "any other parameter")}
    told = [bool(r["transition"] and r["identifiable"]) for r in rows]
    for row, r in enumerate(rows):
        color, marker, _ = kinds[told[row]]
        ax.plot(100 * number_of(r["coverage"]), row, marker=marker, color=color, markersize=5.5, linestyle="none")
    ax.set_yticks(range(len(rows)), [r["name"] for r in rows], fontsize=7.5)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(min(68.0, *(100 * number_of(r["coverage"]) - 2 for r in rows)), 101)
    ax.set_xlabel(f"fits whose {level:.0%} interval holds the truth (% of {repeats} fits)")
    handles: list[Any] = [
        Line2D([], [], color=c, marker=m, linestyle="none", label=s)
        for kind, (c, m, s) in kinds.items()
        if kind in told
    ]
    handles.append(Patch(facecolor=PALE, label=f"chance allows if {level:.0%} is true"))
    ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.0, 0.0))
    pooled = document.get("pooled_identifiable_transitions") or {}
    said = f"Coverage of {level:.0%} intervals"
    if pooled.get("parameters"):
        said = f"{level:.0%} intervals hold the truth in {number_of(pooled['coverage']):.1%} of fits"
    ax.set_title(title or said)
    return ax


# ---- learned worlds -------------------------------------------------------------------------------------------------


@styled
def sample_complexity(study: Any, *, title: str | None = None, figure: Canvas | None = None) -> dict[str, Axes]:
    """How much there is to learn from: what a learned world costs the oracle, and how wrong it is, by tapes learned from.

    Args:
        study: a `LearnedStudy`, or the document of `stocktake study learned`. Worlds that do not say how many tapes they
            were learned from are left out.
        title: of the figure; by default what the most tapes leave to be paid.
        figure: to draw in; a new one by default.

    Returns:
        `cost`, `parameters` and `filters` -> axes.

    Raises:
        InputError: if no model says how many tapes it was learned from.
    """
    rows = [r for r in part_of(document_of(study), "models", "`stocktake study learned`") if r.get("tapes")]
    if not rows:
        raise InputError("no model of the study says how many tapes it was learned from")
    rows.sort(key=lambda r: r["tapes"])
    figure = figure if figure is not None else new_figure(12.0, 3.8)
    cost, error, score = figure.subplots(1, 3)
    _learned_cost(cost, rows)
    # Estimates are the same whatever use is made of them.
    once = list({(r["method"], r["tapes"]): r for r in rows}.values())
    several = len({r["method"] for r in once}) > 1
    lines: dict[str, list[tuple[int, float]]] = {}
    for r in once:
        for part, said in (("transitions", "transition probabilities"), ("emissions", "emissions (relative)")):
            value = number_of(r["parameter_error"].get(part))
            if value == value:
                name = f"{said}, {r['method']}" if several else said
                lines.setdefault(name, []).append((r["tapes"], value))
    _curves(error, lines)
    if lines:
        from matplotlib.ticker import LogLocator, NullLocator

        error.set_yscale("log")
        error.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        error.yaxis.set_minor_locator(NullLocator())
        error.yaxis.set_major_formatter("{x:g}")
    error.set_ylabel("root mean square error of the estimates")
    error.set_title("Estimates against the truth", fontweight="bold")
    lines = {}
    for r in once:
        for factor in FACTORS:
            value = number_of((r.get("fresh_log_score") or {}).get(factor))
            if value == value:
                lines.setdefault(f"{factor}, {r['method']}" if several else factor, []).append((r["tapes"], value))
    _curves(score, lines)
    score.axhline(0, color=GREY, linewidth=1.0, zorder=0)
    score.set_ylabel("log score, less the true model's (nats/week)")
    score.set_title("Filters on fresh tapes", fontweight="bold")
    for ax in (cost, error, score):
        _tapes_axis(ax, [r["tapes"] for r in rows])
    most = [r for r in rows if r["tapes"] == rows[-1]["tapes"]]
    least = min(most, key=lambda r: number_of(r["difference"]))
    more = number_of(least["difference"])
    low, high = _interval(least, more)
    said = f"Learned from {least['tapes']} tapes ({least['kind']}), the oracle pays ${abs(more):,.0f} "
    said += f"{'more' if more >= 0 else 'less'} an episode than with the true model (95 %: {low:+,.0f} to {high:+,.0f})"
    headline(figure, title or said)
    return {"cost": cost, "parameters": error, "filters": score}


def _interval(o: Mapping[str, Any], value: float) -> tuple[float, float]:
    low, high = number_of(o.get("low")), number_of(o.get("high"))
    if low == low and high == high:
        return low, high
    se = number_of(o.get("difference_se"))
    return value - 2 * se, value + 2 * se


def _learned_cost(ax: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    several = len({r["method"] for r in rows}) > 1
    by_name: dict[str, list[Mapping[str, Any]]] = {}
    for r in rows:
        by_name.setdefault(f"{r['kind']}, {r['method']}" if several else str(r["kind"]), []).append(r)
    for name, look in looks(list(by_name)).items():
        of = by_name[name]
        x, y = np.array([r["tapes"] for r in of], np.float64), np.array([number_of(r["difference"]) for r in of])
        low, high = np.array([_interval(r, number_of(r["difference"])) for r in of]).T
        ax.fill_between(x, low, high, color=look.color, alpha=0.15, linewidth=0)
        if len(x) == 1:  # a band of one point would be nothing
            ax.plot([x[0], x[0]], [low[0], high[0]], color=look.color, linewidth=4, alpha=0.3, solid_capstyle="butt")
        ax.plot(x, y, color=look.color, linestyle=look.line, marker=look.marker, label=name)
    ax.axhline(0, color=GREY, linewidth=1.0, zorder=0)
    ax.annotate("true model", (1.0, 0), xycoords=("axes fraction", "data"), fontsize=7.5, ha="right", va="bottom")
    ax.set_ylabel("additional cost of an episode ($)")
    ax.set_title("What it costs (bands: 95 %)", fontweight="bold")
    ax.legend(loc="upper right", title="the oracle uses")


def _curves(ax: Axes, lines: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    for name, look in looks(list(lines)).items():
        x, y = np.array(lines[name], np.float64).T
        ax.plot(x, y, color=look.color, linestyle=look.line, marker=look.marker, label=name)
    if lines:
        ax.legend(fontsize=7)


def _tapes_axis(ax: Axes, tapes: Sequence[int]) -> None:
    from matplotlib.ticker import NullLocator

    ax.set_xscale("log")
    ticks = sorted(set(tapes))
    ax.set_xticks(ticks, [f"{n:,}" for n in ticks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("tapes learned from")
    ax.grid(axis="y")


# ---- fitted parameters ----------------------------------------------------------------------------------------------


def prior_draws(
    base: World,
    names: Sequence[str],
    count: int = 4000,
    *,
    key: Any,
    channels: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, np.ndarray]:
    """Draws from the default priors of some learned numbers, for `parameters`.

    Args:
        base: the world that the fit started from, which centres the priors.
        names: dotted names of all numbers that were learned together.
        count: how many draws.
        key: of them.
        channels: factor -> the channels that had readings, whose levels keep their order; all shown ones by default.

    Returns:
        Dotted name -> (draw,) values.
    """
    out: dict[str, np.ndarray] = {}
    for number, (name, factor) in enumerate(base.factors.items()):
        own = [n for n in names if n.startswith(f"{name}.")]
        if own:
            read = (channels or {}).get(name) or [c.name for c in factor.shown_channels()]
            law = Prior(factor, own, ladders(factor, read))
            drawn = law.sample(count, key=jax.random.fold_in(key, number))
            out |= {n: drawn[:, k] for k, n in enumerate(own)}
    return out


@styled
def parameters(
    draws: Mapping[str, Any],
    prior: Mapping[str, Any] | None = None,
    truth: Mapping[str, float] | None = None,
    *,
    title: str | None = None,
    figure: Canvas | None = None,
) -> dict[str, Axes]:
    """What was learned of each parameter: its posterior against its prior and the truth.

    Args:
        draws: dotted name -> posterior draws, of any shape (`WorldFit.draws()`, `learning.load_draws`).
        prior: dotted name -> draws from the prior (`prior_draws`).
        truth: dotted name -> true value, if it is known.
        title: of the figure; by default how many 90 % intervals hold the truth.
        figure: to draw in; a new one by default.

    Returns:
        dotted name -> axes.

    Raises:
        InputError: for no draws.
    """
    if not draws:
        raise InputError("there are no posterior draws; fit with the method map, nuts or svi")
    names = list(draws)
    across = min(4, len(names))
    down = -(-len(names) // across)
    figure = figure if figure is not None else new_figure(max(2.7 * across + 0.2, 6.5), 1.55 * down + 1.1)
    panels = figure.subplots(down, across, squeeze=False)
    for ax in panels.ravel()[len(names) :]:
        ax.set_axis_off()
    held = 0
    for name, ax in zip(names, panels.ravel(), strict=False):
        x = np.asarray(draws[name], np.float64).ravel()
        low, high = np.quantile(x, (0.05, 0.95))
        edges = _edges(x, None if truth is None else truth.get(name))
        if prior is not None and name in prior:
            before = np.asarray(prior[name], np.float64).ravel()
            inside = before[(before >= edges[0]) & (before <= edges[-1])]
            counts, _ = np.histogram(inside, edges)
            density = counts / max(len(before), 1) / np.diff(edges)
            ax.stairs(density, edges, color=GREY, linestyle="--", linewidth=1.3)
        counts, _ = np.histogram(x, edges)
        ax.stairs(counts / len(x) / np.diff(edges), edges, fill=True, color=BLUE, alpha=0.45)
        top = ax.get_ylim()[1]
        ax.plot([low, high], [-0.05 * top, -0.05 * top], color=BLUE, linewidth=3.5, solid_capstyle="butt")
        ax.set_ylim(-0.1 * top, top)
        if truth is not None and name in truth:
            true = float(truth[name])
            ax.axvline(true, color=VERMILLION, linewidth=1.6)
            held += bool(low <= true <= high)
        ax.set_title(name, fontsize=8.5)
        ax.set_xlabel(_unit(name), fontsize=7.5)
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
        ax.tick_params(labelsize=7)
    for ax in panels[:, 0]:
        ax.set_ylabel("density")
    known = [n for n in names if truth is not None and n in truth]
    said = f"{held} of {len(known)} 90 % intervals hold the truth" if known else f"Posterior of {len(names)} parameters"
    headline(figure, title or said)
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor=BLUE, alpha=0.45, label="posterior density"),
        Line2D([], [], color=BLUE, linewidth=3.5, label="its middle 90 %"),
    ]
    if prior is not None:
        handles.append(Line2D([], [], color=GREY, linestyle="--", label="prior density"))
    if known:
        handles.append(Line2D([], [], color=VERMILLION, label="truth"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return dict(zip(names, panels.ravel().tolist(), strict=False))


def _unit(name: str) -> str:
    """The unit of a learned number, by its dotted name."""
    factor = World.paper().factors.get(name.partition(".")[0])
    entry = None if factor is None else entries(factor).get(name)
    if entry is None or entry.unit == "1":
        return "probability" if entry is not None and entry.constraint is unit_interval else "(a pure number)"
    return entry.unit


def _edges(x: np.ndarray, true: float | None) -> np.ndarray:
    """Bins over the posterior and the truth, with room at the sides."""
    low, high = np.quantile(x, (0.001, 0.999))
    if true is not None:
        low, high = min(low, true), max(high, true)
    room = 0.15 * (high - low) or max(abs(float(high)) * 0.1, 1e-3)
    return np.linspace(low - room, high + room, 41)
