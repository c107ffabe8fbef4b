"""The Inspect task: what the model is sent, what is scored, and what becomes of runs that go wrong."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import eval as run_eval
from inspect_ai.log import read_eval_log, write_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from stocktake_jax.agents.graders import CONFIG, INSTRUCTIONS, ModelGrader
from stocktake_jax.agents.inspect_task import (
    IDLE,
    STORE,
    outcome_values,
    outcomes,
    read_log,
    read_logs,
    record_of,
    stocktake,
)
from stocktake_jax.agents.play import read_folder
from stocktake_jax.agents.prompt import ARMS, NUDGE, system_prompt
from stocktake_jax.agents.session import Session
from stocktake_jax.cli_agents import _read as cli_read
from stocktake_jax.desk import TOOLS, Episode
from stocktake_jax.errors import InputError
from stocktake_jax.models import HORIZON
from tests.agents.conftest import Call, order
from tests.agents.test_session import in_arm

# 2026-11-30, both Inspect 0.3.285's own: it calls tenacity with an argument that tenacity has renamed, and leaves streams
# of its event loop unclosed.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning"),
]


@pytest.fixture(autouse=True)
def streams_are_collected_here() -> Iterator[None]:
    """Not in some later test, where their warnings would count."""
    yield
    gc.collect()


Reply = Callable[[list[Any], list[Any], Any, Any], ModelOutput]


def message(*calls: Call, text: str = "") -> ModelOutput:
    """A message of the mock model with any number of calls."""
    name, arguments = calls[0] if calls else ("", {})
    output = ModelOutput.for_tool_call("mockllm/model", name, arguments, content=text) if calls else None
    output = output or ModelOutput.from_content("mockllm/model", text)
    for number, (more, given) in enumerate(calls[1:]):
        extra = ModelOutput.for_tool_call("mockllm/model", more, given).message.tool_calls
        assert extra is not None and output.message.tool_calls is not None
        extra[0].id = f"extra-{number}"
        output.message.tool_calls.append(extra[0])
    # Without usage the mock downloads a tokenizer.
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return output


def replies(outputs: Iterator[ModelOutput]) -> Reply:
    return lambda messages, tools, choice, config: next(outputs)


def run(tmp_path: Path, reply: Reply, grader: Reply | None = None, **options: Any) -> Any:
    roles = {} if grader is None else {"grader": get_model("mockllm/model", custom_outputs=grader, memoize=False)}
    task = {key: options.pop(key) for key in ("seeds", "arm", "rules", "repeats") if key in options}
    (log,) = run_eval(
        stocktake(**({"seeds": "3"} | task), grader=options.pop("judged_by", "model" if grader else "lexical")),
        model=get_model("mockllm/model", custom_outputs=reply, memoize=False),
        model_roles=roles,
        display="none",
        log_dir=str(tmp_path),
        **options,
    )
    return log


def values(log: Any, name: str = "outcome") -> dict[str, float]:
    (score,) = [s for s in log.results.scores if s.name == name]
    return {key: metric.value for key, metric in score.metrics.items()}


def one_order_a_message() -> Iterator[ModelOutput]:
    week = 0
    while True:
        yield message(order(week % HORIZON))
        week += 1


@pytest.mark.parametrize("arm", ARMS)
def test_the_model_is_sent_our_prompt_our_tools_and_nothing_else(
    tmp_path: Path, arm: str, calls: list[list[Call]]
) -> None:
    # The whole episode once; of the other arms a few weeks, after which the model falls silent.
    weeks = calls if arm == "rules" else calls[:5]
    flat = iter([call for week in weeks for call in week])
    sent: list[tuple[list[tuple[str, str]], list[dict[str, Any]]]] = []
    configs = []

    def reply(messages: list[Any], tools: list[Any], choice: Any, config: Any) -> ModelOutput:
        shown = [t.model_dump(exclude_none=True) for t in tools]
        sent.append(([(m.role, m.text) for m in messages], shown))
        configs.append((choice, config.parallel_tool_calls, config.system_message))
        call = next(flat, None)
        return message(text="So be it.") if call is None else message(in_arm(arm, call))

    log = run(tmp_path, reply, arm=arm)
    assert log.status == "success", log.error
    assert values(log)["complete all"] == (weeks is calls)
    direct = Session(Episode(3), arm)
    expected = [("system", system_prompt(arm)), ("user", direct.opening())]
    for call in [call for week in weeks for call in week] + [None] * (IDLE * (weeks is not calls)):
        messages, tools = sent.pop(0)
        assert messages == expected
        assert [t["name"] for t in tools] == list(TOOLS)
        assert [t["description"] for t in tools] == [t.description for t in direct.tools.values()]
        for tool, spec in zip(tools, direct.tools.values(), strict=True):
            schema = spec.schema()
            properties = {
                name: {k: v for k, v in p.items() if not (k == "default" and v is None)}
                for name, p in schema["properties"].items()
            }
            assert tool["parameters"] == schema | {"properties": properties}
        if call is None:
            expected += [("assistant", "So be it."), ("user", NUDGE)]
        else:
            expected += [("assistant", ""), ("tool", direct.answer(*in_arm(arm, call)).text)]
    assert not sent and set(configs) == {("auto", False, None)}
    (sample,) = log.samples
    assert sample.store[STORE]["prompt_sha256"] == direct.prompt_hash
    assert weeks is not calls or sample.scores["outcome"].value["cost"] == direct.episode.cost
    assert sample.store[STORE]["models"] == ["mockllm/model"] * len(configs)  # who answered, call by call


def test_of_two_orders_in_one_message_the_second_is_refused(tmp_path: Path) -> None:
    weeks = iter(range(HORIZON))

    def reply(messages: list[Any], *_: Any) -> ModelOutput:
        week = next(weeks)
        return message(order(week), order(week + 1), ("lock_freight", {"weeks": 2}))

    log = run(tmp_path, reply)
    (sample,) = log.samples
    refusals = [m for m in sample.messages if m.role == "tool" and m.error is not None]
    assert len([m for m in sample.messages if m.role == "assistant"]) == HORIZON
    assert len(refusals) == 2 * (HORIZON - 1) + 2 and len(sample.store[STORE]["calls"]) == HORIZON
    assert "new message" in refusals[0].text
    plain = Episode(3)
    while not plain.done:
        plain.call(*order(plain.week))
    assert sample.scores["outcome"].value["cost"] == plain.cost


def test_an_episode_that_is_not_finished_is_never_cheap(tmp_path: Path) -> None:
    def stops_talking(messages: list[Any], *_: Any) -> ModelOutput:
        done = sum(m.role == "tool" for m in messages)
        return message(order(done)) if done < 5 else message(text="I am done.")

    log = run(tmp_path, stops_talking, seeds="1,3")
    assert values(log)["finished"] == 0 and values(log)["samples"] == 2
    assert math.isnan(values(log)["skill all"]) and math.isnan(values(log)["cost all"])
    assert values(log)["complete all"] == 0
    for sample in log.samples:
        assert [m.text for m in sample.messages if m.role == "user"][1:] == [NUDGE] * (IDLE - 1)
        assert sample.scores["outcome"].value["complete"] == 0
    runs = read_log(log.location)
    assert len(runs) == 2 and all(math.isnan(r.cost) and r.ledger is None for r in runs)


@pytest.mark.parametrize("limit", [{"message_limit": 20}, {"token_limit": 20}, {"turn_limit": 10}])
def test_a_limit_leaves_the_episode_unfinished(tmp_path: Path, limit: dict[str, int]) -> None:
    log = run(tmp_path, replies(one_order_a_message()), **limit)
    (sample,) = log.samples
    assert sample.limit is not None
    assert sample.scores["outcome"].value["complete"] == 0 and math.isnan(sample.scores["outcome"].value["skill"])
    assert values(log)["finished"] == 0


def test_a_crash_leaves_an_unfinished_run_in_the_log(tmp_path: Path) -> None:
    def crashes(messages: list[Any], *_: Any) -> ModelOutput:
        if sum(m.role == "tool" for m in messages) == 3:
            raise RuntimeError("the provider is away")
        return message(order(0))

    log = run(tmp_path, crashes, seeds="1,3", fail_on_error=False)
    assert all(s.error is not None for s in log.samples)
    runs = read_log(log.location)
    assert len(runs) == 2 and all(math.isnan(r.cost) for r in runs)


def test_one_unfinished_repeat_leaves_its_seed_without_a_skill(tmp_path: Path) -> None:
    started = 0

    def reply(messages: list[Any], *_: Any) -> ModelOutput:
        nonlocal started
        tools = sum(m.role == "tool" for m in messages)
        started += len(messages) == 2
        return message(text="no") if started == 2 else message(order(tools))

    log = run(tmp_path, reply, repeats=2, max_samples=1)
    assert sorted(s.scores["outcome"].value["complete"] for s in log.samples) == [0, 1]
    assert values(log)["complete all"] == 0.5
    assert math.isnan(values(log)["skill all"])


def test_strict_rules_have_no_published_references_and_so_no_skill(tmp_path: Path) -> None:
    log = run(tmp_path, replies(one_order_a_message()), seeds="1", rules="strict")
    found = values(log)
    assert found["complete all"] == 1 and found["cost all"] > 0 and math.isnan(found["skill all"])
    ledger = record_of(log.samples[0].store[STORE])
    assert ledger is not None
    assert ledger.cost == found["cost all"] and not math.isnan(outcome_values(ledger, 1)["skill"])


def test_means_are_by_profile_and_errors_by_seed() -> None:
    rows = [
        ({"skill": skill, "cost": 1000.0, "complete": float(not math.isnan(skill))}, {"profile": profile, "seed": seed})
        for seed, profile, skill in ((1, "isolated", 0.5), (2, "isolated", 1.0), (3, "compound", math.nan))
    ]
    found = outcomes(rows)
    assert found["skill isolated"] == found["skill all"] == 0.75
    assert math.isnan(found["skill compound"]) and found["complete compound"] == 0
    assert found["skill stderr"] == pytest.approx(0.25) and found["finished"] == 2


def test_rationales_are_graded_and_rates_pooled(tmp_path: Path) -> None:
    def alarmist(messages: list[Any], *_: Any) -> ModelOutput:
        return message(order(0, rationale="The port is congested and freight is at a spike."))

    log = run(tmp_path, alarmist, seeds="1,24")
    rates = values(log, "beliefs")
    assert rates["names_per_week all"] == 2 and rates["ungraded all"] == 0
    assert 0 < rates["missed all"] < 1 and 0 < rates["precision all"] < 1
    (run_1, run_24) = read_log(log.location)
    assert (run_1.seed, run_24.seed) == (1, 24) and run_1.ledger is not None
    assert run_1.agent == "mockllm/model" and run_1.notes["resolved model"] == ("mockllm/model",)
    assert run_1.notes["harness"].startswith("inspect-ai 0.3.")


def test_a_model_grades_under_its_own_role_with_fixed_settings(tmp_path: Path) -> None:
    asked: list[tuple[list[tuple[str, str]], float | None]] = []

    def judge(messages: list[Any], tools: list[Any], choice: Any, config: Any) -> ModelOutput:
        asked.append(([(m.role, m.text) for m in messages], config.temperature))
        assert not tools
        text = '{"problems": ["port"]}' if len(asked) > 3 else "hm"
        return message(text=text)

    log = run(tmp_path, replies(one_order_a_message()), grader=judge)
    (sample,) = log.samples
    labels = sample.scores["beliefs"].metadata["labels"]
    assert labels["1"] is None and labels["2"] == ["port"]  # three useless answers: the first week is ungraded
    assert values(log, "beliefs")["ungraded all"] == pytest.approx(1 / 25)
    assert asked[0] == ([("system", INSTRUCTIONS), ("user", "Week 1: as planned.")], CONFIG["temperature"])
    assert "mockllm/model" in sample.scores["beliefs"].metadata["grader"]


def test_without_a_grader_role_the_model_under_test_does_not_grade_itself(tmp_path: Path) -> None:
    log = run(tmp_path, replies(one_order_a_message()), judged_by="model")
    assert log.status == "error" and "grader" in log.error.message


def test_the_grader_of_a_score_command_uses_any_inspect_model() -> None:
    model = get_model("mockllm/model", custom_outputs=lambda *_: message(text='{"problems": ["canal"]}'), memoize=False)
    grader = ModelGrader(model)
    assert grader(["x", "y"]) == [frozenset({"canal"})] * 2
    assert grader.resolved == {"mockllm/model"} and "mockllm/model" in grader.name


@pytest.mark.parametrize(
    "options", [{"seeds": "x"}, {"arm": "faithful"}, {"rules": "lax"}, {"grader": "me"}, {"seeds": True}]
)
def test_bad_task_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        stocktake(**options)


def test_a_file_that_is_no_log_of_this_task_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.eval"
    path.write_text("nothing")
    with pytest.raises(InputError, match="not an Inspect log"):
        read_log(path)
    assert read_folder(tmp_path) == ()


EVAL_SET = """
import sys, time
from inspect_ai import eval_set
from inspect_ai.model import get_model
from stocktake_jax.agents.inspect_task import stocktake
from tests.agents.test_inspect import message
from tests.agents.conftest import order

def reply(messages, tools, choice, config):
    time.sleep(float(sys.argv[3]))
    print(len(messages), flush=True)
    return message(order(sum(m.role == "tool" for m in messages)))

if __name__ == "__main__":
    model = get_model("mockllm/model", custom_outputs=reply, memoize=False)
    ok, logs = eval_set(stocktake(seeds=sys.argv[2]), sys.argv[1], model=model, display="none", max_samples=1)
    print("finished", ok, flush=True)
"""


def killed_and_run_again(folder: Path, lines: list[int], seeds: list[int]) -> None:
    """Kill an eval set after so many lines of its output, again and again, and let the last one finish."""
    script = folder / "run.py"
    script.write_text(EVAL_SET)
    environment = dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(script), str(folder / "logs"), ",".join(map(str, seeds))]
    for count in lines:
        process = subprocess.Popen([*command, "0.01"], stdout=subprocess.PIPE, env=environment, cwd=folder)
        assert process.stdout is not None
        for _ in range(count):
            if process.stdout.readline().startswith(b"finished"):
                break
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    again = subprocess.run([*command, "0"], capture_output=True, env=environment, cwd=folder, check=True)
    assert b"finished True" in again.stdout
    # In one log, and in all that is left of the attempts taken together, each episode stands once.
    logs = sorted((folder / "logs").glob("*.eval"))
    (whole,) = [path for path in logs if read_eval_log(str(path), header_only=True).status == "success"]
    expected = [(seed, 1, planned(seed).cost) for seed in seeds]
    for runs in (read_log(whole), cli_read(str(folder / "logs"))):
        assert sorted((r.seed, r.repeat, r.cost) for r in runs) == expected


def planned(seed: int) -> Episode:
    episode = Episode(seed)
    while not episode.done:
        episode.call(*order(episode.week))
    return episode


def test_kill_9_loses_no_finished_episode_and_counts_none_twice(tmp_path: Path) -> None:
    killed_and_run_again(tmp_path, [30], [1, 24])


@pytest.mark.slow
@pytest.mark.parametrize("chain", range(4))
def test_kill_9_twenty_times(tmp_path: Path, chain: int) -> None:
    rng = random.Random(chain)
    killed_and_run_again(tmp_path, [rng.randrange(1, 45) for _ in range(5)], [1, 3, 24])


def test_samples_of_two_goes_count_once_and_repeats_go_on(tmp_path: Path) -> None:
    silent = run(tmp_path / "a", lambda *_: message(text="no"))
    whole = run(tmp_path / "b", replies(one_order_a_message()))
    again = run(tmp_path / "c", lambda *_: message(text="no"))
    whole.eval.task_id = silent.eval.task_id  # as an eval set's second go has it
    write_eval_log(whole, whole.location)
    runs = read_logs([again.location, whole.location, silent.location])
    assert [(r.repeat, math.isnan(r.cost)) for r in runs] == [(1, False), (2, True)]
    assert [(r.repeat, math.isnan(r.cost)) for r in read_logs([silent.location, again.location])] == [
        (1, True),
        (2, True),
    ]


def test_the_task_is_found_by_its_name_with_arguments_as_the_command_line_cuts_them(tmp_path: Path) -> None:
    model = get_model("mockllm/model", custom_outputs=lambda *_: message(text="no"), memoize=False)
    arguments = {"seeds": ["1", "5-6"], "arm": "belief", "rules": "strict"}  # -T seeds=1,5-6
    (log,) = run_eval(
        "stocktake_jax/stocktake", task_args=arguments, model=model, display="none", log_dir=str(tmp_path)
    )
    assert [s.metadata["seed"] for s in log.samples] == [1, 5, 6]
    assert {r.agent for r in read_log(log.location)} == {"mockllm/model (belief, strict rules)"}
    assert {r.rules for r in read_log(log.location)} == {"strict"}


def test_a_grader_that_cannot_be_had_is_said() -> None:
    with pytest.raises(InputError, match="the grader must be lexical or an Inspect model"):
        ModelGrader("nobody/nothing")


def test_a_grader_says_what_went_wrong_and_works_where_a_loop_runs() -> None:
    def away(*_: Any) -> ModelOutput:
        raise RuntimeError("quota")

    broken = ModelGrader(get_model("mockllm/model", custom_outputs=away, memoize=False), attempts=2)
    fine = ModelGrader(
        get_model("mockllm/model", custom_outputs=lambda *_: message(text='{"problems": []}'), memoize=False)
    )

    async def in_a_notebook() -> list[Any]:
        return [broken(["x"]), fine(["x"])]

    assert asyncio.run(in_a_notebook()) == [[None], [frozenset()]]
    assert broken.failure == "RuntimeError: quota" and fine.failure is None
