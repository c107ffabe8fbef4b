"""Graders: which factors does a rationale assert to be a problem this week?

The rules: a factor that is ruled out or called fine does not count; a symptom reported as fact does; a precaution
without a claimed problem does not, acting because of one does. A grader sees the words and the vocabulary, never the
tape.

`LexicalGrader` needs no model and is the default. `ModelGrader` asks any Inspect model. `agreement_on` compares either
with labelled examples.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stocktake_jax.agents.extras import require
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.beliefs import Rate
from stocktake_jax.models import FACTORS

# -- the offline grader

# What says that a factor is in trouble, when no other word in the clause takes it back. `…` stands for a few words.
_PROBLEMS: Mapping[str, tuple[str, ...]] = {
    "canal": (
        (
            r"(canal|suez|arran|red sea|corridor|bab|tarn|strait|lane|houthi)…(disrupt|clos(ed|ure)|shut"
            r"|block|crash|collaps|crisis|attack|unrest|tension|trouble|halt|stopp|standstill|diver(t|sion)"
            r"|queue|stuck|drop|fell|fall(en|ing)|plunge|plummet|down\b|low\b|worsen|deteriorat|unsafe"
            r"|impassable|paralys|problem|degraded|watch\b|reduced|thin)"
        ),
        (
            r"(disrupt|clos(ed|ure)|shut|block(ed|age)?|crisis|trouble|collapse|tension|problem)\w*…\b(canal"
            r"|suez|arran|red sea|corridor|strait|lane)"
        ),
        (
            r"(ships?|vessels?|shipments?|units)…(queued|stuck|waiting|diverted)…(canal|suez|arran|cape"
            r"|morrow)"
        ),
        r"(queued_at_|diverted_via_)",
        r"\b(disruption|closure)\b",
        r"nothing…(moving|passing|going|getting)…\b(suez|canal|arran|strait|lane)",
    ),
    "supplier": (
        (
            r"(spot|supplier|vendor|otif|scorecard|fill( rate)?|realized_fill)…(degrad|defunct|fail|wobbl"
            r"|slipp|unreliable|short(ed|fall|-ship|ing)?\b|collaps|deteriorat|dead|gone|bankrupt|turned"
            r"|trouble|problem|worsen|poor|bad\b|weak|drop|fell|fall(en|ing)|down\b|declin|only (half|part)"
            r"|late\b|delay|struggl|low\b|died\b|dying|insolven)"
        ),
        r"(shortfall|short-ship\w*|under-deliver\w*|short shipment|partial fill)",
        r"(lead[_ -]?slip|lead[_ -]?time)…(up\b|high|rose|risen|jump|climb|spik|elevated|long)",
    ),
    "demand": (
        (
            r"(demand|pos(_units)?|sales|sell-through|customers?|forecast|orders from customers)…(surg|spik"
            r"|lift|promo|jump|high(er)?\b|elevated|soar|ris(e|en|ing)|rose|strong|above|up\b|declin|drop"
            r"|fell|fall(en|ing)|weak|low(er)?\b|soft|slump|collaps|below|down\b|structural|seasonal"
            r"|accelerat|climb|shrink|shrunk|peak|hot\b|grow|increas|decreas)"
        ),
        r"\b(rising|falling|surging|weak|strong|soft|elevated) (demand|sales)",
        (
            r"(promo(tion)?( spike)?|seasonal (lift|peak|surge)|structural decline|surge|spike|jump|lift"
            r"|slump|drop|decline|rise) (in|of) (customer )?(demand|sales|pos)"
        ),
        (
            r"\b(promo(tion)?( spike)?|seasonal lift|structural decline)\b…(on\b|underway|under way|running"
            r"|began|begun|start|continu|active|confirmed|in progress|holds)"
        ),
        (
            r"(we are|we're|this is|it is|it's|looks like|in)( in)? (a |the )?(promo(tion)?|seasonal lift"
            r"|structural decline)"
        ),
        r"(wanted|want|sold|bought|buy)…\b(more|less|fewer)\b…(than|usual|normal)",
    ),
    "freight": (
        (
            r"(freight|shipping|index|rates?\b|multiplier|spot market|ocean rate|outlook|freight_index)…(spik"
            r"|tight|elevated|high(er)?\b|surg|jump|soar|ris(e|en|ing)|rose|expensive|dear(er)?\b|costly"
            r"|climb|up\b|doubl|tripl|quadrupl|explod|peak|above|extreme|inflat)"
        ),
        (
            r"(expensive|elevated|high|spiking|soaring|tight(ening)?|costly|dear|rising|surging"
            r"|record) (ocean |sea )?(freight|shipping|rates?)"
        ),
        r"(spike|surge|jump|rise) in (freight|shipping|rates?)",
    ),
    "port": (
        (
            r"(port|berth(_wait| wait)?|terminal|harbou?r|dock|wait_outlook|customs)…(congest|jam|block|clog"
            r"|hold\b|held|back(ed|log)|build|slow|delay|elevated|high(er)?\b|long|spik|jump|surg|rose|ris(e"
            r"|en|ing)|clos|stuck|stopp|trouble|problem|worsen|severe|up\b|nothing lands|queu|full)"
        ),
        (
            r"(customs hold|port congestion|congested port|congestion at the port|blocked port|port hold"
            r"|jammed port|congestion)"
        ),
        (
            r"(arrivals?|shipments?|ships?|units|cargo)…(held|stuck|trapped|stranded)…(port|outside|customs"
            r"|berth)"
        ),
        r"demurrage…(accru|pay|bill|cost|rising|mount)",
    ),
    "quality": (
        (
            r"(quality|aql|inspection|batch|lot|process|defects?|defect rate)…(reject|marginal|fail|drift"
            r"|out of control|out-of-control|poor|bad\b|problem|issue|worsen|deteriorat|slipp|elevated"
            r"|high(er)?\b|declin|rising|rose|degrad|defective|trouble)"
        ),
        (
            r"(defective (units|batch|goods|arrivals)|quality (escape|problem|issue|trouble)"
            r"|reject(ed)? (batch|lot|inspection|result))"
        ),
        r"(drift|slip|drop|decline|problem|trouble|issue)\w*…(in|of|with) (the )?quality",
        r"rework…(cost|mount|rising|bill|accru|up\b)",
        r"\brejects?\b…(again|keep|continu|came|in a row|twice|another)",
    ),
}

_GAP = r"\S{0,20}?(?: \S+){0,7}? ?"
"""A few words between two; written so that no text can make it slow: spaces are single, and every word ends at one."""
_COMPILED = {
    factor: [re.compile(r"(?<![a-z])" + p.replace("…", _GAP)) for p in patterns]
    for factor, patterns in _PROBLEMS.items()
}

# Symptoms given as numbers: (pattern with one number, test that the number is a symptom).
_READINGS: Mapping[str, tuple[tuple[str, Callable[[float], bool]], ...]] = {
    "canal": ((r"(?:suez|bab|arran|tarn)(?:_count| counts?| transits?)?\D{0,18}?(\d+)", lambda x: x < 65),),
    "supplier": (
        (r"(?:realized_)?fill(?: rate)?\D{0,12}?(0?\.\d+|1\.0)", lambda x: x < 0.8),
        (r"(?:realized_)?fill(?: rate)?\D{0,12}?(\d+) ?%", lambda x: x < 80),
        (r"otif\D{0,12}?(\d+)", lambda x: x < 97),
        (r"(?:lead[_ ]slip)\D{0,12}?(\d+(?:\.\d+)?)", lambda x: x >= 5),
    ),
    "demand": ((r"(?:pos(?:_units)?)(?![a-z])\D{0,12}?(\d+)", lambda x: x >= 28 or x <= 12),),
    "freight": (
        (r"(?:freight(?:_index)?|index)\D{0,12}?(\d{2,3})(?![\d.])", lambda x: x >= 150),
        (r"(?:multiplier|rate)\D{0,12}?(\d\.\d+)", lambda x: x >= 1.5),
    ),
    "port": ((r"(?:berth[_ ]?wait|wait(?:_outlook)?)\D{0,12}?(\d+)", lambda x: x >= 8),),
    "quality": (),
}
_NUMBERS = {f: [(re.compile(r"(?<![a-z])" + p), test) for p, test in rows] for f, rows in _READINGS.items()}

_NEGATION = re.compile(
    r"\b(no|not|never|none|nothing|neither|nor|without|isn't|aren't|wasn't|hasn't|haven't|doesn't|don't|cannot"
    r"|can't|rule out|ruled out|ruling out|rules out|absence of|free of|lack of|hardly any|little|unlikely"
    r"|rather than|instead of|dismiss)\b"
)
_SUPPOSED = re.compile(
    r"\b(if|in case|might|may|could|would|should|possib\w+|potential\w*|risk\w*|guard\w*|hedg\w+|insur\w+|against"
    r"|precaution\w*|cautious\w*|to be safe|prepar\w+|watch(ing)? for|monitor\w*|before|unless|until|whether"
    r"|worr\w+|fear\w*|eventual\w*|buffer for|protect\w*|next time|hypothetical\w*|chance)\b"
)
_ENDED = re.compile(
    r"\b(eas(ed|ing)|clear(ed|s|ing)?|resolv\w+|over|ended|end(s|ing)?|gone|subsid\w+|recover\w*|normal(is\w+"
    r"|iz\w+)?|fine|calm|healthy|stable|steady|ok|okay|good|unlikely|ruled out|passed|reopen\w*|false alarm"
    r"|nothing unusual|quiet|fading|faded|back (to|in|down)|settled|reliable|in control|on time|ontime|accept\w*"
    r"|slack|cheap|harmless|noise)\b"
)
_ABNORMAL = re.compile(r"\b(below|above|than|short of|exceeds?|over|under) (?:its |the )?(?:normal|usual)\b")
_FACT = re.compile(
    r"\b(because|since|due to|given|as|confirm\w*|clearly|evident\w*|is|are|has|have|remains?|still|again)\b"
)
_CONTRAST = re.compile(
    r"(?:[.!?](?=\s|$)|[;\n]|,? but |,? however,? |,? yet |,? although |,? though |,? while |,? whereas |,? so "
    r"|,? except |: | - | – | — |,? and |, )"
)


class LexicalGrader:
    """Finds assertions of trouble by words: problem phrases per factor, clause by clause.

    A phrase is taken back by a negation before it in its clause ("no sign of congestion at the port"), by a word for
    supposing or guarding before it ("in case the canal closes"), or by a word for what is over or fine after it ("the
    port's backlog has cleared"). Numbers count as symptoms beyond fixed marks: transits below 65, fills below .8, OTIF
    below 97, 28 or more or 12 or fewer units wanted, a freight index from 150, berth waits from 8 days.

    It is a means of running everything without a key, not a judge to publish with: its agreement with labelled examples
    is printed by the tests and by `stocktake agents graders`.
    """

    name = "lexical-1"

    def __call__(self, rationales: Sequence[str]) -> list[frozenset[str] | None]:
        """See `evaluation.scoring.Labeller`. A text is never ungraded: this grader cannot fail."""
        return [self.grade(text) for text in rationales]

    def grade(self, rationale: str) -> frozenset[str]:
        """The factors that one rationale asserts to be a problem."""
        found: set[str] = set()
        text = "\n".join(" ".join(line.split()) for line in rationale.lower().replace("’", "'").splitlines())
        words = _ABNORMAL.sub(r"\1 baseline", text)
        for clause in _clauses(words):
            for factor in FACTORS:
                if factor not in found and _asserts(factor, clause):
                    found.add(factor)
        return frozenset(found)


def _clauses(text: str) -> list[str]:
    """Clauses, with lists kept together: "no sign of trouble at the port, the canal or quality" is one."""
    parts = [p.strip() for p in _CONTRAST.split(text)]
    return _joined([p for p in parts if p])


_VERB = re.compile(
    r"\b(is|are|was|were|has|have|had|be|been|looks?|looked|seems?|remains?|shows?|showed|came|comes|went|goes"
    r"|reads?|read|stays?|stands?|sits?|fell|rose|jumped|dropped|crashed|collapsed|spiked|surged|spiking|holding"
    r"|queued|confirmed|i|we|i'll|i'm|we're|order(ing|ed)?|\w+ed|\w+ing)\b"
)


def _joined(parts: list[str]) -> list[str]:
    """Fragments without a verb go with a negated clause before them: a list goes on there."""
    out: list[str] = []
    for part in parts:
        if out and _NEGATION.search(out[-1]) and not _VERB.search(part) and not re.search(r"\d", part):
            out[-1] = f"{out[-1]}, {part}"
        else:
            out.append(part)
    return out


def _asserts(factor: str, clause: str) -> bool:
    for pattern in _COMPILED[factor]:
        for match in pattern.finditer(clause):
            if not _taken_back(clause, match.start(), match.end()):
                return True
    for pattern, symptom in _NUMBERS[factor]:
        for match in pattern.finditer(clause):
            if symptom(float(match[1])) and not _SUPPOSED.search(clause[: match.start()]):
                return True
    return False


def _taken_back(clause: str, start: int, end: int) -> bool:
    before, inside, after = clause[:start], clause[start:end], clause[end:]
    if _NEGATION.search(before) or _NEGATION.search(inside):
        return True
    supposed = _SUPPOSED.search(before) or _SUPPOSED.search(inside)
    if supposed and not _FACT.search(clause[supposed.end() : start]):
        return True
    return bool(_ENDED.search(after) or _ENDED.search(inside))


# -- a model as the grader

INSTRUCTIONS = f"""\
You label what a buyer of stock wrote when deciding one week of a supply chain. There are six factors:
canal (the Suez lane), supplier (the spot supplier), demand, freight (the price of shipping), port (the port of \
arrival), quality (of what arrives).
Say for which of them the text asserts a problem in that week.
- A factor that the text rules out, calls fine, or calls over does not count.
- A symptom reported as a fact counts: an inspection that came back reject asserts quality.
- A precaution without a claimed problem does not count. Acting because of a problem that the text asserts does.
- Judge the text alone; do not guess what was true.
Answer with one JSON object and nothing else: {{"problems": [names among {", ".join(FACTORS)}]}}. An empty list means\
 that no problem is asserted."""

ATTEMPTS = 3
"""Questions put to a model about one rationale before the week counts as ungraded."""

CONFIG = {"temperature": 0.0, "max_tokens": 2000, "seed": 7}
"""The grader's generation settings, fixed so that it can be repeated as far as its provider allows."""


def parse_labels(answer: str) -> frozenset[str]:
    """The labels in a model's answer.

    Raises:
        InputError: if it is not one JSON object with a list of known factors. Nothing is guessed from a broken answer.
    """
    text = answer.strip()
    fenced = re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", text, re.DOTALL)
    try:
        document = json.loads(fenced[1] if fenced else text)
    except ValueError:
        raise InputError("the grader's answer is not JSON") from None
    labels = document.get("problems") if isinstance(document, dict) and set(document) == {"problems"} else None
    if not isinstance(labels, list) or not all(isinstance(x, str) and x in FACTORS for x in labels):
        raise InputError("the grader's answer is not an object with a list of factors under 'problems'")
    return frozenset(labels)


async def grade_with(
    ask: Callable[[str, int], Awaitable[str]],
    rationale: str,
    attempts: int = ATTEMPTS,
    on_failure: Callable[[Exception], None] | None = None,
) -> frozenset[str] | None:
    """Grade one rationale through any question-and-answer function; None if no attempt gives usable labels.

    Args:
        ask: (rationale, attempt) to the answer. Whatever it raises counts as a failed attempt.
        rationale: the words.
        attempts: how often to ask.
        on_failure: told of every attempt that failed.
    """
    for attempt in range(attempts):
        try:
            return parse_labels(await ask(rationale, attempt))
        except Exception as problem:
            # An answer that cannot be used, or a provider's failure of whatever kind: after the last attempt the week is
            # ungraded and counted, never "named nothing".
            if on_failure is not None:
                on_failure(problem)
    return None


class ModelGrader:
    """A language model as the grader, through Inspect.

    Args:
        model: the exact id, as Inspect takes it (`provider/model`), or an Inspect model.
        attempts: see `ATTEMPTS`.
        at_once: questions in flight together.

    Attributes:
        name: the model and a fingerprint of the instructions and settings.
        resolved: the model ids that the provider says answered.
        failure: what went wrong in the last attempt that failed; None as long as none has.

    Raises:
        InputError: if Inspect cannot make the model: it is unknown, or its provider's package or key is missing.
    """

    def __init__(self, model: Any, attempts: int = ATTEMPTS, at_once: int = 8) -> None:
        inspect_model = require("inspect_ai.model")
        config = inspect_model.GenerateConfig(
            **CONFIG, response_schema=None if isinstance(model, str) and model.startswith("mockllm") else _schema()
        )
        try:
            self.model = inspect_model.get_model(model, config=config) if isinstance(model, str) else model
        except Exception as problem:
            reason = " ".join(re.sub(r"\[/?[a-z ]*\]", "", str(problem)).split())
            raise InputError(
                f"the grader must be lexical or an Inspect model such as provider/name: {reason}"
            ) from None
        self.config, self.attempts, self.at_once = config, attempts, at_once
        self.resolved: set[str] = set()
        self.failure: str | None = None

    @property
    def name(self) -> str:
        """See the class."""
        return f"{self.model} ({instructions_hash()[:12]})"

    async def grade(self, rationale: str) -> frozenset[str] | None:
        """The factors that one rationale asserts to be a problem; None if it could not be graded."""
        inspect_model = require("inspect_ai.model")

        async def ask(text: str, attempt: int) -> str:
            messages = [
                inspect_model.ChatMessageSystem(content=INSTRUCTIONS),
                inspect_model.ChatMessageUser(content=text),
            ]
            output = await self.model.generate(messages, config=self.config)
            self.resolved.add(output.model)
            return str(output.completion)

        def failed(problem: Exception) -> None:
            self.failure = " ".join(f"{type(problem).__name__}: {problem}".split())[:300]

        return await grade_with(ask, rationale, self.attempts, failed)

    def __call__(self, rationales: Sequence[str]) -> list[frozenset[str] | None]:
        """See `evaluation.scoring.Labeller`."""

        async def every() -> list[frozenset[str] | None]:
            gate = asyncio.Semaphore(self.at_once)

            async def one(text: str) -> frozenset[str] | None:
                async with gate:
                    return await self.grade(text)

            return list(await asyncio.gather(*(one(text) for text in rationales)))

        # In a thread of its own: a notebook's thread has an event loop that runs already.
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, every()).result()


def instructions_hash() -> str:
    """SHA-256 of the grader's instructions and settings."""
    return hashlib.sha256(json.dumps([INSTRUCTIONS, CONFIG, ATTEMPTS]).encode()).hexdigest()


def _schema() -> Any:
    inspect_model, util = require("inspect_ai.model"), require("inspect_ai.util")
    names = util.JSONSchema(type="array", items=util.JSONSchema(type="string", enum=list(FACTORS)))
    return inspect_model.ResponseSchema(
        name="labels",
        json_schema=util.JSONSchema(
            type="object", properties={"problems": names}, required=["problems"], additionalProperties=False
        ),
        strict=True,
    )


# -- agreement


@dataclass(frozen=True)
class Example:
    """A rationale with the labels that a reader gave it.

    Attributes:
        text: the rationale.
        labels: the factors it asserts to be a problem.
        stressed: factors that were under stress; the part of the labels that counts for the metrics.
    """

    text: str
    labels: frozenset[str]
    stressed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ExampleAgreement:
    """How a grader does on labelled examples.

    Attributes:
        exact: examples with exactly the labels given.
        relevant: examples with stress in which the labels agree on what is under stress.
        per_factor: (example, factor) pairs that agree.
        ungraded: examples it could not grade; they are in no other count.
        missing, extra: factor -> examples in which it is labelled and not found, or found and not labelled.
        differences: the examples that differ, with what was found.
    """

    exact: Rate
    relevant: Rate
    per_factor: Rate
    ungraded: int
    missing: Mapping[str, int]
    extra: Mapping[str, int]
    differences: tuple[tuple[Example, frozenset[str]], ...]

    def to_json(self) -> dict[str, Any]:
        """The counts, rates as {"value", "numerator", "denominator"}."""
        rates = {"exact": self.exact, "relevant": self.relevant, "per_factor": self.per_factor}
        return {name: rate.to_json() for name, rate in rates.items()} | {
            "ungraded": self.ungraded,
            "missing": dict(self.missing),
            "extra": dict(self.extra),
        }

    def text(self) -> str:
        """One paragraph."""
        rates = ", ".join(
            f"{name} {rate.numerator:g}/{rate.denominator:g}"
            for name, rate in (
                ("exact", self.exact),
                ("metric-relevant", self.relevant),
                ("per factor", self.per_factor),
            )
        )
        wrong = "; ".join(f"{f} missed {self.missing[f]}, added {self.extra[f]}" for f in FACTORS)
        return f"{rates}; ungraded {self.ungraded}; {wrong}"


def agreement_on(
    examples: Iterable[Example], grader: Callable[[Sequence[str]], Sequence[frozenset[str] | None]]
) -> ExampleAgreement:
    """Compare a grader with labelled examples."""
    examples = list(examples)
    found = list(zip(examples, grader([e.text for e in examples]), strict=True))
    graded = [(e, labels) for e, labels in found if labels is not None]
    relevant = [(e, labels) for e, labels in graded if e.stressed]
    return ExampleAgreement(
        exact=Rate(sum(e.labels == labels for e, labels in graded), len(graded)),
        relevant=Rate(sum(e.labels & e.stressed == labels & e.stressed for e, labels in relevant), len(relevant)),
        per_factor=Rate(
            sum((f in e.labels) == (f in labels) for e, labels in graded for f in FACTORS), len(graded) * len(FACTORS)
        ),
        ungraded=len(found) - len(graded),
        missing={f: sum(f in e.labels and f not in labels for e, labels in graded) for f in FACTORS},
        extra={f: sum(f not in e.labels and f in labels for e, labels in graded) for f in FACTORS},
        differences=tuple((e, labels) for e, labels in graded if e.labels != labels),
    )


def read_examples(text: str, name: str = "examples") -> list[Example]:
    """Labelled examples from JSON lines with `text`, `labels` and, optionally, `stressed`.

    Raises:
        InputError: naming the line at fault.
    """
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            words, labels, stressed = row["text"], row["labels"], row.get("stressed", [])
            lists = isinstance(labels, list) and isinstance(stressed, list)
            if not (lists and isinstance(words, str) and set(labels) | set(stressed) <= set(FACTORS)):
                raise ValueError
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{name}, line {number}: give an object with text, labels and stressed") from None
        out.append(Example(words, frozenset(labels), frozenset(stressed)))
    if not out:
        raise InputError(f"{name} holds no labelled rationale")
    return out
