"""One episode over the Model Context Protocol: any MCP client can play it.

The server offers the tools and nothing more. The prompt, with the report of the week that the episode has come to, is
the server's instructions, and once more the MCP prompt `start` for clients that do not show instructions.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from pathlib import Path
from typing import Any

from stocktake_jax.agents.extras import require
from stocktake_jax.agents.play import SIDECAR, read_notes, version
from stocktake_jax.agents.prompt import check_arm
from stocktake_jax.agents.session import Answer, Session
from stocktake_jax.desk import Episode
from stocktake_jax.desk.tools import Text
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.ledger import read_journal
from stocktake_jax.models import World

NAME = "stocktake"


def open_session(
    seed: int | None,
    journal: str | os.PathLike[str] | None = None,
    *,
    arm: str = "rules",
    rules: Text = "paper",
    world: World | None = None,
) -> Session:
    """A session on a new episode, or on the one that a journal holds.

    Raises:
        InputError: if the SDK is not installed, or the journal cannot be used: it is of another seed, world or other
            rules, was played in another arm, or is no journal.
    """
    require("mcp")
    check_arm(arm)
    path = None if journal is None else Path(journal)
    if path is None or not _begun(path):
        session = Session(Episode(seed, world, rules, journal=path), arm, world)
        if path is not None:
            notes = {
                "arm": arm,
                "rules": rules,
                "prompt_sha256": session.prompt_hash,
                "package": version(),
                "harness": f"mcp {importlib.metadata.version('mcp')}",
            }
            path.with_name(path.name + SIDECAR).write_text(json.dumps(notes) + "\n", encoding="utf-8")
        return session
    record = read_journal(path)
    if seed is not None and record.seed != seed:
        raise InputError(f"{path} is the journal of another seed; give its seed, or another journal")
    if record.rules != rules:
        raise InputError(f"{path} was begun under the rules {record.rules!r}; go on under them")
    if world is not None and world.to_toml() != record.world.to_toml():
        raise InputError(f"{path} was begun in another world; go on in that one")
    beside = path.with_name(path.name + SIDECAR)
    if beside.exists() and read_notes(beside).get("arm", arm) != arm:
        raise InputError(f"{path} was begun in another arm of the prompt; go on in that one")
    return Session(Episode.resume(path), arm, record.world)


def _begun(path: Path) -> bool:
    """Whether a journal holds a whole line, so that there is something to go on from."""
    try:
        return path.exists() and b"\n" in path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the journal {path}: {error.strerror}") from None


def instructions(session: Session) -> str:
    """What a client shows its model first: the prompt and this week's report."""
    return f"{session.prompt}\n\n# This week's report\n{session.opening()}"


def build_server(session: Session) -> Any:
    """The MCP server of a session; `Client(build_server(session))` plays it in process.

    It stands on the SDK's low-level server: the high-level one turns "5" into 5 and drops unknown arguments before
    anybody can refuse them.

    Raises:
        InputError: if the SDK is not installed.
    """
    lowlevel, types = require("mcp.server.lowlevel"), require("mcp.types")

    async def list_tools(context: Any, params: Any) -> Any:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=t.name, description=t.description, input_schema=t.schema())
                for t in session.tools.values()
            ]
        )

    async def call_tool(context: Any, params: Any) -> Any:
        # Not in a thread: calls are carried out in the order in which they came.
        try:
            answer = session.answer(params.name, {} if params.arguments is None else params.arguments)
        except InputError as error:
            # The journal's trouble. Its message names the file, which is nothing for the one who plays.
            print(f"{NAME}: {error}", file=sys.stderr)
            answer = Answer(False, "the call could not be recorded and was not carried out; the episode is stuck", None)
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=answer.text)],
            structured_content=answer.data,
            is_error=not answer.ok,
        )

    async def list_prompts(context: Any, params: Any) -> Any:
        return types.ListPromptsResult(
            prompts=[types.Prompt(name="start", description="The job and this week's report.")]
        )

    async def get_prompt(context: Any, params: Any) -> Any:
        text = types.TextContent(type="text", text=instructions(session))
        return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=text)])

    return lowlevel.Server(
        NAME,
        version=version(),
        instructions=instructions(session),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )


def serve(session: Session) -> None:
    """Serve a session over standard input and output until the client goes away."""
    anyio, stdio = require("anyio"), require("mcp.server.stdio")
    server = build_server(session)

    async def run() -> None:
        async with stdio.stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    try:
        anyio.run(run)
    finally:
        session.episode.close()
