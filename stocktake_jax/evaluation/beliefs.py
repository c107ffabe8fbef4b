"""Stated beliefs against the truth: detection, precision, the knowing-doing rate, probabilities (paper, sections 4-5).

Every weekly rationale is labelled with the factors that it asserts are a problem. The rationale written while looking
at week t's observation belongs to week t. Weeks 1 .. 25 are scored: before week 1 nothing can be under stress, and
after week 26's observation nobody writes.

Names of metrics that end in `_paper` are the published definitions; the plain ones are mended, and the difference is in
their entry of `METRICS`. Everything is a ratio of two counts, so that counts of runs can be added up: `Rate`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.published import StatedBeliefs
from stocktake_jax.models import FACTORS, HORIZON, Tape, World

FIRST, LAST = 1, HORIZON - 1
"""The first and the last week whose rationale is scored."""

GRACE = 1
"""Weeks after the end of a stress episode in which naming its factor still counts as detected in time."""

BUDGET = 1.0
"""Names a week that the budget-limited detection rate allows."""

FLOOR = 0.001
"""Stated probabilities are kept this far from 0 and 1 in the log score, so that one certain error is not infinite."""

WEEKS = HORIZON + 1


class Rate(NamedTuple):
    """A ratio of two sums over runs.

    Attributes:
        numerator, denominator: what is divided; adding two rates adds both.
    """

    numerator: float
    denominator: float

    @property
    def value(self) -> float:
        """The ratio; nan if there is nothing to divide by."""
        return self.numerator / self.denominator if self.denominator else math.nan

    def plus(self, other: Rate) -> Rate:
        """Both sums added up (`+` would join the tuples)."""
        return Rate(self.numerator + other.numerator, self.denominator + other.denominator)

    def to_json(self) -> dict[str, float | None]:
        """value (None if undefined), numerator, denominator; whole counts as ints."""
        value = self.value
        return {
            "value": None if math.isnan(value) else float(value),
            "numerator": _plain(self.numerator),
            "denominator": _plain(self.denominator),
        }


def _plain(x: float) -> float | None:
    if math.isnan(x):
        return None
    return int(x) if x == int(x) else float(x)


def pooled(rates: Iterable[Rate]) -> Rate:
    """The sum of several runs' rates."""
    total = Rate(0, 0)
    for rate in rates:
        total = total.plus(rate)
    return total


def share(of: Bool[np.ndarray, "..."], among: Bool[np.ndarray, "..."]) -> Rate:
    """How many of some cases have a property."""
    return Rate(int((of & among).sum()), int(among.sum()))


METRICS: dict[str, str] = {
    "missed": "stress episodes whose factor is never named from their onset on, of those that begin by week 25",
    "missed_paper": "the same of all episodes: those that begin in week 26 cannot be named and count as missed",
    "mean_lag": "weeks from onset to the first naming, over the episodes that are named",
    "missed_bounded": f"like missed, but naming counts only until {GRACE} week after the episode",
    "mean_lag_bounded": "like mean_lag, over the episodes named in time",
    "detected_in_budget": "expected share of episodes named in time if names are drawn at random from weeks that name "
    f"more than the budget ({BUDGET:g} a week, unless said otherwise)",
    "left_out": "episodes that begin in week 26, of all",
    "undecided": "episodes that an ungraded week leaves open, of those that begin by week 25; in no other rate",
    "precision": "names whose factor is under stress, of all names",
    "precision_lenient": "names whose factor is under stress or brewing, of all names",
    "names_calm": "names whose factor is neither under stress nor brewing, of all names",
    "names_per_week": "names in a graded week",
    "factor_weeks_named": "weeks of a factor under stress in which it is named",
    "brewing_named": "weeks of a factor in which stress is brewing and it is named",
    "diagnosed": "graded weeks with stress in which a factor under stress is named",
    "knowing_doing": "diagnosed weeks with a stockout; stockouts from the books",
    "knowing_doing_full": "weeks in which every factor under stress is named, with a stockout",
    "stockout_undiagnosed": "weeks with stress and no right name, with a stockout",
    "stockout_undiagnosed_paper": "the same with week 26, which has no rationale, as undiagnosed",
    "stockout_calm": "weeks without stress, with a stockout",
    "ungraded": "weeks without a usable label; they are in no rate but this one",
    "probability_stated": "weeks of a factor for which a probability of stress is stated",
    "brier": "Brier score of the stated probabilities",
    "brier_filter": "Brier score of the exact filter on the same weeks",
    "brier_to_filter": "squared distance of the stated probabilities from the exact filter's",
    "log_score": f"-log of the probability stated for what is true, nats; probabilities kept {FLOOR:g} from 0 and 1",
    "log_score_filter": "the same for the exact filter on the same weeks",
    "log_to_filter": "Kullback-Leibler divergence of the stated probabilities from the exact filter's, nats",
    "certain_and_wrong": f"stated probabilities within {FLOOR:g} of the wrong end",
}
"""What each metric counts. Pooled over seeds and repeats; `<metric>.<factor>` is the same for one factor."""

BY_FACTOR = ("missed", "mean_lag", "missed_bounded", "precision", "factor_weeks_named")
"""Metrics that are also given factor by factor."""


@dataclass(frozen=True)
class Truth:
    """What was true in each week.

    Attributes:
        stressed: True where the factor is in a stress regime.
        brewing: True where it is half-way to one.
    """

    stressed: Bool[np.ndarray, "week factor"]
    brewing: Bool[np.ndarray, "week factor"]

    @classmethod
    def of(cls, tape: Tape, world: World | None = None) -> Truth:
        """The truth of a single tape."""
        world = world or World.paper()

        stressed, brewing = (
            np.stack([getattr(f, kind)[np.asarray(tape.states[n])] for n, f in world.factors.items()], axis=-1)
            for kind in ("stress_mask", "brewing_mask")
        )
        if stressed.ndim != 2:
            raise InputError(f"the truth is of one tape, not of a batch of shape {stressed.shape[:-2]}")
        return cls(stressed, brewing)


class StressEpisode(NamedTuple):
    """A maximal run of weeks in which one factor is under stress, whatever the regimes inside it.

    Attributes:
        factor: index into `FACTORS`.
        onset, end: its first and its last week.
    """

    factor: int
    onset: int
    end: int


def stress_episodes(truth: Truth) -> tuple[StressEpisode, ...]:
    """All stress episodes of a tape, by factor and onset."""
    found = []
    for factor in range(len(FACTORS)):
        column = np.concatenate([[False], truth.stressed[:, factor], [False]]).astype(np.int8)
        starts, ends = np.flatnonzero(np.diff(column) == 1), np.flatnonzero(np.diff(column) == -1)
        found += [StressEpisode(factor, int(a), int(b) - 1) for a, b in zip(starts, ends, strict=True)]
    return tuple(found)


@dataclass(frozen=True)
class Statements:
    """What the rationales of one run assert, and where the shelf ran empty.

    Attributes:
        agent, seed, repeat: which run.
        named: True where week t's rationale names the factor as a problem.
        graded: True for weeks with a label. A week whose grader failed is False here and counts nowhere.
        stockout: True where the books of the week have unmet demand.
        probability: the stated probability that the factor is under stress; nan where none is stated.
    """

    agent: str
    seed: int
    named: Bool[np.ndarray, "week factor"]
    graded: Bool[np.ndarray, " week"]
    stockout: Bool[np.ndarray, " week"]
    probability: Float[np.ndarray, "week factor"]
    repeat: int = 1

    @classmethod
    def make(
        cls,
        agent: str,
        seed: int,
        labels: Mapping[int, frozenset[str] | None],
        stockout: Bool[np.ndarray, " week"],
        probability: Float[np.ndarray, "week factor"] | None = None,
        repeat: int = 1,
    ) -> Statements:
        """From labels by week: a set of factors, or None for a week that could not be graded.

        Weeks that are not in `labels` are ungraded, too: silence must be stated as an empty set.

        Raises:
            InputError: for an unknown factor.
        """
        named, graded = np.zeros((WEEKS, len(FACTORS)), bool), np.zeros(WEEKS, bool)
        for week, label in labels.items():
            if label is None or not FIRST <= week <= LAST:
                continue
            unknown = sorted(label - set(FACTORS))
            if unknown:
                raise InputError(f"week {week} names {unknown[0]!r}; the factors are {', '.join(FACTORS)}")
            graded[week] = True
            named[week] = [factor in label for factor in FACTORS]
        if probability is None:
            probability = np.full((WEEKS, len(FACTORS)), math.nan)
        return cls(agent, seed, named, graded, np.asarray(stockout, bool), probability, repeat)

    @classmethod
    def published(cls, run: StatedBeliefs) -> Statements:
        """From labels in the shape of the published ones."""
        labels = {week: run.named[week - 1] for week in range(FIRST, LAST + 1)}
        return cls.make(run.agent, run.seed, labels, np.concatenate([[False], run.stockout_array()]))


class Detection(NamedTuple):
    """What became of one stress episode in one run.

    Attributes:
        episode: the episode.
        week: the first graded week from its onset on that names its factor; None: never.
        lag_known: False if an ungraded week before that one might have been the first.
        open: never named, but some week from the onset on is ungraded.
        in_time: named until the grace week.
        open_in_time: not named in time, but a week until the grace week is ungraded.
        in_budget: probability of being named in time if each week's names are thinned to the budget.
    """

    episode: StressEpisode
    week: int | None
    lag_known: bool
    open: bool
    in_time: bool
    open_in_time: bool
    in_budget: float


def detections(run: Statements, truth: Truth, budget: float = BUDGET) -> tuple[Detection, ...]:
    """What became of every stress episode that begins by week 25.

    Args:
        run: of the agent.
        truth: of the same tape.
        budget: names a week that count; a week that names n > budget factors has each of them count with probability
            budget / n. An agent that names everything every week is detected nearly always and in budget seldom.
    """
    if not budget > 0:
        raise InputError(f"the budget of names a week must be above 0, not {budget}")
    names = run.named.sum(1)
    share = np.minimum(1.0, budget / np.maximum(names, 1))
    found = []
    for episode in stress_episodes(truth):
        if episode.onset > LAST:
            continue
        weeks = np.arange(episode.onset, LAST + 1)
        hits = weeks[run.named[weeks, episode.factor]]
        week = int(hits[0]) if hits.size else None
        last = min(episode.end + GRACE, LAST)
        in_time = week is not None and week <= last
        until = LAST if week is None else week
        gap = bool((~run.graded[episode.onset : until + 1]).any())
        timely = hits[hits <= last]
        found.append(
            Detection(
                episode,
                week,
                lag_known=week is not None and not gap,
                open=week is None and gap,
                in_time=in_time,
                open_in_time=not in_time and bool((~run.graded[episode.onset : last + 1]).any()),
                in_budget=1.0 - float(np.prod(1.0 - share[timely])),
            )
        )
    return tuple(found)


def belief_counts(
    run: Statements,
    truth: Truth,
    *,
    posterior: Float[np.ndarray, "week factor"] | None = None,
    budget: float = BUDGET,
) -> dict[str, Rate]:
    """Every metric of one run, as counts; see `METRICS`.

    Args:
        run: what the agent asserted.
        truth: of its tape.
        posterior: the exact filter's probability of stress on the same readings; without it, metrics that need it have
            an empty denominator.
        budget: see `detections`.
    """
    weeks = np.arange(FIRST, LAST + 1)
    graded = run.graded[weeks]
    named, stressed, brewing = (x[weeks] for x in (run.named, truth.stressed, truth.brewing))
    named = named & graded[:, None]
    stockout = run.stockout[weeks]
    stress = stressed.any(1)
    right, full = (named & stressed).any(1), stress & (named | ~stressed).all(1)

    everything = np.ones_like(named)
    undiagnosed = graded & stress & ~right
    week_26 = bool(truth.stressed[HORIZON].any())
    out = _detection_counts(run, truth, budget)
    out |= {
        "precision": share(stressed, named),
        "precision_lenient": share(stressed | brewing, named),
        "names_calm": share(~stressed & ~brewing, named),
        "names_per_week": Rate(int(named.sum()), int(graded.sum())),
        "factor_weeks_named": share(named, stressed & graded[:, None]),
        "brewing_named": share(named, brewing & graded[:, None]),
        "diagnosed": share(right, stress & graded),
        "knowing_doing": share(stockout, right),
        "knowing_doing_full": share(stockout, full & graded),
        "stockout_undiagnosed": share(stockout, undiagnosed),
        "stockout_undiagnosed_paper": share(stockout, undiagnosed).plus(
            Rate(int(run.stockout[HORIZON]), 1) if week_26 else Rate(0, 0)
        ),
        "stockout_calm": share(stockout, graded & ~stress),
        "ungraded": Rate(int((~graded).sum()), len(weeks)),
    }
    for i, factor in enumerate(FACTORS):
        out[f"precision.{factor}"] = share(stressed[:, i], named[:, i])
        out[f"factor_weeks_named.{factor}"] = share(named[:, i], stressed[:, i] & graded)
    return out | _probability_counts(
        run.probability[weeks], stressed, None if posterior is None else posterior[weeks], everything
    )


def _detection_counts(run: Statements, truth: Truth, budget: float) -> dict[str, Rate]:
    every, found = stress_episodes(truth), detections(run, truth, budget)
    late = [e for e in every if e.onset > LAST]
    out = {
        "left_out": Rate(len(late), len(every)),
        "undecided": Rate(sum(d.open for d in found), len(found)),
        "missed_paper": Rate(
            sum(d.week is None and not d.open for d in found) + len(late),
            sum(not d.open for d in found) + len(late),
        ),
        "detected_in_budget": Rate(
            float(sum(d.in_budget for d in found if not d.open_in_time)), sum(not d.open_in_time for d in found)
        ),
    }

    out |= _lags(found, "")
    for i, factor in enumerate(FACTORS):
        mine = _lags([d for d in found if d.episode.factor == i], f".{factor}")
        out |= {name: rate for name, rate in mine.items() if name.rpartition(".")[0] in BY_FACTOR}
    return out


def _lags(chosen: Sequence[Detection], suffix: str) -> dict[str, Rate]:
    closed, timely = [d for d in chosen if not d.open], [d for d in chosen if not d.open_in_time]
    known = [d for d in chosen if d.lag_known]
    lag = [(d.week or 0) - d.episode.onset for d in known]
    in_time = [n for n, d in zip(lag, known, strict=True) if d.in_time]
    return {
        f"missed{suffix}": Rate(sum(d.week is None for d in closed), len(closed)),
        f"mean_lag{suffix}": Rate(sum(lag), len(lag)),
        f"missed_bounded{suffix}": Rate(sum(not d.in_time for d in timely), len(timely)),
        f"mean_lag_bounded{suffix}": Rate(sum(in_time), len(in_time)),
    }


def _log_score(q: np.ndarray, y: np.ndarray) -> float:
    q = np.clip(q, FLOOR, 1 - FLOOR)
    return float(-(y * np.log(q) + (1 - y) * np.log1p(-q)).sum())


def _probability_counts(
    stated: np.ndarray, stressed: np.ndarray, posterior: np.ndarray | None, everything: np.ndarray
) -> dict[str, Rate]:
    given = ~np.isnan(stated)
    p, y = stated[given], stressed[given].astype(np.float64)
    if ((p < 0) | (p > 1)).any():
        raise InputError("a stated probability lies outside [0, 1]")
    count = int(given.sum())

    out = {
        "probability_stated": Rate(count, int(everything.sum())),
        "brier": Rate(float(((p - y) ** 2).sum()), count),
        "log_score": Rate(_log_score(p, y), count),
        "certain_and_wrong": Rate(int((np.abs(p - y) >= 1 - FLOOR).sum()), count),
    }
    if posterior is None:
        return out | dict.fromkeys(("brier_filter", "brier_to_filter", "log_score_filter", "log_to_filter"), Rate(0, 0))
    q = np.clip(posterior[given].astype(np.float64), FLOOR, 1 - FLOOR)
    kept = np.clip(p, FLOOR, 1 - FLOOR)
    divergence = q * np.log(q / kept) + (1 - q) * np.log((1 - q) / (1 - kept))
    return out | {
        "brier_filter": Rate(float(((posterior[given] - y) ** 2).sum()), count),
        "brier_to_filter": Rate(float(((p - posterior[given]) ** 2).sum()), count),
        "log_score_filter": Rate(_log_score(posterior[given], y), count),
        "log_to_filter": Rate(float(divergence.sum()), count),
    }


def with_ungraded(run: Statements, weeks: Iterable[int]) -> Statements:
    """The same run with some weeks' labels withdrawn."""
    graded, named = run.graded.copy(), run.named.copy()
    for week in weeks:
        graded[week], named[week] = False, False
    return replace(run, graded=graded, named=named)


# -- two graders


class Agreement(NamedTuple):
    """How far two graders agree on the same rationales.

    Attributes:
        exact: weeks with the same set of names.
        relevant: weeks with stress in which both sets have the same part under stress. This is the part that enters
            detection and the knowing-doing rate.
        per_factor: (week, factor) pairs on which both agree.
    """

    exact: Rate
    relevant: Rate
    per_factor: Rate


def agreement(first: Statements, second: Statements, truth: Truth) -> Agreement:
    """Compare two graders on one run, over the weeks that both could grade.

    Raises:
        InputError: if the labels are of different runs.
    """
    if (first.seed, first.repeat) != (second.seed, second.repeat):
        raise InputError("two graders can be compared on the same run only")
    both = first.graded & second.graded
    same = first.named == second.named
    relevant = both & truth.stressed.any(1)
    return Agreement(
        Rate(int(same[both].all(1).sum()), int(both.sum())),
        Rate(int((same | ~truth.stressed)[relevant].all(1).sum()), int(relevant.sum())),
        Rate(int(same[both].sum()), int(same[both].size)),
    )


# -- probabilities inside a recorded rationale

_TRAILER = re.compile(r"\n\[stress probabilities: (\{[^\n]*\})\]\Z")


def with_probabilities(rationale: str, probabilities: Mapping[str, float]) -> str:
    """A rationale with the probabilities that were stated beside it, as it is recorded in a journal."""
    return f"{rationale}\n[stress probabilities: {json.dumps(dict(probabilities))}]"


def split_rationale(recorded: str) -> tuple[str, dict[str, float] | None]:
    """The words of a recorded rationale, and the probabilities recorded with them, or None.

    What a grader sees is the words alone.
    """
    match = _TRAILER.search(recorded)
    if match is None:
        return recorded, None
    try:
        stated: Any = json.loads(match[1])
    except ValueError:
        return recorded, None
    fine = isinstance(stated, dict) and set(stated) == set(FACTORS)
    if not fine or not all(isinstance(p, (int, float)) and 0 <= p <= 1 for p in stated.values()):
        return recorded, None
    return recorded[: match.start()], {factor: float(stated[factor]) for factor in FACTORS}
