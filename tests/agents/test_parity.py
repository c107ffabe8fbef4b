"""One list of calls, five ways of playing it: the same texts and the same bills."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from inspect_ai import eval as run_eval
from inspect_ai.model import ModelOutput, get_model
from mcp import Client

from stocktake_jax.agents.inspect_task import read_log, stocktake
from stocktake_jax.agents.mcp_server import build_server
from stocktake_jax.agents.play import play, read_folder
from stocktake_jax.agents.session import Session
from stocktake_jax.desk import Episode
from tests.agents.conftest import Call
from tests.agents.test_inspect import message, pytestmark, streams_are_collected_here
from tests.agents.test_mcp import command

assert pytestmark and streams_are_collected_here  # used by pytest: Inspect's warnings, and where they are collected

Texts = list[str]


def direct(calls: list[list[Call]], seed: int) -> tuple[Texts, list[float]]:
    session = Session(Episode(seed))
    texts = [session.answer(*call).text for week in calls for call in week]
    return texts, [w["cost"] for w in session.episode.result()["weeks"]]


def bills_of(run: object) -> list[float]:
    bill = run.ledger.bill  # type: ignore[attr-defined]
    return [sum(bill[item][week] for item in bill) for week in range(1, 27)]


@pytest.mark.parametrize("seed", [0, 157])
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
