"""An episode as an agent meets it: prompt, tools and texts of one arm, the same through every way of playing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from stocktake_jax.agents.prompt import PERCENT, RENAMED, arm_tools, check_arm, prompt_hash, rename, system_prompt
from stocktake_jax.desk import Episode, Observation, Refusal, Tool
from stocktake_jax.desk.tools import find
from stocktake_jax.evaluation.beliefs import with_probabilities
from stocktake_jax.models import HORIZON, World

OVER = f"The episode is over: all {HORIZON} weeks are decided."

_REAL = {new: old for old, new in RENAMED.items()}


@dataclass(frozen=True)
class Answer:
    """What a call gave.

    Attributes:
        ok: whether it was accepted.
        text: what the agent is shown, byte for byte.
        data: the result, or None if the call was refused.
    """

    ok: bool
    text: str
    data: dict[str, Any] | None


class Session:
    """One episode in one arm. Everything that an agent is shown comes from here.

    Args:
        episode: to play; its journal, if it has one, records every call.
        arm: see `prompt.Arm`.
        world: the episode's true world, whose prices the prompt tells; the published one by default.
    """

    def __init__(self, episode: Episode, arm: str = "rules", world: World | None = None) -> None:
        check_arm(arm)
        self.episode, self.arm = episode, arm
        self.tools: dict[str, Tool] = arm_tools(episode.tools, arm)
        self.prompt = system_prompt(arm, world, episode.rules)
        self.prompt_hash = prompt_hash(arm, world, episode.rules)
        self._in_turns, self._ordered = False, False

    @property
    def done(self) -> bool:
        """Whether the last order has been placed."""
        return self.episode.done

    def report(self) -> Observation:
        """This week's report in the arm's words."""
        return self._out(self.episode.observe())

    def opening(self) -> str:
        """The first message: this week's report (of a resumed episode, that of the week it has come to)."""
        return _text(self.report())

    def begin_turn(self) -> None:
        """A new message of the agent begins. From now on, whatever follows an order in the same message is refused.

        A model that sends several calls in one message has not seen the report that the order brings.
        """
        self._in_turns, self._ordered = True, False
        if not self.done:
            self.episode.begin_turn()

    def call(self, tool: Any, arguments: Any = None) -> dict[str, Any]:
        """Call a tool by name with arguments in the arm's words.

        Raises:
            Refusal: with a message in the arm's words; nothing has changed then.
        """
        if self._in_turns and self._ordered and not self.done:
            raise Refusal("an order was placed in this message; read the new report, then call in a new message")
        name, given = self.translate(tool, arguments)
        try:
            result = self.episode.call(name, given)
        except Refusal as refusal:
            raise Refusal(self._out(str(refusal))) from None
        self._ordered = self._ordered or tool == "place_order"
        out: dict[str, Any] = self._out(result)
        return out

    def answer(self, tool: Any, arguments: Any = None) -> Answer:
        """`call` for harnesses: a refusal is an answer, too."""
        try:
            data = self.call(tool, arguments)
        except Refusal as refusal:
            return Answer(False, str(refusal), None)
        return Answer(True, f"{_text(data)}\n{OVER}" if self.done else _text(data), data)

    def translate(self, tool: Any, arguments: Any) -> tuple[Any, Any]:
        """A call of this arm in the words of the episode, as its journal has it.

        What the arm adds is checked here, the rest by the episode.

        Raises:
            Refusal: if the arm does not allow the call.
        """
        if self.arm not in ("belief", "anonymous"):
            return tool, arguments
        spec = find(self.tools, tool)
        if self.done:
            return tool, {}
        given = spec.validate({} if arguments is None else arguments)
        kept = {name: value for name, value in given.items() if value is not None}
        if self.arm == "anonymous" and "route" in kept:
            kept["route"] = _REAL[kept["route"]]
        if self.arm == "belief" and tool == "place_order":
            stated = {factor: kept.pop(name) / 100 for factor, name in PERCENT.items()}
            if not (self.episode.rules == "strict" and not kept["rationale"].strip()):
                kept["rationale"] = with_probabilities(kept["rationale"], stated)
        return tool, kept

    def _out(self, value: Any) -> Any:
        return rename(value) if self.arm == "anonymous" else value


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True)
