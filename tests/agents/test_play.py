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
from stocktake_jax.models import HORIZON
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
    ],
)
def test_bad_arguments_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        play(steady, **arguments)
    with pytest.raises(InputError, match="function"):
        play(5, [1])  # type: ignore[arg-type]


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

play(steady, [1, 3, 24], journals=sys.argv[1], resume=sys.argv[2] == "resume")
print("all", flush=True)
"""


def killed_and_run_again(folder: Path, resume: str, lines: list[int]) -> None:
    """Kill a run after so many lines of its output, again and again, and let the last one finish."""
    script = folder / "run.py"
    script.write_text(SLOW)
    command = [sys.executable, str(script), str(folder / "journals"), resume]
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[2])}
    for count in lines:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert process.stdout is not None
        for _ in range(count):
            if process.stdout.readline().strip() == b"all":
                break
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    subprocess.run(command, capture_output=True, env=environment, check=True)
    runs = read_folder(folder / "journals")
    expected = play(steady, [1, 3, 24])
    assert [(r.seed, r.cost) for r in runs] == [(f.seed, f.cost) for f in expected]


@pytest.mark.parametrize("resume", ["resume", "restart"])
def test_kill_9_loses_nothing_and_counts_nothing_twice(tmp_path: Path, resume: str) -> None:
    killed_and_run_again(tmp_path, resume, [31])


@pytest.mark.slow
@pytest.mark.parametrize("resume", ["resume", "restart"])
def test_kill_9_many_times(tmp_path: Path, resume: str) -> None:
    rng = random.Random(9)
    killed_and_run_again(tmp_path, resume, [rng.randrange(1, HORIZON) for _ in range(8)])
