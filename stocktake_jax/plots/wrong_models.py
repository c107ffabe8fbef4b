"""What a wrong model costs: the figures of misspecification studies.

The functions take a `Study`, or the document of `stocktake study misspecify`. `misspecified` draws every figure that fits.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from stocktake_jax.errors import InputError
from stocktake_jax.models import World, unit_interval
from stocktake_jax.plots.studies import document_of, number_of, part_of
from stocktake_jax.plots.style import (
    BLACK,
    BLUE,
    GREY,
    VERMILLION,
    Axes,
    Canvas,
    axes_of,
    headline,
    looks,
    new_figure,
    styled,
)

Outcome = Mapping[str, Any]

COSTS = "additional cost of an episode ($)"


def misspecified(study: Any) -> dict[str, Any]:
    """Every figure that fits a study, by its name: what `stocktake study misspecify --figures` draws.

    Pairs of two parameters make a `grid`, three factors on one parameter or two values of it `curves`, other changes by a
    factor a `tornado`, and what is left the `models`.
    """
    document = document_of(study)
    shares: dict[str, list[Outcome]] = {}
    outcomes = _outcomes(document)
    for o in outcomes:
        shares.setdefault(_kind(o, outcomes), []).append(o)
    draw: dict[str, Any] = {"tornado": tornado, "curves": curves, "grid": grid, "models": models}
    truth = [o for o in part_of(document, "outcomes", STUDY) if o not in outcomes]
    return {
        name: function({**document, "outcomes": [*truth, *shares[name]]})
        for name, function in draw.items()
        if name in shares
    }


STUDY = "`stocktake study misspecify`"


def _outcomes(document: Mapping[str, Any]) -> list[Outcome]:
    """All but the true model."""
    found: Sequence[Outcome] = part_of(document, "outcomes", STUDY)
    return [o for o in found if o["label"] != "true model"]


def _kind(o: Outcome, outcomes: Sequence[Outcome]) -> str:
    changes = o.get("changes") or {}
    if o.get("factor") is None:
        if len(changes) == 2:
            return "grid"
        return "curves" if len(changes) == 1 and len(_numbers(o, outcomes)) > 1 else "models"
    return "curves" if len(changes) == 1 and len(_numbers(o, outcomes)) > 2 else "tornado"


def _numbers(o: Outcome, outcomes: Sequence[Outcome]) -> set[float]:
    """The factors on a parameter, or the values of it."""
    return {
        number_of(next(iter(other["changes"].values())))
        for other in outcomes
        if other.get("parameter") == o.get("parameter")
        and other.get("values") == o.get("values")
        and other.get("changes")
    }


def _truth(document: Mapping[str, Any]) -> Mapping[str, float]:
    """What the study says of the true values."""
    for o in part_of(document, "outcomes", STUDY):
        if o["label"] == "true model":
            found: Mapping[str, float] = o.get("believed") or {}
            return found
    return {}


def _interval(o: Outcome) -> tuple[float, float]:
    low, high = number_of(o.get("low")), number_of(o.get("high"))
    if low == low and high == high:
        return low, high
    value, se = number_of(o["difference"]), number_of(o.get("difference_se"))
    return value - 2 * se, value + 2 * se


def _intervals_are(outcomes: Sequence[Outcome]) -> str:
    whole = all(o.get("low") is not None and o.get("high") is not None for o in outcomes)
    return "95 % interval over seeds" if whole else "two Monte Carlo standard errors"


def _worst(outcomes: Sequence[Outcome], what: str, said: Mapping[str, str] | None = None) -> str:
    """A title: the costliest outcome."""
    worst = max(outcomes, key=lambda o: number_of(o["difference"]))
    more, label = number_of(worst["difference"]), str(worst["label"])
    if more <= 0:
        return f"Nothing here costs more than the true model; {what}: {(said or {}).get(label, label)} ({_money(more)})"
    return f"The costliest {what}: {(said or {}).get(label, label)} ({_money(more)})"


def _money(dollars: float) -> str:
    rounded = round(dollars)
    return f"{'-' if rounded < 0 else '+'}${abs(rounded):,}"


def _times(factor: float) -> str:
    known = {0.5: "halved", 2.0: "doubled"}
    return known.get(factor, f"times {factor:g}")


def _unit(name: str) -> str:
    """The unit of a parameter, by its dotted name."""
    parameter = World.paper().parameters.get(name)
    if parameter is None or parameter.unit == "1":
        return "probability" if parameter is not None and parameter.constraint is unit_interval else ""
    return parameter.unit


# ---- one bar a parameter and factor ---------------------------------------------------------------------------------


@styled
def tornado(study: Any, *, most: int = 20, title: str | None = None, ax: Axes | None = None) -> Axes:
    """What misjudging each parameter costs: a bar to each side of the true model, the costliest parameter on top.

    Args:
        study: a `Study`, or the document of `stocktake study misspecify`. Its outcomes that are changes by a factor are
            drawn: the additional cost with its 95 % interval over seeds where the document has one, else two Monte Carlo
            standard errors.
        most: parameters shown, the costliest ones.
        title: by default the costliest mistake.
        ax: to draw in; new ones by default.

    Raises:
        InputError: if no outcome is a change by a factor.
    """
    by_name: dict[str, list[Outcome]] = {}
    for o in _outcomes(document_of(study)):
        if o.get("factor") is not None and o.get("parameter"):
            by_name.setdefault(o["parameter"], []).append(o)
    if not by_name:
        raise InputError("no outcome of the study is a change by a factor, such as port.wait_sd=0.5,2 makes")
    span = {n: max(abs(number_of(o["difference"])) for o in of) for n, of in by_name.items()}
    shown = sorted(by_name, key=lambda n: -span[n])[:most]
    drawn = [o for n in shown for o in by_name[n]]
    factors = sorted({number_of(o["factor"]) for o in drawn})
    kinds = looks([f"{k:g}" for k in factors])
    ax = axes_of(ax, 8.5, 0.32 * len(shown) + 1.8)
    height = 0.78 / len(factors)
    for row, name in enumerate(shown):
        for o in by_name[name]:
            k = factors.index(number_of(o["factor"]))
            look = kinds[f"{factors[k]:g}"]
            at = row + (k - (len(factors) - 1) / 2) * height
            ax.barh(
                at,
                number_of(o["difference"]),
                height=height,
                color=look.color,
                hatch=look.hatch,
                edgecolor="white",
                linewidth=0.3,
            )
            low, high = _interval(o)
            if low == low:
                ax.plot([low, high], [at, at], color=BLACK, linewidth=1.0, solid_capstyle="butt")
    ax.axvline(0, color=BLACK, linewidth=0.8)
    _rows(ax, shown)
    ax.set_xlabel(f"{COSTS}, with its {_intervals_are(drawn)}; more is worse")
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=look.color, hatch=look.hatch, edgecolor="white", label=_times(float(k)))
        for k, look in kinds.items()
    ]
    _legend_below(ax, handles, title="believed instead of the truth")
    said = {str(o["label"]): f"{o['parameter']} {_times(number_of(o['factor']))}" for o in drawn}
    ax.set_title(title or _worst(drawn, "mistake", said))
    return ax


def _rows(ax: Axes, names: Sequence[str]) -> None:
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x")


# ---- one line a model -----------------------------------------------------------------------------------------------


@styled
def models(
    study: Any,
    *,
    order: Literal["cost", "given"] = "cost",
    most: int = 40,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """What believing each wrong model costs, whatever is wrong with it: a dot with its intervals.

    Args:
        study: a `Study`, or the document of `stocktake study misspecify`.
        order: the costliest model on top, or models as the study has them.
        most: models shown, the costliest ones.
        title: by default the costliest model.
        ax: to draw in; new ones by default.

    Raises:
        InputError: if the study has the true model alone.
    """
    given = _outcomes(document_of(study))
    if not given:
        raise InputError("the study has the true model alone")
    shown = sorted(given, key=lambda o: -number_of(o["difference"]))[:most]
    if order == "given":
        shown = [o for o in given if o in shown]
    ax = axes_of(ax, 8.5, 0.28 * len(shown) + 1.7)
    for row, o in enumerate(shown):
        low, high = _interval(o)
        value, se = number_of(o["difference"]), number_of(o.get("difference_se"))
        if low == low:
            ax.plot([low, high], [row, row], color=BLUE, linewidth=1.2, solid_capstyle="butt")
        if se == se:
            ax.plot([value - se, value + se], [row, row], color=BLUE, linewidth=4.5, alpha=0.45, solid_capstyle="butt")
        ax.plot(value, row, marker="o", color=BLUE, markersize=5.0, linestyle="none")
    ax.axvline(0, color=BLACK, linewidth=0.8)
    _rows(ax, [str(o["label"]) for o in shown])
    ax.set_xlabel(f"{COSTS} against the true model; more is worse")
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=BLUE, marker="o", linewidth=1.2, label=f"mean, {_intervals_are(shown)}"),
        Line2D([], [], color=BLUE, linewidth=4.5, alpha=0.45, label="Monte Carlo standard error, seeds fixed"),
    ]
    _legend_below(ax, handles)
    ax.set_title(title or _worst(shown, "model"))
    return ax


def _legend_below(ax: Axes, handles: Sequence[Any], title: str | None = None) -> None:
    """A legend under the axis label, where no data can be in its way."""
    place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "borderaxespad": 4.2}
    ax.legend(handles=list(handles), ncols=len(handles), title=title, **place)


# ---- one line a parameter -------------------------------------------------------------------------------------------


@styled
def curves(study: Any, *, title: str | None = None, figure: Canvas | None = None) -> dict[str, Axes]:
    """Cost against the value that is believed, a panel a parameter, the truth marked.

    Args:
        study: a `Study`, or the document of `stocktake study misspecify`. Its outcomes that are one change of one parameter
            are drawn.
        title: of the figure; by default the costliest value.
        figure: to draw in; a new one by default.

    Returns:
        dotted name -> axes.

    Raises:
        InputError: if no outcome is a change of one parameter.
    """
    document = document_of(study)
    by_name: dict[str, list[Outcome]] = {}
    for o in _outcomes(document):
        if len(o.get("changes") or {}) == 1:
            by_name.setdefault(next(iter(o["changes"])), []).append(o)
    if not by_name:
        raise InputError("no outcome of the study is a change of one parameter, such as port.wait_sd=0.5,1.5,2 makes")
    drawn = [o for of in by_name.values() for o in of]
    across = min(3, len(by_name))
    down = -(-len(by_name) // across)
    figure = figure if figure is not None else new_figure(max(3.6 * across + 0.6, 6.0), 3.1 * down + 0.7)
    panels = figure.subplots(down, across, sharey=True, squeeze=False)
    for ax in panels.ravel()[len(by_name) :]:
        ax.set_axis_off()
    out = dict(zip(by_name, panels.ravel().tolist(), strict=False))
    for name, ax in out.items():
        _curve(ax, name, by_name[name], _truth(document).get(name))
    for ax in panels[:, 0]:
        ax.set_ylabel(COSTS)
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=BLUE, marker="o", label=f"mean, {_intervals_are(drawn)}"),
        Line2D([], [], color=BLUE, linewidth=4.5, alpha=0.45, label="Monte Carlo standard error, seeds fixed"),
        Line2D([], [], color=VERMILLION, linestyle="--", marker="D", label="truth"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    headline(figure, title or _worst(drawn, "belief"))
    return out


def _curve(ax: Axes, name: str, outcomes: Sequence[Outcome], true: float | None) -> None:
    known = true is not None and all(name in (o.get("believed") or {}) for o in outcomes)
    factors = all(not o.get("values") for o in outcomes)
    if not known and len({bool(o.get("values")) for o in outcomes}) > 1:
        raise InputError(
            f"{name} is changed by factors and by values, and the document does not say which value is true"
        )
    if known:
        at = {id(o): number_of(o["believed"][name]) for o in outcomes}
    else:
        at = {id(o): number_of(o["changes"][name]) for o in outcomes}
        true = 1.0 if factors else None
    ordered = sorted(outcomes, key=lambda o: at[id(o)])
    points = [(at[id(o)], number_of(o["difference"])) for o in ordered]
    line = points if true is None or any(x == true for x, _ in points) else sorted([*points, (true, 0.0)])
    ax.axhline(0, color=GREY, linewidth=1.0, zorder=0)
    ax.plot(*np.array(line).T, color=BLUE, linewidth=1.4)
    for o, (x, y) in zip(ordered, points, strict=True):
        low, high = _interval(o)
        se = number_of(o.get("difference_se"))
        if low == low:
            ax.plot([x, x], [low, high], color=BLUE, linewidth=1.2, solid_capstyle="butt")
        if se == se:
            ax.plot([x, x], [y - se, y + se], color=BLUE, linewidth=4.5, alpha=0.45, solid_capstyle="butt")
        ax.plot(x, y, color=BLUE, marker="o", linestyle="none")
    if true is not None:
        ax.axvline(true, color=VERMILLION, linewidth=1.2, linestyle="--", zorder=0)
        ax.plot(true, 0.0, color=VERMILLION, marker="D", linestyle="none", markersize=5.5, zorder=4)
    places = [x for x, _ in line]
    if min(places) > 0 and max(places) >= 8 * min(places):
        from matplotlib.ticker import NullLocator

        ax.set_xscale("log")
        ax.set_xticks(places, [f"{x:.3g}" for x in places])
        ax.xaxis.set_minor_locator(NullLocator())
    unit = _unit(name)
    ax.set_xlabel(
        (f"value believed ({unit})" if unit else "value believed") if known or not factors else "times the truth"
    )
    ax.set_title(name, fontweight="bold")
    ax.grid(axis="y")


# ---- one cell a pair ------------------------------------------------------------------------------------------------

LEGEND = (
    "±: Monte Carlo standard error. Bold: the 95 % interval over seeds leaves out 0. Hatched: cheaper than the true model. "
    "Framed: the true model."
)


@styled
def grid(study: Any, *, title: str | None = None, figure: Canvas | None = None) -> dict[str, Axes]:
    """Cost against two parameters that are believed wrongly together: a heat map around the true model's cost.

    A cell says the additional cost with its Monte Carlo standard error. It is bold where the 95 % interval over seeds leaves
    out zero, and hatched where the wrong model is the cheaper one.

    Args:
        study: a `Study`, or the document of `stocktake study misspecify`. Its outcomes that are a change of two parameters
            are drawn.
        title: of the figure; by default the costliest pair.
        figure: to draw in; a new one by default.

    Returns:
        both dotted names -> axes.

    Raises:
        InputError: if no outcome is a change of two parameters.
    """
    document = document_of(study)
    by_pair: dict[str, list[Outcome]] = {}
    for o in _outcomes(document):
        if o.get("factor") is None and len(o.get("changes") or {}) == 2:
            by_pair.setdefault(", ".join(o["changes"]), []).append(o)
    if not by_pair:
        raise InputError("no outcome of the study is a change of two parameters, such as --grid makes")
    drawn = [o for of in by_pair.values() for o in of]
    most = max(abs(number_of(o["difference"])) for o in drawn) or 1.0
    sizes = [len({tuple(o["changes"].values())[k] for o in of}) for of in by_pair.values() for k in (0, 1)]
    if figure is None:
        figure = new_figure(
            max(1.0 * max(sizes[1::2]) + 2.6, 6.0) * len(by_pair), max(0.62 * max(sizes[::2]), 1.5) + 1.6
        )
    panels = figure.subplots(1, len(by_pair), squeeze=False)
    out = dict(zip(by_pair, panels.ravel().tolist(), strict=True))
    for pair, ax in out.items():
        image = _cells(ax, by_pair[pair], most, _truth(document))
    bar = figure.colorbar(image, ax=panels.ravel().tolist(), fraction=0.05, pad=0.02)
    bar.set_label(COSTS)
    wide = figure.bbox.width / figure.get_dpi()
    figure.supxlabel(textwrap.fill(LEGEND, int(wide / 0.075)), fontsize=7.5)
    headline(figure, title or _worst(drawn, "pair"))
    return out


def _cells(ax: Axes, outcomes: Sequence[Outcome], most: float, truth: Mapping[str, float]) -> Any:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    first, second = outcomes[0]["changes"]
    values = bool(outcomes[0].get("values"))
    down = sorted({number_of(o["changes"][first]) for o in outcomes})
    along = sorted({number_of(o["changes"][second]) for o in outcomes})
    cost = np.full((len(down), len(along)), math.nan)
    ends = LinearSegmentedColormap.from_list("about zero", [BLUE, "white", VERMILLION])
    places = {
        (down.index(number_of(o["changes"][first])), along.index(number_of(o["changes"][second]))): o for o in outcomes
    }
    for place, o in places.items():
        cost[place] = number_of(o["difference"])
    image = ax.pcolormesh(cost, cmap=ends, vmin=-most, vmax=most, edgecolors="white", linewidth=1.5)
    true = [truth.get(first), truth.get(second)] if values else [1.0, 1.0]
    for (row, column), o in places.items():
        value, se = number_of(o["difference"]), number_of(o.get("difference_se"))
        low, high = _interval(o)
        if round(value) < 0:
            box = Rectangle((column, row), 1, 1, fill=False, hatch="////", edgecolor="white", linewidth=0, alpha=0.8)
            ax.add_patch(box)
        # Rounded first: a few cents less than nothing are no "-0".
        text = (f"{round(value):+,}" if round(value) else "0") + (f"\n± {se:,.0f}" if se == se else "")
        dark = abs(value) > 0.62 * most
        ax.text(
            column + 0.5,
            row + 0.5,
            text,
            ha="center",
            va="center",
            fontsize=8.5,
            fontweight="bold" if low > 0 or high < 0 else "normal",
            color="white" if dark and value < 0 else BLACK,
            bbox={"facecolor": ends(0.5 + 0.5 * value / most), "edgecolor": "none", "pad": 1.5},
        )
        if [down[row], along[column]] == true:
            ax.add_patch(Rectangle((column + 0.03, row + 0.03), 0.94, 0.94, fill=False, edgecolor=BLACK, linewidth=2.0))
    for axis, name, numbers in ((ax.yaxis, first, down), (ax.xaxis, second, along)):
        axis.set_ticks(np.arange(len(numbers)) + 0.5, [_tick(x, values, truth.get(name)) for x in numbers])
        axis.set_label_text(_axis_name(name, values, truth.get(name)))
    ax.tick_params(length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return image


def _tick(number: float, values: bool, true: float | None) -> str:
    if number == (true if values else 1.0):
        return f"{number:g}\n(truth)" if values else "true"
    return f"{number:g}" if values else _times(number)


def _axis_name(name: str, values: bool, true: float | None) -> str:
    unit = _unit(name)
    if values:
        return f"{name} ({unit})" if unit else name
    return name if true is None else f"{name} (truth: {true:g}{'' if unit in ('', 'probability') else f' {unit}'})"
