"""The MCP server: tools, answers and errors as everywhere else; nothing but the protocol on standard output."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from stocktake_jax.agents.mcp_server import build_server, instructions, open_session
from stocktake_jax.agents.play import read_folder
from stocktake_jax.agents.session import OVER, Session
from stocktake_jax.desk import TOOLS, Episode
from stocktake_jax.errors import InputError
from tests.agents.conftest import Call, order

SERVE = """
import sys, typer
from stocktake_jax.cli_agents import mount
app = typer.Typer()
mount(app)
app(["mcp", *sys.argv[1:]])
"""


def command(*arguments: str) -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=["-c", SERVE, *arguments], env=dict(os.environ))


async def played(client: Client, calls: list[list[Call]]) -> list[Any]:
    return [await client.call_tool(name, arguments) for week in calls for name, arguments in week]


def test_the_client_gets_our_tools_and_nothing_else() -> None:
    async def run() -> None:
        session = Session(Episode(3))
        async with Client(build_server(session)) as client:
            listed = (await client.list_tools()).tools
            assert [t.name for t in listed] == list(TOOLS)
            assert [t.description for t in listed] == [t.description for t in TOOLS.values()]
            assert [t.input_schema for t in listed] == [t.schema() for t in TOOLS.values()]
            assert client.instructions == instructions(session)
            assert client.instructions == f"{session.prompt}\n\n# This week's report\n{session.opening()}"
            assert [p.name for p in (await client.list_prompts()).prompts] == ["start"]
            text = (await client.get_prompt("start")).messages[0].content.text
            assert text == client.instructions

    asyncio.run(run())


def test_answers_are_structured_and_refusals_are_tool_errors(calls: list[list[Call]]) -> None:
    async def run() -> None:
        session, direct = Session(Episode(3)), Session(Episode(3))
        async with Client(build_server(session)) as client:
            results = await played(client, calls)
        expected = [direct.answer(*call) for week in calls for call in week]
        assert [r.content[0].text for r in results] == [a.text for a in expected]
        assert [r.is_error for r in results] == [not a.ok for a in expected]
        assert [r.structured_content for r in results] == [a.data for a in expected]
        assert session.episode.cost == direct.episode.cost and results[-1].content[0].text.endswith(OVER)

    asyncio.run(run())


def test_strings_are_not_taken_for_numbers_and_surplus_arguments_are_not_dropped() -> None:
    async def run() -> None:
        async with Client(build_server(Session(Episode(3)))) as client:
            for arguments in ({"qty": "5"}, {"qty": 5, "surplus": 1}, {"qty": 5.0}, {}):
                assert (await client.call_tool("expedite_air", arguments)).is_error

    asyncio.run(run())


def test_standard_output_carries_the_protocol_and_a_killed_server_goes_on(
    tmp_path: Path, calls: list[list[Call]]
) -> None:
    journal = tmp_path / "journal.jsonl"
    arguments = ("--seed", "3", "--journal", str(journal))

    async def first() -> None:
        async with Client(command(*arguments)) as client:
            for week in calls[:9]:
                await played(client, [week])

    async def second() -> None:
        async with Client(command(*arguments)) as client:
            assert '"week": 9' in client.instructions
            await played(client, calls[9:])

    asyncio.run(first())
    asyncio.run(second())
    direct = Session(Episode(3))
    for week in calls:
        for call in week:
            direct.answer(*call)
    (run,) = read_folder(tmp_path)
    assert run.cost == direct.episode.cost
    assert run.notes["arm"] == "rules" and run.notes["harness"].startswith("mcp 2.")
    assert run.notes["prompt_sha256"] == direct.prompt_hash


async def raw(arguments: tuple[str, ...], lines: list[dict[str, Any]], kill_after: int | None = None) -> list[Any]:
    """Speak the protocol by hand; every line of standard output must be JSON-RPC."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVE, *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    answers = []
    for number, line in enumerate(lines):
        process.stdin.write(json.dumps(line).encode() + b"\n")
        await process.stdin.drain()
        if "id" in line:
            answer = json.loads(await process.stdout.readline())
            assert answer["jsonrpc"] == "2.0" and answer["id"] == line["id"]
            answers.append(answer)
        if kill_after is not None and number == kill_after:
            os.kill(process.pid, signal.SIGKILL)
            break
    process.stdin.close()
    rest = await process.stdout.read()
    assert kill_after is not None or rest == b""
    await process.wait()
    return answers


HELLO: list[dict[str, Any]] = [
    {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "by hand", "version": "1"},
        },
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
]


def call_line(number: int, call: Call) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": call[0], "arguments": call[1]}}


def test_nothing_but_the_protocol_is_printed() -> None:
    calls = [("buy_audit", {}), order(0), ("nonsense", {}), order(1)]
    lines = HELLO + [call_line(n, call) for n, call in enumerate(calls, 1)]
    answers = asyncio.run(raw(("--seed", "3"), lines))
    assert [a["result"]["isError"] for a in answers[1:]] == [False, False, True, False]


@pytest.mark.slow
def test_kill_9_of_the_server_loses_nothing_that_was_answered(tmp_path: Path, calls: list[list[Call]]) -> None:
    flat = [call for week in calls for call in week]
    for attempt, after in enumerate((2, 9, 17, 24, 30, 33)):
        journal = tmp_path / f"{attempt}.jsonl"
        arguments = ("--seed", "3", "--journal", str(journal))
        lines = HELLO + [call_line(n, call) for n, call in enumerate(flat, 1)]
        answered = asyncio.run(raw(arguments, lines, kill_after=after))
        with open_session(3, journal).episode as episode:
            week, cost = episode.week, episode.cost
        direct = Session(Episode(3))
        for call in flat[: len(answered) - 1]:
            direct.answer(*call)
        # What was answered is on disk; the call in flight may be, too, whole.
        assert week == direct.episode.week and cost == direct.episode.cost


def test_a_journal_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    session = open_session(3, path, arm="coached")
    session.call(*order(0))
    session.episode.close()
    for seed, arm, rules, said in (
        (4, "coached", "paper", "seed"),
        (3, "rules", "paper", "arm"),
        (3, "coached", "strict", "rules"),
    ):
        with pytest.raises(InputError, match=said):
            open_session(seed, path, arm=arm, rules=rules)
    assert open_session(3, path, arm="coached").episode.week == 1
