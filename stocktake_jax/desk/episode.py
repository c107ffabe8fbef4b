"""An episode as an agent plays it: observe, use tools, place the week's order; journalled, and closed to peeking."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import threading
from collections.abc import Callable
from typing import Any, NoReturn, Self

import jax
import numpy as np

from stocktake_jax.desk.books import ROUTES, Bill, Books, Decision, check_rules, decision_error, shocks, step_jit
from stocktake_jax.desk.contracts import ACTIONS, SUPPLIERS, TERMS, Rules, host
from stocktake_jax.desk.journal import Journal
from stocktake_jax.desk.observation import AUDITS, BRIEFINGS, Observation, breakdown, observe, shown_values
from stocktake_jax.desk.tools import Refusal, Text, Tool, Whole, find, recordable, shown, tools
from stocktake_jax.errors import InputError
from stocktake_jax.models import HORIZON, Tape, World


@dataclasses.dataclass(frozen=True)
class _Week:
    """What was done in a week that is over, for `Episode.result`."""

    order: dict[str, Any]
    contract: dict[str, Any] | None
    levers: dict[str, int]
    rationale: str
    cost: float
    breakdown: dict[str, float]


@dataclasses.dataclass(frozen=True)
class _State:
    """Everything that a call can change. A call makes a new one, so that a refused call leaves no trace.

    Attributes:
        books, bill: of this week.
        levers: bought this week, before the order: lock_weeks, air, inspect, briefing, audit.
        permits: orders left in this turn; None while nobody has begun a turn.
        past: the weeks that are over.
    """

    books: Books
    bill: Bill | None = None
    levers: dict[str, int] = dataclasses.field(default_factory=dict)
    permits: int | None = None
    past: tuple[_Week, ...] = ()


class _Desk:
    """The episode behind the agent's API. It knows the tape, so no public attribute of `Episode` may lead here."""

    def __init__(
        self,
        seed: int | None,
        tape: Tape,
        world: World,
        rules: Rules,
        journal: Callable[[dict[str, Any]], Journal] | None,
    ) -> None:
        self.seed, self.tape, self.world, self.rules = seed, tape, world, rules
        self.tools = tools(world)
        self.shocks = shocks(world, tape)
        self.values = shown_values(world, tape)
        self.state = _State(Books.start(world))
        self.ended = False
        self.lock = threading.RLock()
        self.journal = journal(self._header()) if journal else None

    def _header(self) -> dict[str, Any]:
        """What a journal must say for the episode to be made again."""
        toml = self.world.to_toml()
        return {
            "package": _version(),
            "rules": self.rules,
            "seed": self.seed,
            "tape": None if self.seed is not None else tape_digest(self.tape),
            "world": None if toml == World.paper().to_toml() else toml,
        }

    # -- reading

    @property
    def week(self) -> int:
        return int(self.state.books.week)

    @property
    def done(self) -> bool:
        return self.week >= HORIZON

    @property
    def cost(self) -> float:
        return sum(w.cost for w in self.state.past)

    def observe(self) -> Observation:
        books = self.state.books
        weeks = self.state.levers.get("lock_weeks", 0)
        if weeks:
            books = dataclasses.replace(books, lock_rate=books.multiplier, lock_weeks=host(weeks))
        return observe(self.world, books, self.values[self.week], self.state.bill)

    # -- calls

    def begin_turn(self) -> None:
        with self.lock:
            if self.done:
                raise Refusal(_over())
            self._record({"turn": len(self.state.past)})
            self.state = dataclasses.replace(self.state, permits=1)

    def call(self, name: Any, arguments: Any) -> Any:
        with self.lock:
            try:
                result, state = self._answer(name, arguments)
            except Refusal as refusal:
                self._record(self._entry(name, arguments) | {"ok": False, "message": str(refusal)})
                raise
            entry = self._entry(name, arguments) | {"ok": True, "result": digest(result)}
            if state.past is not self.state.past:
                entry["cost"] = state.past[-1].cost
            self._record(entry)
            self.state = state
            self.close_books()
            return result

    def close_books(self) -> None:
        """After the last week, one more line with the total."""
        if self.done and not self.ended:
            self._record({"end": self.week, "total": self.cost})
            self.ended = True

    def _entry(self, name: Any, arguments: Any) -> dict[str, Any]:
        (tool, args), whole = recordable([name, arguments])
        entry = {"week": self.week, "tool": tool, "args": args}
        return entry if whole else entry | {"whole": False}

    def _record(self, entry: dict[str, Any]) -> None:
        if self.journal is not None:
            self.journal.append(entry)

    def _answer(self, name: Any, arguments: Any) -> tuple[Any, _State]:
        """The result of a call and the state after it; the state itself is not touched."""
        tool = find(self.tools, name)
        if self.done:
            raise Refusal(_over())
        values = tool.validate(arguments)
        if tool.name == "place_order":
            return self._place_order(**values)
        lever, amount, result = self._lever(tool.name, values)
        return result, dataclasses.replace(self.state, levers=self.state.levers | {lever: amount})

    def _lever(self, name: str, values: dict[str, Any]) -> tuple[str, int, dict[str, Any]]:
        """Which lever a tool pulls, how far, and what it answers."""
        costs, logistics = self.world.costs, self.world.logistics
        state = {factor: int(self.tape.states[factor][self.week]) for factor in ("canal", "supplier")}
        match name:
            case "lock_freight":
                weeks = values["weeks"]
                return "lock_weeks", weeks, {"rate": float(self.state.books.multiplier), "weeks_left": weeks}
            case "expedite_air":
                qty = min(values["qty"], logistics.air_cap)
                return "air", qty, {"qty": qty, "unit_cost": float(costs.air)}
            case "inspect_batch":
                caught = 1.0 - float(logistics.defects_passed)
                return "inspect", 1, {"fee": float(costs.inspection), "catch_rate": caught}
            case "buy_briefing":
                regime = self.world.canal.states[state["canal"]].regime
                return "briefing", 1, {"fee": float(costs.briefing), "regime": regime, "text": BRIEFINGS[regime]}
            case _:
                band = self.world.supplier.state_bands[state["supplier"]]
                return "audit", 1, {"fee": float(costs.audit), "band": band, "text": AUDITS[band]}

    def _place_order(
        self,
        rationale: str,
        qty: int,
        route: str | None,
        supplier: str | None,
        contract_action: str | None,
        contract_supplier: str | None,
        contract_terms: str | None,
    ) -> tuple[Observation, _State]:
        state = self.state
        if state.permits == 0:
            raise Refusal("this turn's order has been placed; read the new week's report and order in your next turn")
        if self.rules == "strict" and not rationale.strip():
            raise Refusal("rationale is empty; say why you decide so, and call again")
        if contract_action is None:
            stray = [n for n, v in (("supplier", contract_supplier), ("terms", contract_terms)) if v is not None]
            if stray:
                given = " and ".join(f"contract_{n}" for n in stray)
                raise Refusal(f"{given} without contract_action; give contract_action, or leave {given} out")
        elif contract_supplier is None:
            raise Refusal(f"contract_action {contract_action!r} needs contract_supplier: qualified, spot or backup")
        elif contract_action == "lapse" and contract_terms is not None:
            raise Refusal("contract_action 'lapse' takes no contract_terms; leave them out")
        # Without an order there is neither route nor supplier, whatever was given.
        route, supplier = (route, supplier) if qty else (None, None)
        decision = Decision.make(
            qty=qty,
            route=_index(ROUTES, route),
            supplier=_index(SUPPLIERS, supplier),
            action=_index(ACTIONS, contract_action) + 1,
            contract_supplier=_index(SUPPLIERS, contract_supplier),
            terms=_index(TERMS, contract_terms) + 1,
            **state.levers,
        )
        error = decision_error(self.world, state.books, decision, self.rules)
        if error:
            raise Refusal(error)
        books, bill = step_jit(self.world, state.books, decision, self.shocks.week(self.week + 1), self.rules)
        items = breakdown(bill)
        contract = {"action": contract_action, "supplier": contract_supplier, "terms": contract_terms}
        done = _Week(
            order={"qty": qty, "route": route, "supplier": supplier},
            contract=contract if contract_action else None,
            levers=state.levers,
            rationale=rationale,
            cost=sum(items.values()),
            breakdown=items,
        )
        permits = None if state.permits is None else 0
        new = _State(books, bill, permits=permits, past=(*state.past, done))
        return observe(self.world, books, self.values[int(books.week)], bill), new

    # -- going on from a journal

    def replay(self, entries: list[dict[str, Any]], path: Any) -> None:
        """Bring the episode to where its journal ends.

        Raises:
            InputError: naming the line that this package, playing the same calls, does not arrive at.
        """
        for line, entry in enumerate(entries, 2):
            try:
                problem = self._redo(entry)
            except (KeyError, TypeError):
                problem = "it is not a line of an episode"
            if problem:
                raise InputError(f"{path}: line {line} contradicts the episode: {problem}")

    def _redo(self, entry: dict[str, Any]) -> str | None:
        if "turn" in entry:
            if entry["turn"] != self.week or self.done:
                return f"a turn of week {entry['turn']} in week {self.week}"
            self.state = dataclasses.replace(self.state, permits=1)
            return None
        if "end" in entry:
            if not self.done or not _same_cost(entry["total"], self.cost):
                return f"the total is {self.cost} after week {self.week}"
            self.ended = True
            return None
        if entry["week"] != self.week:
            return f"a call of week {entry['week']} in week {self.week}"
        if not entry.get("whole", True):
            return "a call that cannot be repeated was accepted" if entry["ok"] else None
        try:
            result, state = self._answer(entry["tool"], entry["args"])
        except Refusal as refusal:
            return f"the call is refused now: {refusal}" if entry["ok"] else None
        if not entry["ok"]:
            return "the call was refused then and is accepted now"
        if digest(result) != entry["result"]:
            return "the result of the call is another one now"
        if state.past is not self.state.past and not _same_cost(entry["cost"], state.past[-1].cost):
            return f"the week costs {state.past[-1].cost} now, not {shown(entry['cost'])}"
        self.state = state
        return None

    def result(self) -> dict[str, Any]:
        if not self.done:
            raise InputError(f"the episode is in week {self.week} of {HORIZON}; its result comes after the last order")
        weeks = [
            {
                "week": number,
                "order": w.order,
                "contract": w.contract,
                "levers": dict(w.levers),
                "rationale": w.rationale,
                "cost": w.cost,
                "breakdown": dict(w.breakdown),
            }
            for number, w in enumerate(self.state.past)
        ]
        seed = -1 if self.seed is None else self.seed
        return {
            "seed": self.seed,
            "rules": self.rules,
            "total": self.cost,
            "weeks": weeks,
            "truth": self.tape.to_json(seed, self.world)["weeks"],
        }


class Episode:
    """One episode of 26 weeks on a hidden tape.

    Play it week by week: read `observe()`, use any of the five tools, end the week with `place_order`, which returns
    the next observation. Tools can be called as methods or by name through `call`, which is what agents go through;
    both validate alike. A refused call raises `Refusal` and changes nothing.

    Harnesses in which a model may send several orders in one message call `begin_turn()` before each message: from then
    on each turn allows one order. Without it every observation is followed by at most one order anyway.

    Nothing public tells hidden values, the seed among them, before the episode is done.

    Args:
        seed: of a published tape.
        world: the true world, by default the paper's.
        rules: "paper" (all published numbers) or "strict".
        journal: a path; every call is recorded there, and `Episode.resume` goes on from it after a crash.
        tape: instead of a seed, a tape of one's own, without batch axes.

    Raises:
        InputError: if neither or both of seed and tape are given, or for a bad value of any argument.
    """

    def __init__(
        self,
        seed: Whole | None = None,
        world: World | None = None,
        rules: Text = "paper",
        journal: str | os.PathLike[str] | None = None,
        *,
        tape: Tape | None = None,
    ) -> None:
        begin = None if journal is None else functools.partial(Journal.create, journal)
        desk = _open(seed, world, rules, tape, begin)
        # A closure, and not the desk itself: nothing found by walking attributes leads to the tape.
        self._desk: Callable[[], _Desk] = lambda: desk

    @classmethod
    def resume(cls, journal: str | os.PathLike[str], *, tape: Tape | None = None) -> Self:
        """Go on with an episode from its journal.

        A last line that was not written completely is dropped: that call never happened. Within one process this takes
        the journal over, and the older episode on it can no longer be played.

        Args:
            journal: the path that the episode was given.
            tape: the tape, if the episode was made from one instead of a seed.

        Raises:
            InputError: naming file and line, if the journal is damaged, of another format, or does not agree with what
                this package computes; or if another process is using it.
        """
        opened, header, entries = Journal.reopen(journal)
        try:
            try:
                seed, rules, toml, digest_then = (header[k] for k in ("seed", "rules", "world", "tape"))
                world = None if toml is None else World.from_toml(toml)
                if digest_then is not None and tape is None:
                    raise InputError("the episode was made from a tape; give it to Episode.resume(journal, tape=…)")
                if seed is not None and tape is not None:
                    raise InputError("the episode was made from a seed; resume it without a tape")
                desk = _open(seed, world, rules, tape, None)
                if digest_then is not None and tape_digest(desk.tape) != digest_then:
                    raise InputError("the episode was made from another tape")
            except (KeyError, TypeError) as error:
                raise InputError(f"{journal}: line 1 is no header of an episode ({error})") from None
            except InputError as error:
                raise InputError(f"{journal}: line 1: {error}") from None
            desk.replay(entries, journal)
            desk.journal = opened
            desk.close_books()
        except BaseException:
            opened.close()
            raise
        episode = cls.__new__(cls)
        episode._desk = lambda: desk
        return episode

    # -- reading

    @property
    def week(self) -> int:
        """The week that is to be decided; 26 when done."""
        return self._desk().week

    @property
    def done(self) -> bool:
        """Whether all 26 decisions have been taken."""
        return self._desk().done

    @property
    def cost(self) -> float:
        """Dollars billed so far."""
        return self._desk().cost

    @property
    def rules(self) -> Rules:
        """The rules in force."""
        return self._desk().rules

    @property
    def tools(self) -> dict[str, Tool]:
        """The tools by name, with this world's caps and prices."""
        return dict(self._desk().tools)

    def observe(self) -> Observation:
        """The observation of this week, as often as wanted; also after the last week. A new dict every time."""
        desk = self._desk()
        with desk.lock:
            return desk.observe()

    def result(self) -> dict[str, Any]:
        """After the last week: seed, total, every week's decision and bill, and the hidden truth.

        Raises:
            InputError: before that.
        """
        return self._desk().result()

    # -- calls

    def begin_turn(self) -> None:
        """Allow one order until the next `begin_turn`. A refused order does not use the permit up.

        Raises:
            Refusal: after the last week.
        """
        self._desk().begin_turn()

    def call(self, tool: Any, arguments: Any = None) -> Any:
        """Call a tool by name, as agents do. Any values may be given; wrong ones are refused, never coerced.

        Raises:
            Refusal: with one message that says what to do; nothing has changed then.
        """
        return self._desk().call(tool, {} if arguments is None else arguments)

    def lock_freight(self, weeks: Whole) -> dict[str, Any]:
        """Fix the freight multiplier at this week's value, for `weeks` weeks counting the one that the order begins.

        Returns:
            `rate`, the multiplier, and `weeks_left`.
        """
        return self.call("lock_freight", {"weeks": weeks})

    def expedite_air(self, qty: Whole) -> dict[str, Any]:
        """Fly units in; at most the cap, and a second call in a week replaces the first.

        Returns:
            `qty` that will fly and `unit_cost`.
        """
        return self.call("expedite_air", {"qty": qty})

    def inspect_batch(self) -> dict[str, Any]:
        """Inspect next week's arrivals.

        Returns:
            `fee` and `catch_rate`, the share of defective units that is saved.
        """
        return self.call("inspect_batch", {})

    def buy_briefing(self) -> dict[str, Any]:
        """Learn the canal's true regime.

        Returns:
            `fee`, `regime` and `text`.
        """
        return self.call("buy_briefing", {})

    def buy_audit(self) -> dict[str, Any]:
        """Learn spot's true band.

        Returns:
            `fee`, `band` and `text`.
        """
        return self.call("buy_audit", {})

    def place_order(
        self,
        rationale: Text,
        qty: Whole,
        route: Text | None = None,
        supplier: Text | None = None,
        contract_action: Text | None = None,
        contract_supplier: Text | None = None,
        contract_terms: Text | None = None,
    ) -> Observation:
        """Take the week's decision; the contract action comes first, then the order, then the new week.

        Returns:
            The observation of the new week.

        Raises:
            Refusal: if the decision is not allowed; nothing has changed then, the contract included.
        """
        arguments = {
            "rationale": rationale,
            "qty": qty,
            "route": route,
            "supplier": supplier,
            "contract_action": contract_action,
            "contract_supplier": contract_supplier,
            "contract_terms": contract_terms,
        }
        return self.call("place_order", arguments)

    # -- housekeeping

    def close(self) -> None:
        """Let go of the journal. Without one this does nothing."""
        journal = self._desk().journal
        if journal is not None:
            journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Episode(week={self.week}, cost={self.cost:.2f}, rules={self.rules!r})"

    def __reduce__(self) -> NoReturn:
        # A copy that can be played ahead would show the future.
        raise TypeError("an episode cannot be copied or pickled; its journal can be resumed")


def _open(
    seed: Any,
    world: World | None,
    rules: Any,
    tape: Tape | None,
    journal: Callable[[dict[str, Any]], Journal] | None,
) -> _Desk:
    check_rules(rules)
    if (seed is None) == (tape is None):
        raise InputError("an episode needs a seed or a tape, and not both")
    world = World.paper() if world is None else world
    if tape is None:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise InputError(f"a seed is a whole number of at least 0, not {shown(seed)}")
        seed = int(seed)
        tape = Tape.published(seed, world)
    if any(isinstance(x, jax.Array) for x in jax.tree.leaves(tape)):
        tape = tape.snapped(world)
    shapes = {np.shape(x) for x in jax.tree.leaves(tape)}
    if shapes != {(HORIZON + 1,)}:
        raise InputError(f"an episode takes one tape of {HORIZON + 1} weeks, not arrays of shape {sorted(shapes)}")
    return _Desk(seed, tape, world, rules, journal)


def _index(names: tuple[str, ...], name: str | None) -> int:
    return -1 if name is None else names.index(name)


def _over() -> str:
    return f"the episode is over: all {HORIZON} weeks are decided, and nothing can be called any more"


def digest(result: Any) -> str:
    """A short fingerprint of a call's result without its wording, which may change between versions, and its dollars.

    Dollars may differ in the last digit on other hardware; they are compared with a tolerance instead.
    """
    facts = {k: v for k, v in result.items() if k not in ("bulletin", "text", "cost_breakdown")}
    return hashlib.sha256(json.dumps(facts, ensure_ascii=True, separators=(",", ":")).encode()).hexdigest()[:16]


def _same_cost(a: Any, b: float) -> bool:
    return isinstance(a, (int, float)) and abs(a - b) <= 1e-6


def tape_digest(tape: Tape) -> str:
    """A fingerprint of all that a tape holds."""
    parts = hashlib.sha256()
    for leaf in jax.tree.leaves(tape):
        parts.update(np.ascontiguousarray(leaf).astype(np.float64).tobytes())
    return parts.hexdigest()[:16]


def _version() -> str:
    try:
        return importlib.metadata.version("stocktake-jax")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
