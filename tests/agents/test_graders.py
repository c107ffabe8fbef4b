"""The graders: the offline one by its rules and its agreement, the model one by what it does with bad answers."""

from __future__ import annotations

import asyncio

import pytest

from stocktake_jax.agents.graders import (
    ATTEMPTS,
    INSTRUCTIONS,
    Example,
    LexicalGrader,
    agreement_on,
    grade_with,
    instructions_hash,
    parse_labels,
    read_examples,
)
from stocktake_jax.errors import InputError
from stocktake_jax.models import FACTORS
from tests.agents.conftest import EXAMPLES

GRADE = LexicalGrader().grade


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("The port is congested.", {"port"}),
        ("No congestion at the port.", set()),
        ("There is no sign of trouble at the port, the canal or with quality.", set()),
        ("The port is clear again and quality is fine.", set()),
        ("The inspection came back reject.", {"quality"}),
        ("I fly units in because the port is blocked.", {"port"}),
        ("I order more in case the canal closes.", set()),
        ("If freight spikes next week I will lock it.", set()),
        ("Freight is at a spike, but demand is normal.", {"freight"}),
        ("Demand is well below normal.", {"demand"}),
        ("Berth wait is 16 days.", {"port"}),
        ("Berth wait is 2 days.", set()),
        ("Freight index 390, OTIF 86, fill 0.4.", {"freight", "supplier"}),
        ("Suez counts are down to 28/25.", {"canal"}),
        ("Arran is shut.", {"canal"}),
        ("", set()),
    ],
)
def test_the_rules_of_grading(text: str, labels: set[str]) -> None:
    assert GRADE(text) == labels


def test_agreement_with_the_labelled_examples(capsys: pytest.CaptureFixture[str]) -> None:
    examples = read_examples(EXAMPLES.read_text(encoding="utf-8"))
    found = agreement_on(examples, LexicalGrader())
    with capsys.disabled():
        print(f"\nlexical grader: {found.text()}")
    assert len(examples) >= 90 and found.ungraded == 0
    assert found.exact.value >= 0.85 and found.relevant.value >= 0.85 and found.per_factor.value >= 0.97
    every = {f for e in examples for f in e.labels}
    assert every == set(FACTORS) and sum(not e.labels for e in examples) > 20


def test_agreement_counts_what_it_says() -> None:
    examples = [
        Example("a", frozenset({"port"}), frozenset({"port"})),
        Example("b", frozenset({"port", "canal"}), frozenset({"port"})),
        Example("c", frozenset(), frozenset()),
        Example("d", frozenset({"quality"}), frozenset({"quality"})),
    ]
    answers = [frozenset({"port"}), frozenset({"port"}), frozenset({"demand"}), None]
    found = agreement_on(examples, lambda texts: answers)
    assert found.exact == (1, 3) and found.relevant == (2, 2) and found.per_factor == (16, 18)
    assert found.ungraded == 1 and found.missing["canal"] == 1 and found.extra["demand"] == 1


@pytest.mark.parametrize(
    "text", ["a" * 100_000, "port " * 20_000, "canal " + "x-" * 50_000, "no " * 30_000, ",; " * 30_000]
)
def test_no_text_drives_it_into_exponential_time(text: str) -> None:
    # A pattern that could be would not come back from here.
    assert GRADE(text) <= set(FACTORS)


# -- a model as the grader


@pytest.mark.parametrize(
    ("answer", "labels"),
    [
        ('{"problems": ["port", "canal"]}', {"port", "canal"}),
        ('```json\n{"problems": []}\n```', set()),
        (' {"problems": ["demand"]}\n', {"demand"}),
    ],
)
def test_answers_that_can_be_used(answer: str, labels: set[str]) -> None:
    assert parse_labels(answer) == labels


@pytest.mark.parametrize(
    "answer",
    [
        "", "none", "[]", '["port"]', "{}", '{"problems": null}', '{"problems": "port"}', '{"problems": ["harbour"]}',
        '{"problems": [1]}', '{"problems": [], "note": "x"}', 'Sure! {"problems": []}', '{"problems": ["port"]',
    ],
)  # fmt: skip
def test_answers_that_cannot_be_used_are_never_read_as_silence(answer: str) -> None:
    with pytest.raises(InputError, match="answer"):
        parse_labels(answer)


def test_a_grader_is_asked_again_and_then_the_week_is_ungraded() -> None:
    asked: list[int] = []

    async def third_time(text: str, attempt: int) -> str:
        asked.append(attempt)
        if attempt == 0:
            raise ConnectionError("the provider is away")
        return "no idea" if attempt == 1 else '{"problems": ["port"]}'

    assert asyncio.run(grade_with(third_time, "x")) == {"port"}
    assert asked == [0, 1, 2]

    async def never(text: str, attempt: int) -> str:
        asked.append(attempt)
        raise RuntimeError("quota")

    asked.clear()
    assert asyncio.run(grade_with(never, "x")) is None
    assert len(asked) == ATTEMPTS


def test_the_instructions_carry_the_rules_and_are_fingerprinted() -> None:
    for part in (*FACTORS, "rules out", "precaution", "came back reject", "Acting because"):
        assert part in INSTRUCTIONS
    assert len(instructions_hash()) == 64


def test_bad_example_files_are_named() -> None:
    with pytest.raises(InputError, match="mine, line 2"):
        read_examples('{"text": "x", "labels": []}\n{"text": "x", "labels": ["harbour"]}\n', "mine")
