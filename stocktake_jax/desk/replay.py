"""Recorded episodes played again: the exchange shape of whole episodes, written and compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from stocktake_jax.desk.contracts import Rules
from stocktake_jax.desk.episode import Episode
from stocktake_jax.desk.tools import Refusal
from stocktake_jax.errors import InputError
from stocktake_jax.models import HORIZON, World

TOLERANCE = 1e-6
"""Numbers that differ by less are the same."""

NO_RATIONALE = "(no rationale recorded)"

LEFT_OUT = ("bulletin", "components", "served")
"""Keys of an observation that the exchange shape leaves out, as it does `component` in the pipeline."""


@dataclasses.dataclass(frozen=True)
class Replayed:
    """A recorded episode as this package plays it.

    Attributes:
        record: the same shape as what was given, with what was computed.
        differences: one line for each thing that the given record has otherwise.
    """

    record: dict[str, Any]
    differences: tuple[str, ...]


def replay(record: Any, rules: Rules = "paper", world: World | None = None) -> Replayed:
    """Play a recorded episode's calls again, and compare all that it records about their outcome.

    A record has `seed` and `weeks`; a week has `calls` (tool, args, ok, result), `order` (qty, route, supplier),
    `contract` (action, supplier, terms; or null), and what came of them: `cost` and `observation`, which are compared
    where they are there, as are `ok` and `result` of calls and the record's `total`. A missing rationale is accepted.
    Where an order goes through that was refused, or the other way round, the episode cannot be followed any further:
    that is the last difference.

    Raises:
        InputError: if the record has not this shape.
    """
    seed, weeks = _field(record, "seed", "the record"), _field(record, "weeks", "the record")
    if not isinstance(weeks, list) or len(weeks) > HORIZON:
        raise InputError(f"weeks must be a list of at most {HORIZON} weeks")
    episode = Episode(seed, world, rules)
    differences: list[str] = []
    played = []
    for number, week in enumerate(weeks):
        where = f"seed {seed} week {number}"
        out, lost = _replay_week(episode, week, where, differences)
        played.append(out)
        if lost:
            break
    kept = {k: v for k, v in record.items() if k not in ("seed", "total", "weeks")}
    new = {"seed": seed} | kept | {"total": episode.cost, "weeks": played}
    if len(played) == len(weeks) and "total" in record:
        differences += compare(episode.cost, record["total"], f"seed {seed} total")
    return Replayed(new, tuple(differences))


def _replay_week(episode: Episode, week: Any, where: str, differences: list[str]) -> tuple[dict[str, Any], bool]:
    """Play one week; the second value says that the record cannot be followed any further."""
    calls: list[dict[str, Any]] = []
    recorded = _field(week, "calls", where)
    if not isinstance(recorded, list):
        raise InputError(f"{where}: calls must be a list")
    for number, call in enumerate(recorded, 1):
        here = f"{where} call {number}"
        tool, args = _field(call, "tool", here), _field(call, "args", here)
        before = episode.week
        outcome = _call(episode, tool, args)
        if outcome["ok"] and "result" in call:
            differences += compare(outcome["result"], call["result"], f"{here} {tool} result")
        calls.append({"tool": tool, "args": args} | outcome)
        if "ok" in call and call["ok"] != outcome["ok"]:
            now, then = ("accepted", "refused") if outcome["ok"] else ("refused", "accepted")
            differences.append(f"{here}: {tool} {args} is {now}, recorded as {then}")
        if episode.week != before:
            differences.append(f"{here}: an order before the week's last one went through; the rest is not played")
            return {"calls": calls, "order": None, "contract": None, "cost": None, "observation": None}, True
    order, contract = _field(week, "order", where), week.get("contract")
    args = {"rationale": week.get("rationale") or NO_RATIONALE}
    args |= {key: _field(order, key, f"{where} order") for key in ("qty", "route", "supplier")}
    if contract is not None:
        names = ("action", "supplier", "terms")
        args |= {f"contract_{key}": _field(contract, key, f"{where} contract") for key in names}
    cost = episode.cost
    out = {"calls": calls, "order": order, "contract": contract}
    try:
        seen = episode.call("place_order", args)
    except Refusal as refusal:
        differences.append(f"{where}: the order is refused ({refusal}); the rest is not played")
        return out | {"cost": None, "observation": None}, True
    shown = exchanged(seen)
    out |= {"cost": sum(seen["cost_breakdown"].values()), "observation": shown}
    assert abs(episode.cost - cost - out["cost"]) < TOLERANCE
    if "cost" in week:
        differences += compare(out["cost"], week["cost"], f"{where} cost")
    if "observation" in week:
        differences += compare(shown, week["observation"], f"{where} observation")
    return out, False


def exchanged(observation: dict[str, Any]) -> dict[str, Any]:
    """An observation in the exchange shape, which leaves out what carries no information of its own."""
    shown = {key: value for key, value in observation.items() if key not in LEFT_OUT}
    shown["pipeline"] = [{k: v for k, v in ship.items() if k != "component"} for ship in shown["pipeline"]]
    return shown


def _call(episode: Episode, tool: Any, args: Any) -> dict[str, Any]:
    """The outcome of a call in the exchange shape: ok, and the result if there is one."""
    if tool == "place_order" and isinstance(args, dict):
        args = {"rationale": NO_RATIONALE} | args
    try:
        result = episode.call(tool, args)
    except Refusal:
        return {"ok": False}
    if tool in ("buy_briefing", "buy_audit"):
        result = result["regime" if tool == "buy_briefing" else "band"]
    return {"ok": True, "result": result}


def compare(computed: Any, recorded: Any, where: str) -> Iterator[str]:
    """One line for each place at which two JSON values differ: keys, their order, lengths, numbers, anything else."""
    if isinstance(computed, dict) and isinstance(recorded, dict):
        missing, extra = [k for k in recorded if k not in computed], [k for k in computed if k not in recorded]
        if missing:
            yield f"{where}: recorded but not computed: {', '.join(missing)}"
        if extra:
            yield f"{where}: computed but not recorded: {', '.join(extra)}"
        common = [k for k in computed if k in recorded]
        if common != [k for k in recorded if k in computed]:
            yield f"{where}: the keys come in another order"
        for key in common:
            yield from compare(computed[key], recorded[key], f"{where} {key}")
    elif isinstance(computed, list) and isinstance(recorded, list):
        if len(computed) != len(recorded):
            yield f"{where}: {len(computed)} entries computed, {len(recorded)} recorded"
        for number, (a, b) in enumerate(zip(computed, recorded, strict=False)):
            yield from compare(a, b, f"{where}[{number}]")
    elif _is_number(computed) and _is_number(recorded):
        if not abs(computed - recorded) <= TOLERANCE:
            yield f"{where}: {computed} computed, {recorded} recorded"
    elif type(computed) is not type(recorded) or computed != recorded:
        yield f"{where}: {computed!r} computed, {recorded!r} recorded"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _field(record: Any, key: str, where: str) -> Any:
    if not isinstance(record, dict):
        raise InputError(f"{where}: an object is wanted here, not {type(record).__name__}")
    if key not in record:
        raise InputError(f"{where}: there is no {key!r}")
    return record[key]
