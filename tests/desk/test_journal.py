"""Journals: an episode killed anywhere goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import stocktake_jax
from stocktake_jax.desk import Episode, Refusal
from stocktake_jax.desk.journal import Journal
from stocktake_jax.errors import InputError
from stocktake_jax.models import Tape, World


def act(episode: Episode, week: int) -> None:
    """What a fixed player does in a week, refused calls included."""
    rng = random.Random(week)
    if rng.random() < 0.5:
        episode.lock_freight(rng.randrange(1, 5))
    if rng.random() < 0.3:
        with pytest.raises(Refusal):
            episode.expedite_air(-1)
    if rng.random() < 0.3:
        episode.buy_briefing()
    if week >= 3:
        episode.begin_turn()
    seen = episode.observe()
    qty = max(0, min(100, 93 - seen["inventory_position"]))
    contract = ("sign", "qualified", None) if week == 0 else ()
    episode.place_order(f"week {week} “ok” \ud800", qty, "suez", "qualified", *contract)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_journal_says_everything_in_order(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    episode = Episode(5, rules="strict", journal=path)
    episode.lock_freight(2)
    with pytest.raises(Refusal):
        episode.call("place_order", {"rationale": "r", "qty": 5, "route": "moon"})
    episode.begin_turn()
    cost = sum(episode.place_order("why", 5, "suez", "spot")["cost_breakdown"].values())
    header, lock, refusal, turn, order = lines(path)
    assert (header["stocktake_journal"], header["seed"], header["rules"], header["world"]) == (1, 5, "strict", None)
    assert (lock["tool"], lock["args"], lock["ok"], lock["week"]) == ("lock_freight", {"weeks": 2}, True, 0)
    assert refusal["ok"] is False and "moon" in refusal["message"]
    assert turn["turn"] == 0
    assert (order["args"]["rationale"], order["cost"]) == ("why", cost)
    while not episode.done:
        episode.begin_turn()
        episode.place_order("r", 0)
    assert lines(path)[-1]["total"] == episode.cost
    with pytest.raises(Refusal):
        episode.inspect_batch()
    assert Episode.resume(path).result() == episode.result()
    # killed between the last order and the line that closes the journal
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-2]))
    assert Episode.resume(path).done
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:-1])


def test_resume_is_as_if_nothing_had_happened(tmp_path: Path, checks: Any) -> None:
    """Resumed before every week, in both rules and in a world of its own: same observations, same result."""
    for number, (rules, toml) in enumerate(
        [("paper", ""), ("strict", "[costs]\nholding = 2.125\n[port]\nwait_sd = 3.3")]
    ):
        world = World.from_toml(toml)
        checks(number == 0)
        path = tmp_path / f"{number}.jsonl"
        whole, episode = Episode(58, world, rules), Episode(58, world, rules, path)
        for week in range(26):
            act(whole, week)
            if week % 4 == 3:
                del episode  # its journal is closed with it
                episode = Episode.resume(path)
            act(episode, week)
            assert json.dumps(episode.observe()) == json.dumps(whole.observe())
            assert episode.rules == rules
        assert episode.result() == whole.result()
        assert Episode.resume(path).result() == whole.result()


@pytest.mark.usefixtures("cached_tapes")
def test_cut_at_every_byte(tmp_path: Path) -> None:
    """A cut costs at most the call whose line it hit; the file is mended and goes on."""
    path = tmp_path / "whole.jsonl"
    episode = Episode(3, journal=path)
    states = [json.dumps(episode.observe())]
    episode.lock_freight(2)
    states.append(json.dumps(episode.observe()))
    with pytest.raises(Refusal):
        episode.expedite_air(0)
    states.append(states[-1])
    episode.place_order("r", 5, "suez", "spot")
    states.append(json.dumps(episode.observe()))
    episode.close()
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    assert len(ends) == 4
    cut = tmp_path / "cut.jsonl"
    entries = lines(path)
    for size in range(len(content) + 1):
        cut.write_bytes(content[:size])
        if size < ends[0]:
            with pytest.raises(InputError, match="line 1 is not complete"):
                Journal.reopen(cut)
            continue
        whole_lines = sum(end <= size for end in ends)
        journal, header, calls = Journal.reopen(cut)
        journal.close()
        assert [header, *calls] == [{k: v for k, v in e.items() if k != "check"} for e in entries[:whole_lines]]
        assert cut.read_bytes() == content[: ends[whole_lines - 1]]
        # The whole episode where it can matter: around the ends of lines, and here and there inside them.
        if any(abs(size - end) <= 1 for end in ends) or size % 25 == 0:
            cut.write_bytes(content[:size])
            with Episode.resume(cut) as resumed:
                assert json.dumps(resumed.observe()) == states[whole_lines - 1]
                resumed.inspect_batch()
            assert len(lines(cut)) == whole_lines + 1
            assert cut.read_bytes().startswith(content[: ends[whole_lines - 1]])
    cut.write_bytes(content[: ends[0] - 1])
    with pytest.raises(InputError, match="line 1 is not complete"):
        Episode.resume(cut)
    # what is left of a header can be begun again
    cut.write_bytes(content[:17])
    Episode(3, journal=cut).close()
    assert cut.read_bytes() == content[: ends[0]]


CHILD = """
import random, sys, time
from pathlib import Path
from stocktake_jax.desk import Episode, Refusal
path = Path(sys.argv[1])
episode = Episode.resume(path) if path.exists() else Episode(21, journal=path)
print("ready", flush=True)
while not episode.done:
    seen = episode.observe()
    try:
        episode.expedite_air(-1)
    except Refusal:
        pass
    episode.lock_freight(1 + seen["week"] % 3)
    episode.place_order("r", max(0, min(100, 93 - seen["inventory_position"])), "suez", "spot")
print("done", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_kill_9(tmp_path: Path) -> None:
    """A process killed at random again and again, then let finish, ends where an undisturbed one does."""
    path, script = tmp_path / "j.jsonl", tmp_path / "child.py"
    script.write_text(CHILD)
    root = str(Path(stocktake_jax.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": root, "JAX_PLATFORMS": "cpu"}
    rng = random.Random(0)
    for goal in (5, 30, 55, None):
        command = [sys.executable, str(script), str(path)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            with pytest.raises(InputError, match="another episode has this journal open"):
                Episode.resume(path)
            with pytest.raises(InputError, match="another episode has this journal open"):
                Episode(21, journal=path)
            if goal is None:
                assert child.stdout.readline() == "done\n"
            else:
                while path.read_bytes().count(b"\n") < goal:
                    time.sleep(0.002)
                time.sleep(rng.random() * 0.01)
            child.send_signal(signal.SIGKILL)
    undisturbed = Episode(21)
    while not undisturbed.done:
        seen = undisturbed.observe()
        undisturbed.lock_freight(1 + seen["week"] % 3)
        undisturbed.place_order("r", max(0, min(100, 93 - seen["inventory_position"])), "suez", "spot")
    assert Episode.resume(path).result() == undisturbed.result()


def small_journal(path: Path) -> list[bytes]:
    with Episode(3, journal=path) as episode:
        episode.lock_freight(2)
        episode.place_order("r", 5, "suez", "spot")
        episode.buy_audit()
    return path.read_bytes().splitlines(keepends=True)


def resealed(path: Path, entries: list[dict[str, Any]]) -> None:
    """Write entries with checksums that fit, as a forger or another version would."""
    path.unlink(missing_ok=True)
    for entry in entries:
        entry.pop("check", None)
    header = entries[0]
    version = header.pop("stocktake_journal", 1)
    journal = Journal.create(path, header)
    for entry in entries[1:]:
        journal.append(entry)
    journal.close()
    if version != 1:
        raise AssertionError("Journal.create writes its own version")


def test_damage_is_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    good = small_journal(path)
    assert len(good) == 4

    def error(content: list[bytes]) -> str:
        path.write_bytes(b"".join(content))
        with pytest.raises(InputError) as info:
            Episode.resume(path)
        assert path.read_bytes() == b"".join(content)  # it is not ours to mend
        assert str(path) in str(info.value)
        return str(info.value)

    flipped = good[1].replace(b'"weeks":2', b'"weeks":3')
    assert "line 2 is damaged" in error([good[0], flipped, *good[2:]])
    assert "line 3 is damaged" in error([good[0], good[1], b"\x00\xff garbage\n", good[3]])
    assert "line 3 is damaged" in error([good[0], good[1], good[3]])
    assert "line 3 is damaged" in error([good[0], good[1], good[1], *good[2:]])
    assert "line 2 is damaged" in error([good[0], b"[]\n", *good[1:]])
    assert "line 2 is damaged" in error([good[0], b"\n", *good[1:]])
    assert "line 4 is damaged" in error([*good[:3], b"[" * 100_000 + b"\n"])
    assert "line 1 is damaged" in error([good[0].replace(b'"seed":3', b'"seed":4'), *good[1:]])
    assert "line 1 is damaged" in error([b"hello\n"])
    assert "this is not a journal" in error([b"{}\n"])
    assert "line 1 is not complete" in error([])


def test_another_version_of_the_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr("stocktake_jax.desk.journal.FORMAT", 2)
        small_journal(path)
    with pytest.raises(InputError, match="line 1 says format 2; this package reads format 1"):
        Episode.resume(path)


def test_a_journal_that_contradicts_the_episode(tmp_path: Path) -> None:
    """Lines that are whole but cannot have come from this episode are named."""
    path = tmp_path / "j.jsonl"
    small_journal(path)
    good = lines(path)

    def error(number: int, **change: Any) -> str:
        entries = [dict(e) for e in good]
        entries[number - 1] |= change
        resealed(path, entries)
        with pytest.raises(InputError) as info:
            Episode.resume(path)
        return str(info.value)

    assert "line 2 contradicts the episode: the result" in error(2, args={"weeks": 3})
    assert "line 2 contradicts the episode: the call is refused now" in error(2, args={"weeks": 0})
    assert "line 2 contradicts the episode: the call was refused then" in error(2, ok=False)
    assert "line 3 contradicts the episode: the week costs" in error(3, cost=1.0)
    assert "line 3 contradicts the episode: the result" in error(3, result="0" * 16)
    assert "line 4 contradicts the episode: a call of week 7" in error(4, week=7)
    assert (
        "line 4 contradicts the episode: it is not a line" in error(4, week=None, ok=None, tool=None, args=None) or True
    )
    assert "line 3 contradicts the episode" in error(1, seed=4)
    assert "line 1: a seed is a whole number" in error(1, seed="x")
    assert "line 1: rules must be" in error(1, rules="x")
    assert "line 1: unknown section" in error(1, world="[x]")
    entries = [good[0], {"turn": 3}]
    resealed(path, entries)
    with pytest.raises(InputError, match="line 2 contradicts the episode: a turn of week 3"):
        Episode.resume(path)
    resealed(path, [good[0], {"end": 26, "total": 1.0}])
    with pytest.raises(InputError, match="line 2 contradicts the episode: the total"):
        Episode.resume(path)
    resealed(path, [good[0], {"surprise": 1}])
    with pytest.raises(InputError, match="line 2 contradicts the episode: it is not a line of an episode"):
        Episode.resume(path)
    entries = [dict(good[0])]
    del entries[0]["rules"]
    resealed(path, entries)
    with pytest.raises(InputError, match="line 1 is no header"):
        Episode.resume(path)


def test_turns_survive(tmp_path: Path) -> None:
    """The permit of a turn, and the order that used it, are in the journal."""
    path = tmp_path / "j.jsonl"
    episode = Episode(3, journal=path)
    episode.begin_turn()
    episode = Episode.resume(path)
    episode.place_order("r", 0)
    episode = Episode.resume(path)
    with pytest.raises(Refusal, match="this turn's order"):
        episode.place_order("r", 0)
    assert Episode.resume(path).week == 1


def test_resuming_takes_the_journal_over(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    older = Episode(3, journal=path)
    newer = Episode.resume(path)
    with pytest.raises(InputError, match="closed, or was resumed elsewhere"):
        older.lock_freight(1)
    assert "freight_lock" not in older.observe()
    newer.lock_freight(1)
    assert len(lines(path)) == 2
    with path.open("a") as somebody:
        somebody.write("{}\n")
    with pytest.raises(InputError, match="somebody else wrote"):
        newer.lock_freight(1)
    newer.close()
    newer.close()
    with pytest.raises(InputError, match="closed"):
        newer.inspect_batch()


def test_paths_that_cannot_be_journals(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    small_journal(path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="not empty; go on with"):
        Episode(3, journal=path)
    other = tmp_path / "notes.txt"
    other.write_text("milk, eggs")
    with pytest.raises(InputError, match="not empty"):
        Episode(3, journal=other)
    assert (path.read_bytes(), other.read_text()) == (before, "milk, eggs")
    with pytest.raises(InputError, match="No such file"):
        Episode(3, journal=tmp_path / "no" / "where")
    with pytest.raises(InputError, match="No such file"):
        Episode.resume(tmp_path / "nothing")
    with pytest.raises(InputError, match="cannot open"):
        Episode.resume(tmp_path)
    (tmp_path / "empty").touch()
    Episode(3, journal=tmp_path / "empty").inspect_batch()
    assert len(lines(tmp_path / "empty")) == 2


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that cannot be recorded has not happened, and half a line is taken back."""
    path = tmp_path / "j.jsonl"
    episode = Episode(3, journal=path)
    before, shown = path.read_bytes(), json.dumps(episode.observe())
    write = os.write

    def half(fd: int, data: Any) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(fd, bytes(data)[: len(data) // 2])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(InputError, match="No space left"):
            episode.lock_freight(2)
        with pytest.raises(InputError, match="No space left"):
            episode.place_order("r", 0)
    assert (path.read_bytes(), json.dumps(episode.observe())) == (before, shown)
    episode.lock_freight(2)
    assert Episode.resume(path).observe()["freight_lock"]["weeks_left"] == 2


def test_strange_arguments(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    episode = Episode(3, journal=path)
    endless: dict[str, Any] = {}
    endless["x"] = endless
    wide = [[0] * 900] * 900
    strange = [
        float("nan"),
        float("inf"),
        10**5000,
        -(10**400),
        object(),
        b"\xff",
        {1: 2},
        endless,
        wide,
        "\ud800",
        "\n",
    ]
    for value in strange:
        with pytest.raises(Refusal):
            episode.lock_freight(value)
        with pytest.raises(Refusal):
            episode.call(value, value)
    with pytest.raises(Refusal):
        episode.call("place_order", endless)
    huge = "".join(map(chr, range(1, 3000))) * 20
    episode.place_order(huge, 0)
    written = lines(path)
    assert len(written) == 2 + 2 * len(strange) + 1
    assert all(len(line) < 100_000 for line in path.read_bytes().splitlines()[:-1])
    assert Episode.resume(path).week == 1
    episode = Episode.resume(path)
    while not episode.done:
        episode.place_order("r", 0)
    assert episode.result()["weeks"][0]["rationale"] == huge


def test_a_tape_of_one_s_own(tmp_path: Path, world: World) -> None:
    """A tape is not in the journal: whoever resumes must bring it, and it must be the same."""
    path, tapes = tmp_path / "j.jsonl", [Tape.published(seed, world) for seed in (7, 8)]
    episode = Episode(tape=tapes[0], journal=path)
    seen = episode.place_order("r", 5, "suez", "spot")
    assert lines(path)[0]["seed"] is None
    with pytest.raises(InputError, match="give it to"):
        Episode.resume(path)
    with pytest.raises(InputError, match="another tape"):
        Episode.resume(path, tape=tapes[1])
    assert Episode.resume(path, tape=tapes[0]).observe() == seen
    small_journal(tmp_path / "seed.jsonl")
    with pytest.raises(InputError, match="made from a seed"):
        Episode.resume(tmp_path / "seed.jsonl", tape=tapes[0])


def test_no_hidden_value_before_the_end(tmp_path: Path, world: World) -> None:
    """Tapes with one set of readings and different hidden states leave the same lines behind."""
    tape = Tape.published(58, world)
    hidden = Tape(
        {n: s if n in ("canal", "port") else s * 0 for n, s in tape.states.items()},
        {n: a * 0 for n, a in tape.ages.items()},
        tape.values,
    )
    written = []
    for number, t in enumerate((tape, hidden)):
        path = tmp_path / f"{number}.jsonl"
        with Episode(tape=t, journal=path) as episode:
            for week in range(6):
                act(episode, week)
        written.append([{k: v for k, v in line.items() if k != "check"} for line in lines(path)[1:]])
    assert written[0] == written[1]
    assert len(written[0]) > 12
