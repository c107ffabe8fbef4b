"""The tables of `stocktake score` as plain text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stocktake_jax.evaluation.beliefs import GRACE, LAST, Rate
from stocktake_jax.evaluation.ledger import AFTERMATH, LOSSES, RESPONSES, STATUSES
from stocktake_jax.evaluation.published import PROFILES
from stocktake_jax.evaluation.simulate import ITEMS
from stocktake_jax.evaluation.skill import ALL, GROUPS
from stocktake_jax.evaluation.statistics import Interval

if TYPE_CHECKING:
    from stocktake_jax.evaluation.scoring import ScoreBoard

PRIVILEGED = "sees hidden states"

FEW = 4
"""With more agents than this, contrasts of rates are shown only where Holm's p is below `CLEAR`."""

CLEAR = 0.05


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """An aligned table: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        return "  ".join([first, *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))]).rstrip()

    ruler = "-" * (sum(widths) + 2 * (len(widths) - 1))
    return "\n".join([title, line(head), ruler, *map(line, rows), *(f"  {note}" for note in notes)])


def number(x: float, digits: int = 2) -> str:
    """A number, or a dash where it is undefined."""
    if math.isnan(x):
        return "-"
    text = f"{x:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text


def counted(rate: Rate) -> str:
    """A ratio of counts, as counts."""
    return f"{rate.numerator:g}/{rate.denominator:g}" if rate.denominator else "-"


def between(interval: Interval) -> str:
    """An interval, or nothing."""
    return "" if math.isnan(interval.low) else f" [{number(interval.low)}, {number(interval.high)}]"


def board_text(board: ScoreBoard) -> str:
    """All tables that the runs allow."""
    believing = [a for a in board.agents if "missed" in board.rates[a]]
    ledgers = [a for a in board.agents if "air_spend" in board.rates[a]]
    compared = [a for a in ledgers if "loss.all.total" in board.rates[a]]
    stating = [a for a in believing if board.rate(a, "brier").denominator]
    parts = [_skill(board)]
    if believing:
        parts += [_detection(board, believing), _knowing_doing(board, believing), _severity(board, believing)]
    if stating:
        parts.append(_probabilities(board, stating))
    for agent in ledgers:
        if f"cost.{STATUSES[0]}.total" in board.rates[agent]:
            parts.append(_costs(board, agent))
    if compared:
        parts.append(_losses(board, compared))
    if ledgers:
        parts.append(_responses(board, ledgers))
    if len(board.agents) > 1:
        parts.append(_contrasts(board))
    notes = _notes(board)
    return "\n\n".join([*parts, *([notes] if notes else [])]) + "\n"


def _name(board: ScoreBoard, agent: str) -> str:
    return f"{agent} ({PRIVILEGED})" if agent in board.privileged else agent


def _skill(board: ScoreBoard) -> str:
    rows = []
    for agent in board.agents:
        entry = board.skill[agent]
        cells = [
            f"{number(entry.groups[g].mean)} ({number(entry.groups[g].median)})"
            + (between(entry.groups[g].percentile) if g == ALL else "")
            for g in GROUPS
        ]
        finished, runs = board.runs[agent]
        below, beats = (board.rate(agent, metric) for metric in ("below_floor", "beats_floor"))
        rows.append([_name(board, agent), *cells, counted(below), counted(beats), f"{finished}/{runs}"])
    excluded = board.skill.excluded
    notes = ["mean (median) over seeds, 95% bootstrap interval of the mean; an unfinished run has no skill"]
    if excluded:
        seeds = ", ".join(map(str, excluded))
        notes.append(f"without the seed(s) on which the floor is no dearer than the oracle: {seeds}")
    return table("Skill", ["agent", *GROUPS, "below floor", "beats floor", "finished"], rows, notes)


def _detection(board: ScoreBoard, agents: Sequence[str]) -> str:
    rows = []
    for agent in agents:

        def rate(metric: str, agent: str = agent) -> Rate:
            return board.rate(agent, metric)

        rows.append(
            [
                _name(board, agent),
                counted(rate("missed_paper")),
                counted(rate("missed")),
                number(rate("mean_lag").value),
                counted(rate("missed_bounded")),
                number(rate("mean_lag_bounded").value),
                number(rate("detected_in_budget").value),
                number(rate("precision").value),
                number(rate("precision_lenient").value),
                number(rate("names_per_week").value),
                f"{rate('ungraded').numerator:g}",
            ]
        )
    left_out = board.rate(agents[0], "left_out")
    head = ["agent", "missed (paper)", "missed", "mean lag", "missed in time", "lag in time", "in budget"]
    head += ["precision", "lenient", "names/week", "ungraded"]
    in_time = (
        f"in time: until {GRACE} week after the episode; in budget: in time, {board.budget:g} name(s) a week counting"
    )
    notes = [
        f"paper: all episodes; mended: without those that begin in week 26 ({counted(left_out)} of {agents[0]}'s)",
        f"{in_time}; lenient: brewing trouble is a right name",
    ]
    return table("Detection", head, rows, notes)


def _knowing_doing(board: ScoreBoard, agents: Sequence[str]) -> str:
    rows = []
    for agent in agents:
        quoted = board.quoted.get(agent, {}).get("knowing_doing_quoted", {})
        estimate = board.rates[agent]["knowing_doing"]
        cells = [number(estimate[group].rate.value) for group in PROFILES]
        whole = estimate[ALL]
        cells.append(f"{number(whole.rate.value)}{between(whole.interval)} {counted(whole.rate)}")
        full = board.rate(agent, "knowing_doing_full")
        cells.append(f"{number(full.value)} {counted(full)}")
        cells += [number(quoted[g][0]) if g in quoted else "-" for g in (*PROFILES, ALL)]
        rows.append([_name(board, agent), *cells])
    head = ["agent", *PROFILES, ALL, "full coverage", *(f"quoted {g}" for g in (*PROFILES, ALL))]
    notes = [
        "share of diagnosed weeks with a stockout by the books; full coverage: every factor under stress is named",
        "quoted: as the paper prints them, from stockouts that missed units flown in; they cannot be recomputed",
    ]
    return table("Knowing-doing rate", head, rows, notes)


def _severity(board: ScoreBoard, agents: Sequence[str]) -> str:
    rows = []
    for agent in agents:
        quoted = board.quoted.get(agent, {})
        cells = []
        for metric in ("knowing_doing", "stockout_undiagnosed", "stockout_undiagnosed_paper", "stockout_calm"):
            rate = board.rate(agent, metric)
            cells.append(f"{number(rate.value)} ({rate.denominator:g})")
        for metric in ("knowing_doing_quoted", "stockout_undiagnosed_quoted"):
            value = quoted.get(metric, {}).get(ALL)
            cells.append(f"{number(value[0])} ({value[1]})" if value else "-")
        rows.append([_name(board, agent), *cells])
    head = [
        "agent",
        "diagnosed",
        "undiagnosed",
        "undiagnosed (paper)",
        "calm",
        "quoted diagnosed",
        "quoted undiagnosed",
    ]
    notes = [f"share of weeks with a stockout (weeks); weeks 1 .. {LAST}; paper: with week 26, which has no rationale"]
    return table("Severity check", head, rows, notes)


def _probabilities(board: ScoreBoard, agents: Sequence[str]) -> str:
    metrics = ("brier", "brier_filter", "brier_to_filter", "log_score", "log_score_filter", "log_to_filter")
    rows = []
    for agent in agents:
        stated, wrong = (board.rate(agent, m) for m in ("probability_stated", "certain_and_wrong"))
        cells = [number(board.rate(agent, metric).value, 3) for metric in metrics]
        rows.append([_name(board, agent), counted(stated), *cells, f"{wrong.numerator:g}"])
    head = ["agent", "stated", "Brier", "filter's", "to filter", "log score", "filter's", "to filter", "certain, wrong"]
    return table(
        "Stated probabilities of stress", head, rows, ["lower is better; filter: the exact one, same readings"]
    )


def _costs(board: ScoreBoard, agent: str) -> str:
    rates = board.rates[agent]
    beside = f"oracle.cost.{STATUSES[0]}.total" in rates
    statuses = [s for s in STATUSES if rates[f"cost.{s}.total"][ALL].rate.denominator]
    head = ["$ a week", *(x for s in statuses for x in ([s, "oracle"] if beside else [s]))]
    rows = []
    for item in (*ITEMS, "total"):
        cells = []
        for status in statuses:
            cells.append(number(rates[f"cost.{status}.{item}"][ALL].rate.value, 1))
            if beside:
                cells.append(number(rates[f"oracle.cost.{status}.{item}"][ALL].rate.value, 1))
        if any(float(c) for c in cells if c != "-"):
            rows.append([item, *cells])
    weeks = [f"{rates[f'cost.{s}.total'][ALL].rate.denominator:g}" for s in statuses]
    rows.append(["weeks", *(x for w in weeks for x in ([w, ""] if beside else [w]))])
    return table(f"Costs of {_name(board, agent)}", head, rows, ["by what its rationale of the week names"])


def _losses(board: ScoreBoard, agents: Sequence[str]) -> str:
    rows = []
    for agent in agents:
        cells = [number(board.rate(agent, f"loss.{p}.{k}").value, 0) for p in LOSSES for k in ("under", "over")]
        rows.append([_name(board, agent), *cells, number(board.rate(agent, "loss.all.total").value, 0)])
    head = ["$ a run above the oracle", *(f"{p}: {k}" for p in LOSSES for k in ("under", "over")), "all"]
    notes = [
        f"perception: up to {AFTERMATH} weeks after stress that was not named; control: after stress that was",
        "under: stockouts, back-orders, surcharges, demurrage, rework; over: goods, stock and levers",
    ]
    return table("Where the loss falls", head, rows, notes)


def _responses(board: ScoreBoard, agents: Sequence[str]) -> str:
    def cells(agent: str, prefix: str = "") -> tuple[str, ...]:
        known = f"{prefix}air_spend" in board.rates[agent]
        return tuple(_response(board.rates[agent], f"{prefix}{metric}") for metric in RESPONSES) if known else ()

    # The oracle stands once where all agents played the same seeds, and beside each of them otherwise.
    oracles = {agent: cells(agent, "oracle.") for agent in agents}
    alike = len(set(oracles.values())) == 1
    columns: list[tuple[str, tuple[str, ...]]] = []
    for agent in agents:
        columns.append((_name(board, agent), cells(agent)))
        if oracles[agent] and (not alike or agent == agents[-1]):
            columns.append(("oracle", oracles[agent]))
    rows = [[metric, *(column[i] for _, column in columns)] for i, metric in enumerate(RESPONSES)]
    head = ["response", *(name for name, _ in columns)]
    return table("Responses", head, rows, [f"{name}: {text}" for name, text in RESPONSES.items()])


def _response(rates: Mapping[str, Mapping[str, object]], metric: str) -> str:
    rate: Rate = rates[metric][ALL].rate  # type: ignore[attr-defined]
    return number(rate.value, 0 if metric.endswith(("cost", "spend")) else 2)


def _contrasts(board: ScoreBoard) -> str:
    rows = []
    many = len(board.agents) > FEW
    for row in board.contrast_rows():
        low, high, difference, p, holm = (
            math.nan if row[key] is None else float(str(row[key]))
            for key in ("low", "high", "difference", "p", "p_holm")
        )
        cells = [
            f"{number(difference)}{between(Interval(low, high))}",
            number(p, 3),
            number(holm, 3),
            str(row["seeds"]),
        ]
        rows.append([str(row["metric"]), f"{row['first']} - {row['second']}", *cells])
    notes = [
        "paired by seed; skill: mean difference, Wilcoxon; rates: difference of pooled rates, agents swapped by seed",
        "Holm: adjusted over the pairs of agents, metric by metric",
    ]
    if many:
        notes.append(f"of the rates only pairs with Holm's p below {CLEAR:g}; `--out` writes all of them")
    return table("Contrasts", ["metric", "pair", "difference", "p", "Holm", "seeds"], rows, notes)


def _notes(board: ScoreBoard) -> str:
    lines = [
        f"  {agent}: " + "; ".join(f"{key} {', '.join(values)}" for key, values in board.notes[agent].items())
        for agent in board.agents
        if board.notes[agent]
    ]
    return "\n".join(["How the runs came about", *lines]) if lines else ""
