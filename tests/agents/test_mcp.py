"""The MCP server: tools, answers and errors as everywhere else; nothing but the protocol on standard output."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mcp import Client, StdioServerParameters

from stocktake_jax.agents.mcp_server import build_server, instructions, open_session
from stocktake_jax.agents.play import read_folder
from stocktake_jax.agents.session import OVER, Session
from stocktake_jax.desk import TOOLS, Episode
from stocktake_jax.errors import InputError
from stocktake_jax.models import World
from tests.agents.conftest import Call, order

ROOT = str(Path(__file__).parents[2])

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


class Spoken(NamedTuple):
    """What a server said on standard output, line by line, and on standard error."""

    lines: list[bytes]
    stderr: bytes


async def speak(
    arguments: tuple[str, ...],
    calls: list[Call],
    *,
    kill_after: int | None = None,
    at_once: bool = False,
    before: str = "",
) -> Spoken:
    """Speak the protocol by hand. Every line of standard output must be the answer to what was asked.

    Args:
        arguments: of `stocktake mcp`.
        calls: in order.
        kill_after: SIGKILL when so many calls are answered.
        at_once: with one more call sent, whose answer is not waited for.
        before: code that the server's process runs first.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", before + SERVE, *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=dict(os.environ) | {"PYTHONPATH": ROOT}, limit=2**22,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None

    async def send(line: dict[str, Any]) -> None:
        process.stdin.write(json.dumps(line).encode() + b"\n")  # type: ignore[union-attr]
        await process.stdin.drain()  # type: ignore[union-attr]

    lines = []
    for line in [*HELLO, *(call_line(n, call) for n, call in enumerate(calls, 1))]:
        if line.get("id", 0) - 1 == kill_after:
            if at_once:
                await send(line)
            os.kill(process.pid, signal.SIGKILL)
            break
        await send(line)
        if "id" in line:
            lines.append(await process.stdout.readline())
            answer = json.loads(lines[-1])
            assert answer["jsonrpc"] == "2.0" and answer["id"] == line["id"]
    process.stdin.close()
    rest, stderr = await process.stdout.read(), await process.stderr.read()
    await process.wait()
    assert kill_after is not None or rest == b""
    return Spoken(lines, stderr)


def raw_lines(arguments: tuple[str, ...], calls: list[Call], before: str = "") -> list[bytes]:
    return asyncio.run(speak(arguments, calls, before=before)).lines


def after(calls: list[Call]) -> Session:
    """A session in which some calls have been made."""
    session = Session(Episode(3))
    for call in calls:
        session.answer(*call)
    return session


def test_standard_output_carries_the_protocol_and_a_killed_server_goes_on(
    tmp_path: Path, calls: list[list[Call]]
) -> None:
    flat = [call for week in calls for call in week]
    journal = tmp_path / "journal.jsonl"
    arguments = ("--seed", "3", "--journal", str(journal))
    spoken = asyncio.run(speak(arguments, flat, kill_after=20))
    # The SDK turns what is printed meanwhile over to standard error: there must be nothing there either.
    assert len(spoken.lines) == 21 and spoken.stderr == b""
    direct = after(flat[:20])
    refused = [json.loads(line)["result"]["isError"] for line in spoken.lines[1:]]
    assert refused == [not a.ok for a in answers_of(flat[:20])] and True in refused

    async def second() -> None:
        async with Client(command(*arguments)) as client:
            assert client.instructions == instructions(direct)
            await played(client, [flat[20:]])

    asyncio.run(second())
    (run,) = read_folder(tmp_path)
    whole = after(flat)
    assert run.cost == whole.episode.cost
    assert run.notes["arm"] == "rules" and run.notes["harness"].startswith("mcp 2.")
    assert run.notes["prompt_sha256"] == whole.prompt_hash


def answers_of(calls: list[Call]) -> list[Any]:
    session = Session(Episode(3))
    return [session.answer(*call) for call in calls]


@pytest.mark.slow
def test_kill_9_of_the_server_loses_nothing_that_was_answered(tmp_path: Path, calls: list[list[Call]]) -> None:
    flat = [call for week in calls for call in week]
    rng = random.Random(9)
    for attempt in range(20):
        journal = tmp_path / f"{attempt}.jsonl"
        arguments, count, at_once = (
            ("--seed", "3", "--journal", str(journal)),
            rng.randrange(len(flat)),
            attempt % 2 == 1,
        )
        asyncio.run(speak(arguments, flat, kill_after=count, at_once=at_once))
        with open_session(3, journal).episode as episode:
            found = (episode.week, episode.cost)
        # What was answered is on disk; the call in flight may be, too, whole.
        allowed = [after(flat[: count + more]).episode for more in range(1 + at_once)]
        assert found in [(e.week, e.cost) for e in allowed]
        session = open_session(3, journal)
        with session.episode as episode:
            # Of a call that was carried out and whose answer was lost, the client sees the outcome, and goes on.
            rest = count + (found != (allowed[0].week, allowed[0].cost))
            for call in flat[rest:]:
                session.answer(*call)
            assert episode.done
        (run,) = read_folder(journal)
        assert run.cost == after(flat).episode.cost


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


def test_a_journal_that_fails_is_an_error_that_does_not_tell_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = open_session(3, tmp_path / "seed-3.jsonl")
    session.episode.close()  # as if the disk were gone

    async def run() -> Any:
        async with Client(build_server(session)) as client:
            return await client.call_tool(*order(0))

    answer = asyncio.run(run())
    assert answer.is_error and "could not be recorded" in answer.content[0].text
    assert "seed" not in answer.content[0].text and session.episode.week == 0
    assert "seed-3.jsonl" in capsys.readouterr().err


def test_a_missing_sdk_is_named_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(InputError, match=r"mcp cannot be imported.*pip install 'stocktake-jax\[agents\]'"):
        open_session(3, tmp_path / "journal.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_journal_of_another_world_goes_on_in_its_own(tmp_path: Path) -> None:
    dear = World.paper().replace({"costs.air": 99.5})
    open_session(3, tmp_path / "j.jsonl", world=dear).episode.close()
    with pytest.raises(InputError, match="another world"):
        open_session(3, tmp_path / "j.jsonl", world=World.paper())
    session = open_session(3, tmp_path / "j.jsonl")
    assert "99.5 each" in session.prompt and "99.5 each" in session.tools["expedite_air"].description
    session.episode.close()
