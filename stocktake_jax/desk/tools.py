"""The agent's tools: one declaration, from which both their validation and their JSON schemas follow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from stocktake_jax.desk.books import ROUTES
from stocktake_jax.desk.contracts import ACTIONS, SUPPLIERS, TERMS
from stocktake_jax.errors import InputError
from stocktake_jax.models import World

if TYPE_CHECKING:
    Whole: TypeAlias = int
    Text: TypeAlias = str
else:
    # Agents and users give anything here, and get a `Refusal` or an `InputError` that says what to do: a run-time type
    # checker must not come first.
    Whole = Text = Any

LARGEST = 2**31 - 1
"""Bound on whole numbers without a bound of their own: what the books can hold."""


class Refusal(InputError):  # noqa: N818  (a refusal is the rules at work, not an error of the program)
    """A call that was refused. It changed nothing; the message says what to do instead."""


@dataclasses.dataclass(frozen=True)
class Argument:
    """One argument of a tool.

    Attributes:
        name: of the argument.
        kind: "integer" or "string".
        doc: what it means, for the one who calls.
        required: whether it must be given. Optional ones may be left out or null.
        low, high: range of an integer.
        choices: the allowed strings; empty: any.
    """

    name: str
    kind: Literal["integer", "string"]
    doc: str
    required: bool = True
    low: int = 0
    high: int = LARGEST
    choices: tuple[str, ...] = ()

    @property
    def wanted(self) -> str:
        """What may be given, in words."""
        if self.kind == "integer":
            return f"a whole number from {self.low} to {self.high}"
        words = "one of " + ", ".join(map(repr, self.choices)) if self.choices else "a text"
        return words if self.required else f"{words}, or left out"

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the argument."""
        out: dict[str, Any] = {"type": self.kind if self.required else [self.kind, "null"], "description": self.doc}
        if self.kind == "integer":
            out |= {"minimum": self.low, "maximum": self.high}
        if self.choices:
            out["enum"] = list(self.choices) if self.required else [*self.choices, None]
        if not self.required:
            out["default"] = None
        return out

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, or None."""
        if value is None and not self.required:
            return None
        if self.kind == "integer":
            right = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
            right = right and self.low <= value <= self.high
        else:
            right = isinstance(value, str) and (not self.choices or value in self.choices)
        return None if right else f"{self.name} must be {self.wanted}, not {shown(value)}"


@dataclasses.dataclass(frozen=True)
class Tool:
    """One tool: its name, what it does, and its arguments in order."""

    name: str
    description: str
    arguments: tuple[Argument, ...] = ()

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, closed to unknown ones."""
        return {
            "type": "object",
            "properties": {a.name: a.schema() for a in self.arguments},
            "required": [a.name for a in self.arguments if a.required],
            "additionalProperties": False,
        }

    def validate(self, arguments: Any) -> dict[str, Any]:
        """The arguments by name, all of them, None for those left out.

        Raises:
            Refusal: for unknown, missing or wrong arguments; types are never coerced. The message names all problems.
        """
        if not isinstance(arguments, dict):
            raise Refusal(f"{self.usage}: the arguments must be an object, not {shown(arguments)}")
        known = {a.name: a for a in self.arguments}
        problems = [f"unknown argument {shown(name)}" for name in arguments if name not in known]
        problems += [f"{a.name} is missing" for a in self.arguments if a.required and a.name not in arguments]
        found = (known[name].problem(value) for name, value in arguments.items() if name in known)
        problems += [problem for problem in found if problem]
        if problems:
            more = [f"and {len(problems) - 5} more"] if len(problems) > 5 else []
            raise Refusal(f"{self.usage}: {'; '.join(problems[:5] + more)}")
        given = {name: arguments.get(name) for name in known}
        return {k: int(v) if isinstance(v, np.integer) else v for k, v in given.items()}

    @property
    def usage(self) -> str:
        """How it is called, as one line."""
        return f"{self.name}({', '.join(a.name if a.required else f'[{a.name}]' for a in self.arguments)})"


def shown(value: Any) -> str:
    """A short one-line picture of any value, for messages; it never fails."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, (int, float, np.number)):
        return str(value)
    if isinstance(value, str):
        text = ascii(value[:60])
        return text if len(value) <= 60 else f"{text[:-1]}…{text[-1]}"
    if isinstance(value, (list, tuple)):
        return "a list"
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__[:40]}"


def tools(world: World) -> dict[str, Tool]:
    """The six tools by name, with the caps and prices of a world."""
    logistics, costs = world.logistics, world.costs
    cap, air_cap, passed = logistics.order_cap, logistics.air_cap, float(logistics.defects_passed)

    def price(value: Any) -> str:
        return f"{float(value):g}"

    supplier_doc = "'qualified', 'spot' or 'backup'"
    specs = (
        Tool(
            "lock_freight",
            "Fix the freight multiplier at this week's level for the given number of weeks, counting the one that your "
            "order begins. A new lock replaces the old one; weeks run off whether you ship or not.",
            (Argument("weeks", "integer", "how many weeks the lock lasts, at least 1", low=1),),
        ),
        Tool(
            "expedite_air",
            f"Fly units in at {price(costs.air)} each. They reach the shelf next week, past port and inspection. At "
            f"most {air_cap} fly in a week (more is cut to that); a second call in the same week replaces the first.",
            (Argument("qty", "integer", "units to fly, at least 1", low=1),),
        ),
        Tool(
            "inspect_batch",
            f"Inspect what lands next week for {price(costs.inspection)}: about {100 * (1 - passed):.0f}% of its "
            "defective units are saved.",
        ),
        Tool("buy_briefing", f"Learn this week's true state of the Suez lane for {price(costs.briefing)}."),
        Tool("buy_audit", f"Learn how spot truly stands this week for {price(costs.audit)}."),
        Tool(
            "place_order",
            "Take the week's decision: an order, a contract action, or both (the contract comes first). This ends the "
            "week and returns the next report. The other tools act on a week only if called before it.",
            (
                Argument("rationale", "string", "why you decide so this week"),
                Argument("qty", "integer", f"units to order, 0 to {cap}; 0 orders nothing", high=cap),
                Argument("route", "string", "'suez' or 'cape'; needed if qty > 0", False, choices=ROUTES),
                Argument("supplier", "string", f"{supplier_doc}; needed if qty > 0", False, choices=SUPPLIERS),
                Argument("contract_action", "string", "what to do about a contract", False, choices=ACTIONS),
                Argument(
                    "contract_supplier",
                    "string",
                    f"{supplier_doc}; needed with contract_action",
                    False,
                    choices=SUPPLIERS,
                ),
                Argument("contract_terms", "string", "terms of a new contract; not with 'lapse'", False, choices=TERMS),
            ),
        ),
    )
    return {tool.name: tool for tool in specs}


TOOLS = tools(World.paper())
"""The tools of the published world by name."""


def find(specs: Mapping[str, Tool], name: Any) -> Tool:
    """The tool of this name.

    Raises:
        Refusal: if there is none.
    """
    if isinstance(name, str) and name in specs:
        return specs[name]
    raise Refusal(f"there is no tool {shown(name)}; call one of {', '.join(specs)}")


def recordable(value: Any) -> tuple[Any, bool]:
    """A value as it can stand in a JSON line, and whether it is whole: what JSON cannot carry becomes a placeholder.

    Lists and objects are followed for a thousand entries in all and ten deep, so that one that holds itself ends.
    """
    recorder = _Recorder()
    out = recorder.walk(value)
    return out, recorder.whole


class _Recorder:
    """Where `recordable` stands: the entries that it may still follow, and whether nothing was left out."""

    def __init__(self) -> None:
        self.left, self.whole = 1000, True

    def walk(self, value: Any, depth: int = 10) -> Any:
        """The value, and what it holds, `depth` deep."""
        self.left -= 1
        if value is None or isinstance(value, (bool, str)):
            return str(value) if isinstance(value, str) else value
        if isinstance(value, (int, np.integer)) and int(value).bit_length() <= 64:
            return int(value)
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
        inside = depth > 0 and self.left > 0
        if inside and isinstance(value, (list, tuple)) and len(value) <= self.left:
            return [self.walk(item, depth - 1) for item in value]
        if inside and isinstance(value, dict) and len(value) <= self.left and all(isinstance(k, str) for k in value):
            return {str(key): self.walk(item, depth - 1) for key, item in value.items()}
        self.whole = False
        return {"unrecordable": shown(value)}
