"""Plain Python: any callable or policy plays any seeds, with journals, and what comes of it can be scored at once."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from stocktake_jax.agents.prompt import check_arm, prompt_hash
from stocktake_jax.agents.session import Session
from stocktake_jax.desk import Episode, Refusal
from stocktake_jax.desk.books import check_rules
from stocktake_jax.desk.journal import MAGIC
from stocktake_jax.desk.tools import Text, Whole, shown
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
    Seeds: TypeAlias = Sequence[int]
    Folder: TypeAlias = str | os.PathLike[str]
    Notes: TypeAlias = Mapping[str, Any]
else:
    # Users give anything here, and get an `InputError` that says what to give: a run-time type checker must not come first.
    Player = Seeds = Folder = Notes = Any

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
    seeds: Seeds,
    *,
    repeats: Whole = 1,
    arm: Text = "rules",
    rules: Text = "paper",
    world: World | None = None,
    journals: Folder | None = None,
    name: Text | None = None,
    notes: Notes | None = None,
    resume: bool = False,
    on_done: Callable[[Finished], None] | None = None,
) -> list[Finished]:
    """Play episodes with an agent, one after the other.

    An exception in the agent ends that episode as unfinished and is told in its `Finished`; the others are played all
    the same.

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
        name: the agent's; its own name or its function's by default.
        notes: what else is to be known of the runs and stands in their notes, such as a model's exact id.
        resume: see above.
        on_done: called after each episode.

    Raises:
        InputError: for bad arguments, or a journal that cannot be used.
    """
    name = str(getattr(agent, "name", None) or getattr(agent, "__name__", "agent")) if name is None else name
    if isinstance(agent, type):
        raise InputError(f"{agent.__name__} is a class; give an agent made of it: {agent.__name__}(…)")
    policy = agent if isinstance(agent, Policy) else None
    if policy is not None and arm != "rules":
        raise InputError("a policy reads the reports of the rules arm; give a function for the other arms")
    if policy is None and not callable(agent):
        raise InputError("an agent is a function (report, session), or a policy with reset and act")
    check_arm(arm)
    check_rules(rules)
    wanted = todo(seeds, repeats)
    folder = None
    if journals is not None:
        folder = open_folder(journals, name, arm=arm, rules=rules, world=world, more=notes)
    out = []
    for seed, repeat in wanted:
        path = None if folder is None else journal_path(folder, seed, repeat)
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
            # Whatever is no mapping is refused by the tool, which says what it wants.
            answer = session.answer("place_order", dict(order) if isinstance(order, Mapping) else order)
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
    journals: Folder,
    name: Text,
    *,
    arm: Text = "rules",
    rules: Text = "paper",
    world: World | None = None,
    privileged: bool = False,
    more: Notes | None = None,
) -> Path:
    """The folder of an agent's journals, with its notes written.

    Raises:
        InputError: if the folder cannot be used, or holds runs that came about otherwise.
    """
    if not isinstance(name, str) or not name or any(c in name for c in "/\\\0") or name in (".", ".."):
        raise InputError(f"the agent's name must be usable as a folder's name, not {name!r}")
    if not isinstance(journals, (str, os.PathLike)):
        raise InputError(f"journals must be the path of a folder, not {shown(journals)}")
    if not isinstance(more, Mapping | None):
        raise InputError(f"notes must be an object of names and values, not {shown(more)}")
    folder = Path(journals) / name
    toml = None if world is None else world.to_toml()
    notes = {
        "agent": name,
        "arm": arm,
        "rules": rules,
        "world": "published" if toml in (None, World.paper().to_toml()) else _sha256(toml or ""),
        "prompt_sha256": prompt_hash(arm, world, rules),
        "privileged": privileged,
        "package": version(),
        "harness": f"plain {version()}",
    } | dict(more or {})
    try:
        # As they will be read: what JSON cannot carry is said before anything is played.
        notes = json.loads(json.dumps(notes, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"the notes of {name} cannot be written as JSON: {error}") from None
    path = folder / NOTES
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            fresh = folder / f"{NOTES}.new"
            fresh.write_text(json.dumps(notes, indent=1) + "\n", encoding="utf-8")
            fresh.replace(path)
            return folder
    except OSError as error:
        raise InputError(f"cannot use the folder {folder}: {error.strerror}") from None
    old = read_notes(path)
    changed = sorted(k for k in notes if k in old and old[k] != notes[k])
    if changed:
        raise InputError(
            f"{path}: {changed[0]} is {old[changed[0]]!r} there and {notes[changed[0]]!r} now; give another folder or name"
        )
    return folder


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_notes(path: Path) -> dict[str, Any]:
    """The JSON object in a file of notes.

    Raises:
        InputError: if there is none.
    """
    try:
        notes = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the notes {path}: {error}") from None
    if not isinstance(notes, dict):
        raise InputError(f"{path} holds no notes: a JSON object is wanted there")
    return notes


def todo(seeds: Seeds, repeats: Whole) -> list[tuple[int, int]]:
    """(seed, repeat) of every episode, in order.

    Raises:
        InputError: for anything but a list of different seeds, and a number of repeats.
    """
    if isinstance(seeds, (str, bytes, Mapping)) or not isinstance(seeds, Iterable):
        raise InputError(f"seeds must be a list of whole numbers such as [0, 1], not {shown(seeds)}")
    wanted = list(seeds)
    if not wanted:
        raise InputError("give at least one seed")
    for seed in wanted:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise InputError(f"a seed is a whole number of at least 0, not {shown(seed)}")
        if wanted.count(seed) > 1:
            raise InputError(f"seed {seed} is given twice; give `repeats` to play a seed more than once")
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise InputError(f"repeats must be a whole number of at least 1, not {shown(repeats)}")
    return [(int(seed), repeat) for seed in wanted for repeat in range(1, repeats + 1)]


def journal_path(folder: Path, seed: int, repeat: int) -> Path:
    """The journal of an episode in an agent's folder."""
    return folder / f"seed-{seed}.{repeat}.jsonl"


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

    The agent's name is that of its notes (`agent.json`), or else its folder's. Other JSON lines may lie there, too.

    Raises:
        InputError: naming the file at fault.
    """
    root = Path(folder)
    paths = [p for p in sorted(root.rglob("*.jsonl")) if not _other_lines(p)] if root.is_dir() else [root]
    return renumbered([_run(path) for path in paths])


def renumbered(runs: Iterable[Run]) -> tuple[Run, ...]:
    """Runs in order, the repeats of an agent on a seed numbered on where two have the same number."""
    numbered: dict[tuple[str, int], int] = {}
    out = []
    for run in sorted(runs, key=lambda r: (r.agent, r.seed, r.repeat)):
        repeat = max(run.repeat, numbered.get((run.agent, run.seed), 0) + 1)
        numbered[run.agent, run.seed] = repeat
        out.append(dataclasses.replace(run, repeat=repeat))
    return tuple(out)


def _other_lines(path: Path) -> bool:
    """Whether a file begins with a sound line of JSON that is no journal's. A damaged journal is not taken for one."""
    try:
        with path.open("rb") as lines:
            first = json.loads(lines.readline())
    except (OSError, ValueError, RecursionError):
        return False
    return not (isinstance(first, dict) and MAGIC in first)


def _run(path: Path) -> Run:
    notes: dict[str, Any] = {}
    for beside in (path.parent / NOTES, path.with_name(path.name + SIDECAR)):
        if beside.exists():
            notes |= read_notes(beside)
    agent = str(notes.pop("agent", path.resolve().parent.name))
    privileged = bool(notes.pop("privileged", False))
    record = read_journal(path)
    ledger = record.play()
    stem = path.name.removesuffix(".jsonl").split(".")
    repeat = int(stem[-1]) if len(stem) > 1 and stem[-1].isdecimal() else 1
    cost = math.nan if ledger is None else ledger.cost
    return Run(
        agent, record.seed, cost, max(repeat, 1), ledger, None, record.world, privileged, notes, rules=record.rules
    )
