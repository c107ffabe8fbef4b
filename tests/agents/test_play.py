"""Plain Python: agents as functions and as policies, journals, and runs that end too early."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from stocktake_jax.agents.play import NOTES, REFUSALS, play, read_folder
from stocktake_jax.agents.prompt import PERCENT, prompt_hash
from stocktake_jax.agents.session import Session
from stocktake_jax.desk import Episode
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.published import published_references
from stocktake_jax.models import HORIZON, World
from stocktake_jax.policies import BaseStock

FLOOR = {r.seed: r.floor for r in published_references()}
Report = Mapping[str, Any]


def steady(report: Report, session: Session) -> Report:
    """Twenty units a week, and the same rationale whatever is seen."""
    return {"rationale": f"Week {report['week']}.", "qty": 20, "route": "suez", "supplier": "qualified"} | (
        {"contract_action": "sign", "contract_supplier": "qualified"} if report["week"] == 0 else {}
    )


def test_a_policy_and_the_same_rule_as_a_function() -> None:
    def floor(report: Report, session: Session) -> Report:
        order = steady(report, session)
        return dict(order) | {"qty": min(max(93 - report["inventory_position"], 0), 100)}

    policy, function = play(BaseStock(), [0, 1]), play(floor, [0, 1])
    assert [f.cost for f in policy] == [f.cost for f in function]
    assert [f.cost for f in policy] == pytest.approx([FLOOR[0], FLOOR[1]], abs=0.05)


def test_a_function_may_call_the_tools_itself() -> None:
    def careful(report: Report, session: Session) -> None:
        if report["week"] == 3:
            session.call("expedite_air", {"qty": 5})
        session.call("place_order", dict(steady(report, session)))

    (with_air,), (without,) = play(careful, [1]), play(steady, [1])
    assert with_air.cost != without.cost and with_air.error is None


def test_arms_change_what_a_function_is_shown() -> None:
    seen: list[Any] = []

    def anonymous(report: Report, session: Session) -> Report:
        seen.append(sorted(report))
        return dict(steady(report, session)) | {"route": "arran"}

    (renamed,), (plain,) = play(anonymous, [1], arm="anonymous"), play(steady, [1])
    assert renamed.cost == plain.cost and "arran_count" in seen[0] and "suez_count" not in seen[0]

    def believing(report: Report, session: Session) -> Report:
        return dict(steady(report, session)) | dict.fromkeys(PERCENT.values(), 5)

    assert play(believing, [1], arm="belief")[0].cost == plain.cost
    with pytest.raises(InputError, match="policy"):
        play(BaseStock(), [1], arm="anonymous")


@pytest.mark.parametrize("fault", ["raises", "silent", "refused", "stuck"])
def test_an_agent_that_fails_leaves_an_unfinished_run_and_the_others_are_played(tmp_path: Path, fault: str) -> None:
    refused = 0

    def faulty(report: Report, session: Session) -> Report | None:
        nonlocal refused
        if session.episode.week == 4 and report["on_order"] > 0 and first:
            if fault == "raises":
                raise RuntimeError("no idea")
            if fault == "silent":
                return None
            if fault == "stuck":
                refused += 1
                return {"rationale": "x", "qty": -1}
            session.call("place_order", {"rationale": "x", "qty": -1})
        return steady(report, session)

    first = True

    def one(done: Any) -> None:
        nonlocal first
        first = False

    bad, good = play(faulty, [1, 3], journals=tmp_path, on_done=one)
    assert math.isnan(bad.cost) and bad.error and good.error is None and not math.isnan(good.cost)
    assert refused == (REFUSALS if fault == "stuck" else 0)
    runs = read_folder(tmp_path)
    assert [math.isnan(r.cost) for r in runs] == [True, False]
    assert runs[0].ledger is None and runs[1].cost == good.cost


def test_journals_say_how_they_came_about_and_are_not_played_twice(tmp_path: Path) -> None:
    play(steady, [1], repeats=2, journals=tmp_path, arm="coached")
    notes = json.loads((tmp_path / "steady" / NOTES).read_text())
    assert notes["prompt_sha256"] == prompt_hash("coached") and notes["agent"] == "steady"
    runs = read_folder(tmp_path)
    assert [(r.agent, r.seed, r.repeat) for r in runs] == [("steady", 1, 1), ("steady", 1, 2)]
    assert runs[0].notes["arm"] == "coached" and not runs[0].privileged

    def must_not(report: Report, session: Session) -> None:
        raise AssertionError("played again")

    again = play(must_not, [1], repeats=2, journals=tmp_path, arm="coached", name="steady")
    assert [f.cost for f in again] == [r.cost for r in runs]
    with pytest.raises(InputError, match="arm is 'coached' there and 'rules' now"):
        play(steady, [1], journals=tmp_path)


def test_an_unfinished_episode_begins_anew_or_goes_on(tmp_path: Path) -> None:
    def gives_up(report: Report, session: Session) -> Report:
        if report["week"] == 10:
            raise RuntimeError
        return steady(report, session)

    started: list[int] = []

    def counted(report: Report, session: Session) -> Report:
        started.append(report["week"])
        return steady(report, session)

    expected = play(steady, [1])[0].cost
    play(gives_up, [1], journals=tmp_path, name="a")
    (done,) = play(counted, [1], journals=tmp_path, name="a")
    assert done.cost == expected and started[0] == 0
    assert len(list((tmp_path / "a").glob("*.unfinished-*"))) == 1 and len(read_folder(tmp_path)) == 1
    started.clear()
    play(gives_up, [3], journals=tmp_path, name="a")
    (done,) = play(counted, [3], journals=tmp_path, name="a", resume=True)
    assert done.cost == play(steady, [3])[0].cost and started[0] == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"seeds": []}, "at least one seed"),
        ({"seeds": [1], "repeats": 0}, "repeats"),
        ({"seeds": [-1]}, "seed"),
        ({"seeds": [1], "arm": "x"}, "arm"),
        ({"seeds": [1], "rules": "x"}, "rules"),
        ({"seeds": [1], "journals": "j", "name": "a/b"}, "name"),
        ({"seeds": [1], "journals": "j", "name": ""}, "name"),
        ({"seeds": [1], "journals": "j", "name": 5}, "name"),
        ({"seeds": [1], "journals": 5}, "journals must be the path"),
        ({"seeds": [1], "journals": "a-file"}, "cannot use the folder"),
        ({"seeds": [1], "journals": "j", "notes": ["x"]}, "notes must be"),
        ({"seeds": [1], "journals": "j", "notes": {"model": object()}}, "cannot be written as JSON"),
        ({"seeds": 5}, r"seeds must be a list of whole numbers such as \[0, 1\], not 5"),
        ({"seeds": "1,2"}, "seeds must be a list"),
        ({"seeds": ["1"]}, "a seed is a whole number"),
        ({"seeds": [1.0]}, "a seed is a whole number"),
        ({"seeds": [True]}, "a seed is a whole number"),
        ({"seeds": [1, 3, 1]}, "seed 1 is given twice"),
        ({"seeds": [1], "repeats": "2"}, "repeats"),
    ],
)
def test_bad_arguments_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").write_text("")

    def never(report: Report, session: Session) -> None:
        raise AssertionError("something was played")

    with pytest.raises(InputError, match=said):
        play(never, **arguments)


def test_what_is_no_agent_is_refused() -> None:
    for wrong in (5, "steady", None):
        with pytest.raises(InputError, match="an agent is a function"):
            play(wrong, [1])  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"a class; give an agent made of it: BaseStock\("):
        play(BaseStock, [1])  # type: ignore[arg-type]


def test_an_order_that_is_no_mapping_is_refused_and_said() -> None:
    (done,) = play(lambda report, session: ["qty", 20], [1])  # type: ignore[arg-type,return-value]
    assert math.isnan(done.cost) and done.error is not None and "the arguments must be an object" in done.error


def test_a_models_id_can_be_recorded_and_another_world_is_not_mixed_in(tmp_path: Path) -> None:
    play(steady, [1], journals=tmp_path, notes={"model": "provider/name-2026-11-01", "temperature": 0.0})
    (run,) = read_folder(tmp_path)
    assert run.notes["model"] == "provider/name-2026-11-01" and run.notes["world"] == "published"
    with pytest.raises(InputError, match="model is 'provider/name-2026-11-01' there and 'another' now"):
        play(steady, [1], journals=tmp_path, notes={"model": "another"})
    # A world that the prompt does not show.
    other = World.paper().replace({"port.congest_persist": 0.5})
    with pytest.raises(InputError, match="world is 'published' there"):
        play(steady, [1], journals=tmp_path, world=other)


def test_notes_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "steady").mkdir()
    with Episode(1, journal=tmp_path / "steady" / "seed-1.1.jsonl") as episode:
        episode.place_order("x", 0)
    for name in ("seed-1.1.jsonl.notes.json", NOTES):
        for notes in ("{", "[1]", '"x"'):
            (tmp_path / "steady" / name).write_text(notes)
            with pytest.raises(InputError, match=name):
                read_folder(tmp_path)
        (tmp_path / "steady" / name).write_text("{}")
    (tmp_path / "steady" / NOTES).write_text("[1]")
    with pytest.raises(InputError, match=NOTES):
        play(steady, [1], journals=tmp_path)


def test_other_lines_of_json_may_lie_beside_journals(tmp_path: Path) -> None:
    play(steady, [1], journals=tmp_path)
    (tmp_path / "labels.jsonl").write_text('{"agent": "steady"}\n')
    assert len(read_folder(tmp_path)) == 1
    (tmp_path / "labels.jsonl").write_text('{"stocktake_journal": 1')
    with pytest.raises(InputError, match=r"labels\.jsonl"):
        read_folder(tmp_path)


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    play(steady, [1], journals=tmp_path)
    path = tmp_path / "steady" / "seed-1.1.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5] + lines[6:]))
    with pytest.raises(InputError, match=r"seed-1\.1\.jsonl: line 6"):
        read_folder(tmp_path)


def test_reading_a_journal_leaves_it_to_whoever_plays_it(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    with Episode(1, journal=path) as episode:
        episode.place_order("x", 0)
        (run,) = read_folder(path)
        assert math.isnan(run.cost) and run.seed == 1
        episode.place_order("y", 0)  # still ours
        assert episode.week == 2


SLOW = """
import sys, time
from stocktake_jax.agents.play import play

def steady(report, session):
    time.sleep(0.01)
    print(report["week"], flush=True)
    sign = {"contract_action": "sign", "contract_supplier": "qualified"} if report["week"] == 0 else {}
    order = {"rationale": f"Week {report['week']}.", "qty": 20, "route": "suez", "supplier": "qualified"}
    return order | sign

play(steady, [int(s) for s in sys.argv[3:]], journals=sys.argv[1], resume=sys.argv[2] == "resume")
print("all", flush=True)
"""


def killed_and_run_again(folder: Path, resume: str, seeds: list[int], lines: list[int]) -> None:
    """Kill a run after so many lines of its output, again and again, and let the last one finish."""
    script = folder / "run.py"
    script.write_text(SLOW)
    command = [sys.executable, str(script), str(folder / "journals"), resume, *map(str, seeds)]
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[2])}
    printed = 0
    for count in lines:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        for _ in range(count):
            if process.stdout.readline().strip() == b"all":
                break
            printed += 1
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    last = subprocess.run(command, capture_output=True, env=environment, check=True).stdout.split()
    runs = read_folder(folder / "journals")
    expected = play(steady, seeds)
    assert sorted((r.seed, r.repeat, r.cost) for r in runs) == sorted((f.seed, 1, f.cost) for f in expected)
    # What was finished before the last kill was not played again.
    if resume == "resume":
        assert len(last) - 1 <= HORIZON * len(seeds) - printed + len(lines)


def test_kill_9_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    killed_and_run_again(tmp_path, "resume", [1, 3], [31])


@pytest.mark.slow
@pytest.mark.parametrize("resume", ["resume", "restart"])
def test_kill_9_twenty_times(tmp_path: Path, resume: str) -> None:
    rng = random.Random(9)
    most = HORIZON if resume == "resume" else 2 * HORIZON
    killed_and_run_again(tmp_path, resume, list(range(12)), [rng.randrange(1, most) for _ in range(20)])
