"""Plain Python: any callable or policy plays any seeds, with journals, and what comes of it can be scored at once."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from stocktake_jax.agents.prompt import prompt_hash
from stocktake_jax.agents.session import Session
from stocktake_jax.desk import Episode, Refusal
from stocktake_jax.desk.tools import Text
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.ledger import read_journal
from stocktake_jax.evaluation.scoring import Run
from stocktake_jax.models import World
from stocktake_jax.policies import Policy

Actor = Callable[[Mapping[str, Any], Session], Mapping[str, Any] | None]
"""An agent as a function: (this week's report, session) -> the arguments of `place_order`, or None if it called
`session.call("place_order", …)` itself. It may call any other tool before."""

if TYPE_CHECKING:
    Player: TypeAlias = Policy | Actor
else:
    # Users give anything here, and get an `InputError` that says what to give: a run-time type checker must not come first.
    Player = Any

NOTES = "agent.json"
"""File beside an agent's journals that says how its runs came about."""

SIDECAR = ".notes.json"
"""Added to the name of a journal that stands alone: how its run came about."""

REFUSALS = 20
"""Refused orders in a row after which a run is given up: it is unfinished then, and never scored as cheap."""


@dataclass(frozen=True)
class Finished:
    """What became of one episode.

    Attributes:
        seed, repeat: which one.
        cost: total dollars; nan if it was not finished.
        journal: its file, if one was kept.
        error: why it was not finished.
    """

    seed: int
    repeat: int
    cost: float
    journal: Path | None
    error: str | None = None


class NoOrder(Exception):  # noqa: N818  (not an error of the program)
    """An agent did not place its order."""


def play(
    agent: Player,
    seeds: Sequence[int],
    *,
    repeats: int = 1,
    arm: str = "rules",
    rules: Text = "paper",
    world: World | None = None,
    journals: str | os.PathLike[str] | None = None,
    name: str | None = None,
    resume: bool = False,
    on_done: Callable[[Finished], None] | None = None,
) -> list[Finished]:
    """Play episodes with an agent, one after the other.

    An exception in the agent ends that episode as unfinished and is recorded; the others are played all the same.

    With `journals`, every call is on disk before the agent sees its answer. Called again with the same folder after a
    crash, finished episodes are not played again. An unfinished one begins anew, its journal set aside under another
    name; with `resume` it goes on from the last call instead, which is right for agents without a memory of their own.

    Args:
        agent: a `Policy` (`reset(repeat)`, then `act(observation, episode)` every week; the rules arm only), or a
            function, see `Actor`.
        seeds: published seeds, or any others.
        repeats: episodes on each seed, numbered from 1.
        arm: of the prompt; see `prompt.Arm`.
        rules: of the books.
        world: the true world.
        journals: a folder; the agent's journals go to a folder of its name in it.
        name: the agent's; needed for functions if there are journals.
        resume: see above.
        on_done: called after each episode.

    Raises:
        InputError: for bad arguments, or a journal that cannot be used.
    """
    name = name or str(getattr(agent, "name", None) or getattr(agent, "__name__", "agent"))
    policy = agent if isinstance(agent, Policy) else None
    if policy is not None and arm != "rules":
        raise InputError("a policy reads the reports of the rules arm; give a function for the other arms")
    if policy is None and not callable(agent):
        raise InputError("an agent is a function (report, session), or a policy with reset and act")
    folder = None if journals is None else open_folder(journals, name, arm=arm, rules=rules, world=world)
    out = []
    for seed, repeat, path in todo(seeds, repeats, folder):
        done = finished(path, seed, repeat)
        if done is None:
            episode = begin(seed, world, rules, path, resume)
            try:
                with episode:
                    error = _play(agent, policy, episode, arm, world, repeat)
                    cost = episode.cost if episode.done else math.nan
            finally:
                episode.close()
            done = Finished(seed, repeat, cost, path, error)
        out.append(done)
        if on_done is not None:
            on_done(done)
    return out


def _play(
    agent: Any, policy: Policy | None, episode: Episode, arm: str, world: World | None, repeat: int
) -> str | None:
    """Play to the end; what went wrong, if anything did."""
    try:
        if policy is not None:
            policy.reset(repeat)
            while not episode.done:
                week = episode.week
                policy.act(episode.observe(), episode)
                if episode.week == week:
                    raise NoOrder(f"no order was placed in week {week}")
            return None
        session = Session(episode, arm, world)
        while not episode.done:
            _week(agent, session)
    except InputError as problem:
        if not isinstance(problem, Refusal):
            raise  # the journal's trouble, not the agent's
        return f"refused: {problem}"
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return None


def _week(agent: Actor, session: Session) -> None:
    week, refused = session.episode.week, ""
    for _ in range(REFUSALS):
        order = agent(session.report(), session)
        if order is not None:
            answer = session.answer("place_order", dict(order))
            refused = "" if answer.ok else answer.text
        if session.episode.week > week:
            return
        if order is None:
            break
    raise NoOrder(f"no order was placed in week {week}" + (f"; the last one was refused: {refused}" if refused else ""))


# -- a folder of journals


def version() -> str:
    """The version of this package."""
    try:
        return importlib.metadata.version("stocktake-jax")
    except importlib.metadata.PackageNotFoundError:
        from stocktake_jax import __version__

        return __version__


def open_folder(
    journals: str | os.PathLike[str],
    name: str,
    *,
    arm: str = "rules",
    rules: Text = "paper",
    world: World | None = None,
    privileged: bool = False,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """The folder of an agent's journals, with its notes written.

    Raises:
        InputError: if the folder cannot be used, or holds runs that came about otherwise.
    """
    if not name or any(c in name for c in "/\\\0") or name in (".", ".."):
        raise InputError(f"the agent's name must be usable as a folder's name, not {name!r}")
    folder = Path(journals) / name
    notes = {
        "agent": name,
        "arm": arm,
        "rules": rules,
        "prompt_sha256": prompt_hash(arm, world, rules),
        "privileged": privileged,
        "package": version(),
        "harness": f"plain {version()}",
    } | dict(more or {})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / NOTES
        if path.exists():
            old = json.loads(path.read_text(encoding="utf-8"))
            changed = sorted(k for k in notes if k in old and old[k] != notes[k])
            if changed:
                raise InputError(f"{path}: {changed[0]} is {old[changed[0]]!r} there and {notes[changed[0]]!r} now")
        else:
            fresh = folder / f"{NOTES}.new"
            fresh.write_text(json.dumps(notes, indent=1) + "\n", encoding="utf-8")
            fresh.replace(path)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"cannot use the folder {folder}: {error}") from None
    return folder


def todo(seeds: Sequence[int], repeats: int, folder: Path | None) -> Iterator[tuple[int, int, Path | None]]:
    """(seed, repeat, journal) of every episode, in order."""
    if not seeds:
        raise InputError("give at least one seed")
    if repeats < 1:
        raise InputError(f"repeats must be at least 1, not {repeats}")
    for seed in seeds:
        for repeat in range(1, repeats + 1):
            yield seed, repeat, None if folder is None else folder / f"seed-{seed}.{repeat}.jsonl"


def finished(path: Path | None, seed: int, repeat: int) -> Finished | None:
    """The episode in a journal if it has reached its end."""
    if path is None or not path.exists() or path.stat().st_size == 0:
        return None
    try:
        record = read_journal(path)
    except InputError:
        if b"\n" not in path.read_bytes():
            return None  # killed while its first line was being written
        raise
    if record.seed != seed:
        raise InputError(f"{path} is a journal of another seed")
    ledger = record.play()
    return None if ledger is None else Finished(seed, repeat, ledger.cost, path)


def begin(seed: int, world: World | None, rules: Text, path: Path | None, resume: bool) -> Episode:
    """A new episode, or an unfinished one gone on with."""
    if path is None or not path.exists():
        return Episode(seed, world, rules, journal=path)
    if resume and b"\n" in path.read_bytes():
        return Episode.resume(path)
    number = 1
    while (aside := path.with_name(f"{path.name}.unfinished-{number}")).exists():
        number += 1
    path.rename(aside)
    return Episode(seed, world, rules, journal=path)


def read_folder(folder: str | os.PathLike[str]) -> tuple[Run, ...]:
    """All runs whose journals lie in a folder, or in folders in it, finished or not.

    The agent's name is that of its notes (`agent.json`), or else its folder's.

    Raises:
        InputError: naming the file at fault.
    """
    root = Path(folder)
    paths = sorted(root.rglob("*.jsonl")) if root.is_dir() else [root]
    runs = [_run(path) for path in paths]
    numbered: dict[tuple[str, int], int] = {}
    out = []
    for run in sorted(runs, key=lambda r: (r.agent, r.seed, r.repeat)):
        repeat = max(run.repeat, numbered.get((run.agent, run.seed), 0) + 1)
        numbered[run.agent, run.seed] = repeat
        out.append(run if repeat == run.repeat else _renumbered(run, repeat))
    return tuple(out)


def _run(path: Path) -> Run:
    notes: dict[str, Any] = {}
    beside = path.parent / NOTES
    if beside.exists():
        try:
            notes = dict(json.loads(beside.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {beside}: {error}") from None
    sidecar = path.with_name(path.name + SIDECAR)
    if sidecar.exists():
        notes |= json.loads(sidecar.read_text(encoding="utf-8"))
    agent = str(notes.pop("agent", path.resolve().parent.name))
    privileged = bool(notes.pop("privileged", False))
    record = read_journal(path)
    ledger = record.play()
    stem = path.name.removesuffix(".jsonl").split(".")
    repeat = int(stem[-1]) if len(stem) > 1 and stem[-1].isdecimal() else 1
    cost = math.nan if ledger is None else ledger.cost
    return Run(agent, record.seed, cost, max(repeat, 1), ledger, None, record.world, privileged, notes)


def _renumbered(run: Run, repeat: int) -> Run:
    return Run(run.agent, run.seed, run.cost, repeat, run.ledger, run.statements, run.world, run.privileged, run.notes)
