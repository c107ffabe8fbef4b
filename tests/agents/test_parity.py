"""One list of calls, five ways of playing it: the same texts and the same bills; and twin tapes in every one of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from inspect_ai import eval as run_eval
from inspect_ai.model import ModelOutput, get_model
from mcp import Client

from stocktake_jax.agents.functional import Stocktake
from stocktake_jax.agents.gym_env import make_env
from stocktake_jax.agents.inspect_task import read_log, stocktake
from stocktake_jax.agents.mcp_server import build_server
from stocktake_jax.agents.play import play, read_folder
from stocktake_jax.agents.session import Session
from stocktake_jax.desk import Episode
from stocktake_jax.models import HORIZON, Tape, World
from tests.agents.conftest import Call, twin
from tests.agents.test_inspect import message, pytestmark, streams_are_collected_here
from tests.agents.test_mcp import command, raw_lines

assert pytestmark and streams_are_collected_here  # used by pytest: Inspect's warnings, and where they are collected

Texts = list[str]


def direct(calls: list[list[Call]], seed: int) -> tuple[Texts, list[float]]:
    session = Session(Episode(seed))
    texts = [session.answer(*call).text for week in calls for call in week]
    return texts, [w["cost"] for w in session.episode.result()["weeks"]]


def bills_of(run: object) -> list[float]:
    bill = run.ledger.bill  # type: ignore[attr-defined]
    return [sum(bill[item][week] for item in bill) for week in range(1, 27)]


@pytest.mark.parametrize("seed", [157, pytest.param(0, marks=pytest.mark.slow)])
def test_five_ways_of_playing_agree(tmp_path: Path, calls: list[list[Call]], seed: int) -> None:
    flat = [call for week in calls for call in week]
    texts, bills = direct(calls, seed)

    # plain Python
    plain: Texts = []

    def scripted(report: object, session: Session) -> None:
        for call in calls[session.episode.week]:
            plain.append(session.answer(*call).text)

    (done,) = play(scripted, [seed], journals=tmp_path / "plain", name="script")
    (run,) = read_folder(tmp_path / "plain")
    assert plain == texts and bills_of(run) == pytest.approx(bills, abs=1e-9) and run.cost == done.cost

    # Inspect with a mock model
    line = iter(flat)

    def reply(messages: object, tools: object, choice: object, config: object) -> ModelOutput:
        return message(next(line))

    model = get_model("mockllm/model", custom_outputs=reply, memoize=False)
    (log,) = run_eval(stocktake(seeds=str(seed)), model=model, display="none", log_dir=str(tmp_path / "logs"))
    assert [m.text for m in log.samples[0].messages if m.role == "tool"] == texts
    assert bills_of(read_log(log.location)[0]) == pytest.approx(bills, abs=1e-9)

    # MCP, in process and over standard input and output
    async def over(server: object) -> Texts:
        async with Client(server) as client:  # type: ignore[arg-type]
            return [(await client.call_tool(name, arguments)).content[0].text for name, arguments in flat]

    session = Session(Episode(seed))
    assert asyncio.run(over(build_server(session))) == texts
    assert [w["cost"] for w in session.episode.result()["weeks"]] == bills
    journal = tmp_path / "mcp" / "journal.jsonl"
    journal.parent.mkdir()
    assert asyncio.run(over(command("--seed", str(seed), "--journal", str(journal)))) == texts
    assert bills_of(read_folder(journal)[0]) == pytest.approx(bills, abs=1e-9)


# -- twin tapes: the same readings and effects, other hidden states


WORLD = World.paper()
SEED = 987654321  # a number that no text could hold by accident
TWIN = twin(Tape.published(SEED, WORLD), WORLD)


def open_calls(calls: list[list[Call]]) -> list[list[Call]]:
    """The calls without those that pay for hidden values."""
    return [[c for c in week if c[0] not in ("buy_briefing", "buy_audit")] for week in calls]


@pytest.fixture
def dealt(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the seed deal its own tape, or its twin."""
    real = Tape.published

    def deal(other: bool) -> None:
        def published(seed: int, world: World | None = None) -> Tape:
            return TWIN if other and seed == SEED else real(seed, world)

        monkeypatch.setattr(Tape, "published", published)

    return deal


def seen_in_plain_python(weeks: list[list[Call]]) -> str:
    seen: list[Any] = []

    def scripted(report: Mapping[str, Any], session: Session) -> None:
        seen.append([session.prompt, session.opening(), report, repr(session.episode)])
        seen.append([session.answer(*call).text for call in weeks[session.episode.week]])

    play(scripted, [SEED])
    return json.dumps(seen)


def seen_through_inspect(weeks: list[list[Call]], folder: Path) -> str:
    line, seen = iter([call for week in weeks for call in week]), []

    def reply(messages: Any, tools: Any, choice: Any, config: Any) -> ModelOutput:
        seen.append([[m.role, m.text] for m in messages[-2:]] + [t.model_dump(mode="json") for t in tools])
        return message(next(line))

    model = get_model("mockllm/model", custom_outputs=reply, memoize=False)
    (log,) = run_eval(stocktake(seeds=str(SEED)), model=model, display="none", log_dir=str(folder))
    seen.append([[m.role, m.text] for m in log.samples[0].messages])
    return json.dumps(seen)


def seen_over_mcp(weeks: list[list[Call]]) -> str:
    async def over() -> list[Any]:
        async with Client(build_server(Session(Episode(SEED)))) as client:
            seen: list[Any] = [client.instructions, client.server_info.model_dump(mode="json")]
            seen += [(await client.list_tools()).model_dump(mode="json")]
            seen += [(await client.get_prompt("start")).model_dump(mode="json")]
            for name, arguments in [call for week in weeks for call in week]:
                seen.append((await client.call_tool(name, arguments)).model_dump(mode="json"))
            return seen

    return json.dumps(asyncio.run(over()))


def seen_by_gymnasium() -> str:
    env, seen = make_env(), []
    shown, info = env.reset(options={"tape_seed": SEED})
    for week in range(HORIZON):
        seen.append([{k: v.tolist() for k, v in shown.items()}, info])
        shown, reward, _, _, info = env.step(np.array([15 + week % 9, week % 2, 1, 0, 0, 0, week % 5 == 0, 0, 0]))
        seen.append(reward)
    return json.dumps(seen)


def test_nothing_hidden_is_shown_in_any_way_of_playing(tmp_path: Path, calls: list[list[Call]], dealt: Any) -> None:
    weeks, texts = open_calls(calls), []
    for other in (False, True):
        dealt(other)
        texts.append(
            [
                seen_in_plain_python(weeks),
                seen_through_inspect(weeks, tmp_path / str(other)),
                seen_over_mcp(weeks),
                seen_by_gymnasium(),
            ]
        )
    assert texts[0] == texts[1]
    for text in texts[0]:
        assert len(text) > 5_000 and str(SEED) not in text and "seed" not in text.lower()
    # That the tapes do differ can be bought.
    dealt(False)
    differ = []
    for tape in (Tape.published(SEED, WORLD), TWIN):
        session = Session(Episode(tape=tape))
        for _ in range(HORIZON - 1):
            differ.append(session.call("buy_audit")["band"])
            session.call("place_order", {"rationale": "x", "qty": 0})
    assert differ[: HORIZON - 1] != differ[HORIZON - 1 :]


def test_the_functional_form_shows_nothing_hidden() -> None:
    env = Stocktake.paper()
    shown = [env.reset_on(tape)[0] for tape in (Tape.published(SEED, WORLD), TWIN)]
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), *shown))


@pytest.mark.slow
def test_nothing_hidden_is_shown_over_standard_output(calls: list[list[Call]]) -> None:
    flat = [call for week in open_calls(calls) for call in week]
    swapped = (
        "from stocktake_jax.models import Tape, World\nfrom tests.agents.conftest import twin\nworld = World.paper()\n"
        "real = Tape.published\nTape.published = lambda seed, world=world: twin(real(seed, world), world)\n"
    )
    own, other = (raw_lines(("--seed", str(SEED)), flat, before) for before in ("", swapped))
    assert own == other and len(own) == len(flat) + 1
    assert str(SEED).encode() not in b"".join(own)
