"""Episodes: what a policy had, ordered, missed and paid; and one decision of the oracle taken apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stocktake_jax.desk import ACTIONS, ROUTES, SUPPLIERS, TERMS
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.benchmark import SeedResult
from stocktake_jax.evaluation.catalog import stress
from stocktake_jax.evaluation.explain import Explained
from stocktake_jax.evaluation.ledger import BOOKS, Ledger
from stocktake_jax.evaluation.simulate import ITEMS
from stocktake_jax.models import HORIZON, Tape, World
from stocktake_jax.plots.style import (
    BLACK,
    BLUE,
    GREY,
    LOOKS,
    ORANGE,
    PALE,
    SKY,
    STRESS,
    VERMILLION,
    Axes,
    Canvas,
    Look,
    axes_of,
    first_free,
    headline,
    new_figure,
    shade,
    styled,
    weeks_axis,
    words,
)


def saved_ledgers(result: SeedResult) -> dict[str, Ledger]:
    """Run 1 of the floor and of the oracle on a seed, from a saved result of the benchmark."""
    return {policy: _ledger(weeks) for policy, weeks in result.weeks.items()}


def _ledger(weeks: Sequence[Mapping[str, Any]]) -> Ledger:
    def index(names: Sequence[str], name: str | None, none: int) -> int:
        return none if name is None else names.index(name) + none + 1

    def decided(d: Mapping[str, Any]) -> dict[str, int]:
        words_ = {
            "route": index(ROUTES, d["route"], -1),
            "supplier": index(SUPPLIERS, d["supplier"], -1),
            "action": index(ACTIONS, d["contract_action"], 0),
            "contract_supplier": index(SUPPLIERS, d["contract_supplier"], -1),
            "terms": index(TERMS, d["contract_terms"], 0),
        }
        return words_ | {k: int(d[k]) for k in ("qty", "lock_weeks", "air", "inspect", "briefing", "audit")}

    decisions = [decided(week["decision"]) for week in weeks]
    return Ledger(
        {item: np.array([0.0, *(w["bill"].get(item, 0.0) for w in weeks)]) for item in ITEMS},
        {name: np.array([d[name] for d in decisions], np.int64) for name in decisions[0]},
        np.array([0, *(w["books"]["unmet"] for w in weeks)], np.int64),
        ("",) * len(weeks),
        {name: np.array([w["books"][name] for w in weeks], np.int64) for name in BOOKS},
    )


SHELF = "#B5D3E7"

ITEM_NAMES = {"couple": "crisis back-orders", "dual_source": "second contract", "stockout": "stockouts"}
"""Items of the bill whose keys do not explain themselves."""

SHOWN_ITEMS = 6
"""Items of the bill that are shown by themselves: the largest ones; the rest is `other`."""


@styled
def books(
    episodes: Mapping[str, Ledger],
    tape: Tape | None = None,
    world: World | None = None,
    *,
    title: str | None = None,
    figure: Canvas | None = None,
) -> dict[str, dict[str, Axes]]:
    """The books of one or several policies on the same tape, side by side.

    From the top: units on the shelf and at sea, with stockouts marked; units ordered by sea and flown in; the weekly bill,
    stacked by its items.

    Args:
        episodes: name of the policy -> its ledger, with its books (`ledger.read_journal(...).play()`,
            `ledger.of_trajectories`, `saved_ledgers`).
        tape: a single tape; weeks in which any factor is under stress are shaded.
        world: the tape's; the published one by default.
        title: of the figure; by default who paid least.
        figure: to draw in; a new one by default.

    Returns:
        name of the policy -> `stock`, `orders` and `bill` -> axes.

    Raises:
        InputError: for no episodes, or a ledger without books.
    """
    if not episodes:
        raise InputError("there is no episode to draw")
    for name, e in episodes.items():
        if not e.books:
            raise InputError(f"the ledger of {name} has no books; play its record again")
    figure = figure if figure is not None else new_figure(4.4 * len(episodes) + 1.9, 7.2)
    grid = figure.subplots(
        3, len(episodes), sharex=True, sharey="row", squeeze=False, gridspec_kw={"height_ratios": (3, 1.6, 3)}
    )
    items = _items(list(episodes.values()))
    stressed = None if tape is None else stress(tape, world or World.paper()).any(0)
    for column, (name, e) in enumerate(episodes.items()):
        stock, orders, bill = grid[:, column]
        for ax in (stock, orders, bill):
            if stressed is not None:
                shade(ax, stressed, STRESS, "////")
        _stock(stock, e)
        _orders(orders, e)
        _bill(bill, e, items)
        stock.set_title(f"{name}: {_dollars(e.cost)}, {int(e.unmet.sum())} units of demand lost", fontweight="bold")
        weeks_axis(bill, HORIZON + 1)
    for ax, label in zip(grid[:, 0], ("units", "units ordered", "bill of the week ($)"), strict=True):
        ax.set_ylabel(label)
    tallest = max(
        max(int(column.max()) for column in (e.books["inventory"], e.books["on_order"])) for e in episodes.values()
    )
    grid[0, 0].set_ylim(0, 1.08 * max(tallest, 1))
    _break_bills(list(grid[2]), list(episodes.values()))
    headline(figure, title or _finding(episodes))
    stock, orders, bill = grid[:, -1]
    _books_legends(stock, orders, bill, items, stressed is not None)
    return {
        name: dict(zip(("stock", "orders", "bill"), grid[:, column], strict=True))
        for column, name in enumerate(episodes)
    }


def _finding(episodes: Mapping[str, Ledger]) -> str:
    """Who pays least, and where the dearest one loses most against it."""
    best = min(episodes, key=lambda n: episodes[n].cost)
    cheap = episodes[best]
    if len(episodes) == 1:
        item = max(ITEMS, key=lambda i: float(cheap.bill[i].sum()))
        return f"{cheap.bill[item].sum() / cheap.cost:.0%} of what {best} pays is for {_item(item)}"
    worst = max(episodes, key=lambda n: episodes[n].cost)
    dear = episodes[worst]
    less = {i: float(dear.bill[i].sum() - cheap.bill[i].sum()) for i in ITEMS}
    item = max(ITEMS, key=lambda i: less[i])
    said = f"{best} pays {_dollars(dear.cost - cheap.cost)} less than {worst}"
    return said + (f"; it saves most on {_item(item)} ({_dollars(less[item])})" if less[item] > 0 else "")


def _item(name: str) -> str:
    return ITEM_NAMES.get(name, words(name))


def _dollars(amount: float) -> str:
    return f"${amount:,.0f}"


def _items(episodes: Sequence[Ledger]) -> dict[str, tuple[Look, tuple[str, ...]]]:
    """What is stacked: name -> its look and the items of the bill that it adds up."""
    total = {item: sum(float(e.bill[item].sum()) for e in episodes) for item in ITEMS}
    ranked = [item for item in sorted(ITEMS, key=lambda i: -total[i]) if total[item] > 0]
    shown = [item for item in ITEMS if item in ranked[:SHOWN_ITEMS]]
    rest = tuple(ranked[SHOWN_ITEMS:])
    out: dict[str, tuple[Look, tuple[str, ...]]] = {
        item: (look, (item,)) for item, look in zip(shown, LOOKS, strict=False)
    }
    if rest:
        out["other"] = (Look(PALE, "-", "o", "oo"), rest)
    return out


def _stock(ax: Axes, e: Ledger) -> None:
    week, shelf = np.arange(1, HORIZON + 1), e.books["inventory"]
    ax.fill_between(week, shelf, step="mid", color=SHELF, linewidth=0)
    ax.step(week, shelf, where="mid", color=BLUE)
    ax.plot(week, e.books["on_order"], color=BLACK, linestyle="--", linewidth=1.2)
    short = e.stockout[1:]
    if short.any():  # the layout takes a line without points for one that is everywhere
        ax.plot(
            week[short],
            np.zeros(short.sum()),
            linestyle="none",
            marker="X",
            color=VERMILLION,
            markersize=8,
            clip_on=False,
            mec="white",
            mew=0.6,
            zorder=5,
        )


def _orders(ax: Axes, e: Ledger) -> None:
    week, sea, air = np.arange(1, HORIZON + 1), e.decision["qty"], e.decision["air"]
    ax.bar(week, sea, width=0.7, color=SKY, edgecolor=BLACK, linewidth=0.4)
    ax.bar(week, air, width=0.7, bottom=sea, color=ORANGE, edgecolor=BLACK, linewidth=0.4, hatch="xxxx")


def _bill(ax: Axes, e: Ledger, items: Mapping[str, tuple[Look, tuple[str, ...]]]) -> None:
    week = np.arange(1, HORIZON + 1)
    base, below = np.zeros(len(week)), np.zeros(len(week))
    for look, parts in items.values():
        amount = np.sum([e.bill[part][1:] for part in parts], axis=0)
        # A lock can make an item negative; it then hangs below the axis.
        up = amount >= 0
        ax.bar(
            week,
            amount,
            width=0.85,
            bottom=np.where(up, base, below),
            color=look.color,
            hatch=look.hatch,
            edgecolor="white",
            linewidth=0.2,
        )
        base, below = base + np.where(up, amount, 0.0), below + np.where(up, 0.0, amount)


def _break_bills(axes: Sequence[Axes], episodes: Sequence[Ledger]) -> None:
    """Where a few weeks' bills dwarf all others, the scale is that of the others, and those bars say their amounts."""
    bills = [np.sum([e.bill[item] for item in ITEMS], axis=0) for e in episodes]
    ranked = np.sort(np.concatenate([bill[1:] for bill in bills]))[::-1]
    rest = float(ranked[int(np.ceil(0.05 * len(ranked)))])
    if not ranked[0] > 3 * rest > 0:
        return
    top = 1.3 * rest
    axes[0].set_ylim(top=top)
    for ax, bill in zip(axes, bills, strict=True):
        free: list[float] = []
        for week in np.flatnonzero(bill > top):
            line = first_free(free, week + 0.5, week + 4.5)
            ax.annotate(
                f"↑ {_dollars(float(bill[week]))}",
                (week + 0.5, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(1, -2 - 10 * line),
                textcoords="offset points",
                fontsize=7.5,
                fontweight="bold",
                ha="left",
                va="top",
                bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.6},
            )


def _books_legends(
    stock: Axes, orders: Axes, bill: Axes, items: Mapping[str, tuple[Look, tuple[str, ...]]], stressed: bool
) -> None:
    """What is what, to the right of each row."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    stocks: list[Any] = [
        Patch(facecolor=SHELF, edgecolor=BLUE, label="on the shelf"),
        Line2D([], [], color=BLACK, linestyle="--", linewidth=1.2, label="at sea"),
        Line2D([], [], color=VERMILLION, marker="X", linestyle="none", markersize=8, label="stockout"),
    ]
    if stressed:
        stocks.append(Patch(facecolor=STRESS, edgecolor="white", hatch="////", label="some factor\nunder stress"))
    ordered = [
        Patch(facecolor=SKY, edgecolor=BLACK, linewidth=0.4, label="by sea"),
        Patch(facecolor=ORANGE, edgecolor=BLACK, linewidth=0.4, hatch="xxxx", label="by air"),
    ]
    bills = [
        Patch(facecolor=look.color, hatch=look.hatch, edgecolor="white", linewidth=0.2, label=_item(name))
        for name, (look, _) in reversed(list(items.items()))
    ]
    for ax, handles in ((stock, stocks), (orders, ordered), (bill, bills)):
        ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0))


# ---- a decision -----------------------------------------------------------------------------------------------------


@styled
def decision(decision: Explained, *, most: int = 12, title: str | None = None, ax: Axes | None = None) -> Axes:
    """The oracle's decision of a week: what each candidate would cost on the sampled futures, and which it took.

    Dots are means over the futures, bars hold the middle 50 and 90 % of them. The candidate that was taken is marked, and a
    line shows what the weeks after it were billed in the end.

    Args:
        decision: from `evaluation.explain.explain`.
        most: candidates shown, the cheapest ones.
        title: by default what was chosen and by how much it was the cheapest.
        ax: to draw in; new ones by default.

    Raises:
        InputError: for `most` below 1.
    """
    if most < 1:
        raise InputError(f"at least one candidate must be shown, not {most}")
    d = decision
    mean = d.costs.mean(axis=1)
    # The same futures for all, so that the error of a difference is that of the differences.
    order = sorted(range(len(mean)), key=lambda i: (mean[i], i != d.chosen))[:most]
    ax = axes_of(ax, 9.5, 0.34 * len(order) + 2.0)
    for row, i in enumerate(order):
        taken = i == d.chosen
        color = VERMILLION if taken else BLUE
        low, left, right, high = np.quantile(d.costs[i], (0.05, 0.25, 0.75, 0.95))
        ax.plot([low, high], [row, row], color=color, linewidth=1.2)
        ax.plot([left, right], [row, row], color=color, linewidth=5.5, solid_capstyle="butt", alpha=0.6)
        ax.plot(
            mean[i], row, marker="D" if taken else "o", color=color, markersize=8 if taken else 6, mec="white", mew=0.8
        )
        ax.annotate(
            f"{_dollars(mean[i])}" + ("" if i == order[0] else f"  (+{mean[i] - mean[order[0]]:,.0f})"),
            (high, row),
            xytext=(6, 0),
            textcoords="offset points",
            fontsize=7.5,
            va="center",
            fontweight="bold" if taken else "normal",
        )
    ax.set_yticks(range(len(order)), [("> " if i == d.chosen else "") + d.labels[i] for i in order])
    for tick, i in zip(ax.get_yticklabels(), order, strict=True):
        tick.set_fontweight("bold" if i == d.chosen else "normal")
    ax.set_ylim(len(order) - 0.5, -0.9)
    ax.axvline(d.happened, color=BLACK, linestyle="--", linewidth=1.2, zorder=0)
    ax.annotate(
        f"happened: {_dollars(d.happened)}",
        (d.happened, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8,
    )
    low, high = ax.get_xlim()
    ax.set_xlim(low, high + 0.12 * (high - low))
    ax.set_xlabel(
        f"cost of weeks {d.week + 1} to {HORIZON} ($): mean, middle 50 % and 90 % of {d.costs.shape[1]} futures"
    )
    ax.grid(axis="x")
    ax.tick_params(axis="y", length=0)
    believed = ", ".join(
        f"{name} {p:.2f}" + (f" ({words(d.regimes[name])})" if true else "")
        for name, (p, true) in d.stress.items()
        if p >= 0.1 or true
    )
    said = f"Seed {d.seed}, week {d.week}: the oracle takes “{d.labels[d.chosen]}”"
    below = f"{d.position} units on shelf and at sea; P(stress): {believed or 'below 0.1 everywhere'}"
    ax.set_title(title or said, pad=34)
    ax.annotate(
        below, (0.0, 1.0), xycoords="axes fraction", xytext=(0, 19), textcoords="offset points", fontsize=8, color=GREY
    )
    return ax
