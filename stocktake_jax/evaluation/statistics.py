"""Statistics over seeds: bootstrap means, paired contrasts, repeats, and the reference's own sampling error.

Everything is plain numpy on the host in float64. The unit that is resampled is always the seed: policies are compared
on the same tapes, so a contrast is formed per seed first and resampled afterwards. Every function that draws random
numbers wants a keyword `seed` and is a pure function of its arguments; nothing touches numpy's global generator.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics as stdlib_statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from stocktake_jax.errors import InputError

RESAMPLES = 50_000  # two bootstraps of the published tables then differ by about .002
LEVEL = 0.95

Values = Float[np.ndarray, " seed"] | Sequence[float]
"""One value per seed; nan where there is none."""

_NORMAL = stdlib_statistics.NormalDist()
# Random draws held at once: a sample of 100,000 seeds must not need gigabytes for its resamples.
_DRAWS_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval; both ends are nan where none can be given."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the distance between the ends."""
        return (self.high - self.low) / 2


NO_INTERVAL = Interval(math.nan, math.nan)


@dataclass(frozen=True)
class MeanEstimate:
    """A mean over seeds with its bootstrap intervals.

    Attributes:
        n: number of seeds that have a value.
        mean: their mean, nan without any.
        median: their median, nan without any.
        percentile: percentile bootstrap interval of the mean.
        bca: bias-corrected and accelerated bootstrap interval of the mean, from the same resamples.
    """

    n: int
    mean: float
    median: float
    percentile: Interval
    bca: Interval


@dataclass(frozen=True)
class Contrast:
    """The paired difference `first` minus `second` over the seeds that both have a value on.

    Attributes:
        first: name of the first side.
        second: name of the second side.
        estimate: the mean difference with its intervals.
        p_value: two-sided Wilcoxon signed-rank p of the differences (nan without any).
        family: name of the set of hypotheses that Holm's adjustment ran over, "" before it ran.
        family_size: how many p-values that family has.
        p_holm: the adjusted p-value, nan before the adjustment ran.
    """

    first: str
    second: str
    estimate: MeanEstimate
    p_value: float
    family: str = ""
    family_size: int = 0
    p_holm: float = math.nan


@dataclass(frozen=True)
class Cells:
    """Repeats of the same (agent, seed) pair, summarised per cell.

    Attributes:
        mean: mean of the cell's repeats; nan if it has none or any of them is nan.
        sd: standard deviation within the cell (n - 1 below the sum); nan with fewer than two repeats or a nan mean.
        repeats: how many values the cell has, nan ones included.
        pooled_sd: within-cell standard deviation pooled over cells by degrees of freedom; nan if no cell repeats.
    """

    mean: Float[np.ndarray, " seed"]
    sd: Float[np.ndarray, " seed"]
    repeats: Int[np.ndarray, " seed"]
    pooled_sd: float


@dataclass(frozen=True)
class OracleNoise:
    """What the Monte Carlo error of the reference means does to a mean of ratios (see `oracle_noise`).

    Attributes:
        delta_se: standard error by the delta method.
        resampled_se: standard deviation of the mean over redrawn references.
        bias: mean over redrawn references minus the mean at the reference values as they are.
        interval: percentile interval of the mean over redrawn references.
        unscoreable: share of the redrawn (seed, draw) pairs whose headroom was not positive, left out of their mean.
    """

    delta_se: float
    resampled_se: float
    bias: float
    interval: Interval
    unscoreable: float


def mean_estimate(
    values: Values,
    *,
    seed: int,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> MeanEstimate:
    """Mean and median of one value per seed, with percentile and BCa bootstrap intervals of the mean.

    Seeds are drawn with replacement, as many as there are. The percentile interval is the quantiles of the resampled
    means. BCa shifts those quantiles for median bias (resampled means equal to the estimate count half) and for
    skewness (acceleration from the jackknife), after Efron (1987). Values that are nan are left out; with fewer than
    two left there is no interval, since one seed says nothing about the spread over seeds.

    Args:
        values: one value per seed, any unit.
        seed: seed of the bootstrap's generator; equal inputs and seed give equal intervals.
        level: coverage, in (0, 1).
        resamples: number of bootstrap samples, at least 1.

    Raises:
        InputError: for infinite values, values that are not one-dimensional, or options out of range.
    """
    x = _finite(values, "values")
    _check_options(level, resamples)
    if len(x) == 0:
        return MeanEstimate(0, math.nan, math.nan, NO_INTERVAL, NO_INTERVAL)
    mean, median = float(x.mean()), float(np.median(x))
    if len(x) == 1:
        return MeanEstimate(1, mean, median, NO_INTERVAL, NO_INTERVAL)
    if np.all(x == x[0]):
        # Rounding in the resampled sums would make a zero-width interval look like a very small one.
        same = Interval(float(x[0]), float(x[0]))
        return MeanEstimate(len(x), float(x[0]), median, same, same)
    means = _resampled_means(x, seed=seed, resamples=resamples)
    return MeanEstimate(len(x), mean, median, _percentile(means, level), _bca(x, means, level))


def cluster_mean_estimate(
    values: Float[np.ndarray, " run"] | Sequence[float],
    clusters: Sequence[int] | Int[np.ndarray, " run"],
    *,
    seed: int,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> MeanEstimate:
    """`mean_estimate` for several runs per seed: runs are averaged within their seed, then seeds are resampled.

    Every seed weighs the same however many runs it has. The runs within a seed are not resampled a second time: their
    noise is already part of the spread of the seeds' averages, and a second stage would count it twice. A seed with
    a nan run has no average and is left out.

    Args:
        values: one value per run.
        clusters: the seed that each run belongs to.
        seed: seed of the bootstrap's generator.
        level: coverage, in (0, 1).
        resamples: number of bootstrap samples.

    Raises:
        InputError: if the lengths differ, or as `mean_estimate`.
    """
    x = np.asarray(values, dtype=np.float64)
    labels = np.asarray(clusters)
    if x.ndim != 1 or x.shape != labels.shape:
        raise InputError(f"values of shape {x.shape} and clusters of shape {labels.shape}: give one cluster per value")
    cells = summarise_cells([x[labels == label] for label in np.unique(labels)])
    return mean_estimate(cells.mean, seed=seed, level=level, resamples=resamples)


def summarise_cells(cells: Sequence[Sequence[float] | Float[np.ndarray, " _"]]) -> Cells:
    """Mean, spread and number of repeats of each cell, and the pooled within-cell spread.

    A cell with an unfinished (nan) repeat has no mean: an average over the repeats that finished would favour whoever
    fails on the expensive ones.

    Args:
        cells: per seed its repeats, any number of them, none included.
    """
    rows = [np.asarray(cell, dtype=np.float64) for cell in cells]
    mean = np.array([row.mean() if row.size else math.nan for row in rows], dtype=np.float64)
    sd = np.array([row.std(ddof=1) if row.size > 1 else math.nan for row in rows], dtype=np.float64)
    repeats = np.array([row.size for row in rows], dtype=np.int64)
    used = ~np.isnan(sd)
    freedom = repeats[used] - 1
    pooled = math.sqrt(float((freedom * sd[used] ** 2).sum() / freedom.sum())) if used.any() else math.nan
    return Cells(mean, sd, repeats, pooled)


def signed_rank_p(differences: Values) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test that paired differences lie symmetrically about zero.

    Zero differences are dropped (Wilcoxon's own rule). The null distribution is exact up to 50 differences without
    ties and normal beyond, as `scipy.stats.wilcoxon` chooses. Values that are nan are left out; without any value
    the result is nan, and if all differences are zero it is 1.

    Args:
        differences: one difference per seed.

    Raises:
        InputError: for infinite values.
    """
    x = _finite(differences, "differences")
    if len(x) == 0:
        return math.nan
    if not np.any(x):
        return 1.0
    # scipy.stats takes about a second to import, which "import stocktake_jax" should not pay.
    from scipy.stats import wilcoxon  # type: ignore[import-untyped, unused-ignore]

    return float(wilcoxon(x[x != 0]).pvalue)


def paired_contrast(
    first: Values,
    second: Values,
    *,
    names: tuple[str, str],
    seed: int,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> Contrast:
    """Compare two policies on the seeds that both have: mean of the per-seed differences, intervals, Wilcoxon p.

    Args:
        first: one value per seed, nan where missing.
        second: the same seeds in the same order.
        names: what the two sides are called.
        seed: seed of the bootstrap's generator.
        level: coverage, in (0, 1).
        resamples: number of bootstrap samples.

    Raises:
        InputError: if the lengths differ, or as `mean_estimate`.
    """
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(f"{names[0]} has shape {a.shape} and {names[1]} {b.shape}: give both the same seeds in order")
    differences = a - b
    estimate = mean_estimate(differences, seed=seed, level=level, resamples=resamples)
    return Contrast(names[0], names[1], estimate, signed_rank_p(differences))


def pairwise_contrasts(
    values: Mapping[str, Values],
    *,
    family: str,
    seed: int,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> tuple[Contrast, ...]:
    """All pairs of policies, each against every later one, with Holm's adjustment over the pairs.

    Args:
        values: per policy one value per seed, the same seeds in the same order; nan where missing.
        family: name of the set of hypotheses, for the tables.
        seed: seed of the bootstrap's generator; every pair starts from it, so a pair's interval does not depend on
            which other policies are in the table.
        level: coverage, in (0, 1).
        resamples: number of bootstrap samples.

    Raises:
        InputError: as `paired_contrast` and `adjust_holm`.
    """
    contrasts = [
        paired_contrast(values[a], values[b], names=(a, b), seed=seed, level=level, resamples=resamples)
        for a, b in itertools.combinations(values, 2)
    ]
    return adjust_holm(contrasts, family=family)


def adjust_holm(contrasts: Sequence[Contrast], *, family: str) -> tuple[Contrast, ...]:
    """The contrasts again, with their p-values adjusted as one named family by `holm`.

    Args:
        contrasts: the family's members; an adjustment that they carry already is replaced.
        family: its name, not empty: an adjusted p-value means nothing without the set it was adjusted over.

    Raises:
        InputError: for an empty name.
    """
    if not family.strip():
        raise InputError("family is empty: name the set of hypotheses that the p-values are adjusted over")
    p_values = np.array([contrast.p_value for contrast in contrasts], dtype=np.float64)
    size = int((~np.isnan(p_values)).sum())
    return tuple(
        replace(contrast, family=family, family_size=size, p_holm=float(p))
        for contrast, p in zip(contrasts, holm(p_values), strict=True)
    )


def holm(p_values: Float[np.ndarray, " hypothesis"] | Sequence[float]) -> Float[np.ndarray, " hypothesis"]:
    """Holm's step-down adjusted p-values, in the order given.

    The k-th smallest of m is multiplied by m - k + 1, capped at 1 and never below its predecessor (Holm 1979). A nan
    is no test: it stays nan and does not count towards m.

    Args:
        p_values: unadjusted p-values of one family.

    Raises:
        InputError: for values outside [0, 1].
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1:
        raise InputError(f"p-values of shape {p.shape}: give a flat list")
    tested = np.flatnonzero(~np.isnan(p))
    if np.any((p[tested] < 0) | (p[tested] > 1)):
        raise InputError("p-values must lie in [0, 1]")
    order = tested[np.argsort(p[tested], kind="stable")]
    adjusted = np.full(p.shape, math.nan)
    steps = len(order) - np.arange(len(order))
    adjusted[order] = np.maximum.accumulate(np.minimum(p[order] * steps, 1.0))
    return adjusted


def resolution(contrasts: Sequence[Contrast]) -> float:
    """The median half width of the contrasts' percentile intervals: differences below it drown in the seeds' noise.

    Contrasts without an interval do not count; without any the result is nan.
    """
    widths = [contrast.estimate.percentile.half_width for contrast in contrasts]
    widths = [width for width in widths if not math.isnan(width)]
    return float(np.median(widths)) if widths else math.nan


def oracle_noise(
    gain: Values,
    headroom: Values,
    oracle_se: Values,
    *,
    seed: int,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
) -> OracleNoise:
    """How far the oracle's Monte Carlo error moves a mean of gain / headroom over seeds that are held fixed.

    A seed's oracle cost is a mean over a few runs with standard error s; the floor is exact. So headroom, floor minus
    oracle, has error s, and gain (floor minus agent for a skill, agent minus agent for a contrast) has none.

    Delta method: d(gain / headroom) / d(oracle) = gain / headroom**2, so a seed's ratio has standard error
    |ratio| s / headroom. The references of different seeds are independent runs, so squares add up:
    se of the mean = sqrt(sum of squares) / n.

    Parametric resampling: each draw replaces every seed's oracle mean by a normal one around it with standard
    deviation s, independently over seeds, recomputes the ratios and averages them. A redrawn seed without positive
    headroom is left out of that draw's mean, as scoring would leave it out, and counted. Unlike the delta method this
    shows bias (1 / headroom is convex) and the long tails of seeds with little headroom.

    Neither is to be added to a bootstrap interval over seeds: the observed spread over seeds contains this error.
    It answers another question, how far a rerun of the oracle on the same seeds would move the number.

    Args:
        gain: per seed the numerator, cost units; nan where missing.
        headroom: per seed floor minus oracle mean, cost units; seeds where it is not positive are left out.
        oracle_se: per seed the standard error of the oracle mean, cost units; a nan on a used seed makes all nan.
        seed: seed of the generator.
        level: coverage of the interval, in (0, 1).
        resamples: number of draws.

    Raises:
        InputError: for arrays of different lengths, a negative standard error, or options out of range.
    """
    arrays = [np.asarray(array, dtype=np.float64) for array in (gain, headroom, oracle_se)]
    if len({array.shape for array in arrays}) != 1 or arrays[0].ndim != 1:
        shapes = [array.shape for array in arrays]
        raise InputError(f"gain, headroom and oracle_se have shapes {shapes}: give one value per seed")
    _check_options(level, resamples)
    used = ~np.isnan(arrays[0]) & (arrays[1] > 0)
    numerator, room, se = (array[used] for array in arrays)
    if np.any(se < 0):
        raise InputError("oracle_se has a negative value: standard errors are 0 or more")
    if len(room) == 0 or np.isnan(se).any():
        return OracleNoise(math.nan, math.nan, math.nan, NO_INTERVAL, math.nan)
    ratio = numerator / room
    delta_se = float(np.sqrt(((ratio * se / room) ** 2).sum()) / len(room))
    n = len(room)
    generator = np.random.default_rng(seed)
    once = [_draw_normals(seed, n, resamples)] if resamples * n <= _DRAWS_AT_ONCE else None
    means, dropped = [], 0
    for normals in once or (generator.standard_normal((rows, n)) for rows in _chunks(resamples, n)):
        redrawn = room - se * normals
        scoreable = redrawn > 0
        dropped += int((~scoreable).sum())
        ratios = np.divide(numerator, redrawn, out=np.zeros_like(redrawn), where=scoreable)
        counts = scoreable.sum(axis=1)
        means.append(ratios.sum(axis=1)[counts > 0] / counts[counts > 0])
    drawn = np.concatenate(means)
    unscoreable = dropped / (resamples * n)
    if len(drawn) < 2:
        return OracleNoise(delta_se, math.nan, math.nan, NO_INTERVAL, unscoreable)
    bias = float(drawn.mean() - ratio.mean())
    return OracleNoise(delta_se, float(drawn.std(ddof=1)), bias, _percentile(drawn, level), unscoreable)


def _finite(values: Values, name: str) -> Float[np.ndarray, " used"]:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1:
        raise InputError(f"{name} have shape {x.shape}: give one value per seed")
    if np.isinf(x).any():
        raise InputError(f"{name} contain an infinite value at index {int(np.flatnonzero(np.isinf(x))[0])}")
    return x[~np.isnan(x)]


def _check_options(level: float, resamples: int) -> None:
    if not 0 < level < 1:
        raise InputError(f"level is {level}; give the coverage as a number between 0 and 1, such as 0.95")
    if resamples < 1:
        raise InputError(f"resamples is {resamples}; give a whole number from 1 up, such as {RESAMPLES}")


def _chunks(total: int, width: int) -> Iterator[int]:
    rows = max(1, _DRAWS_AT_ONCE // width)
    for start in range(0, total, rows):
        yield min(rows, total - start)


def _resampled_means(x: Float[np.ndarray, " seed"], *, seed: int, resamples: int) -> Float[np.ndarray, " resample"]:
    n = len(x)
    # Every bootstrap starts from the same seed, so samples of one size draw the same: tables of many agents draw once.
    if n < 256 and resamples * n <= _DRAWS_AT_ONCE:
        return np.asarray(_draw_counts(seed, n, resamples).astype(np.float64) @ x / n)
    generator = np.random.default_rng(seed)
    return np.concatenate(
        [x[generator.integers(0, n, (rows, n), dtype=np.int32)].mean(axis=1) for rows in _chunks(resamples, n)]
    )


@functools.lru_cache(maxsize=16)
def _draw_counts(seed: int, n: int, resamples: int) -> np.ndarray:
    """(resample, seed) how often each of n seeds is drawn."""
    drawn = np.random.default_rng(seed).integers(0, n, (resamples, n), dtype=np.int32)
    drawn += np.arange(0, resamples * n, n, dtype=np.int32)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=resamples * n).astype(np.uint8).reshape(resamples, n)
    counts.flags.writeable = False
    return counts


@functools.lru_cache(maxsize=1)
def _draw_normals(seed: int, n: int, resamples: int) -> np.ndarray:
    """(resample, seed) standard normal draws."""
    drawn = np.random.default_rng(seed).standard_normal((resamples, n))
    drawn.flags.writeable = False
    return drawn


def _percentile(means: Float[np.ndarray, " resample"], level: float) -> Interval:
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def _bca(x: Float[np.ndarray, " seed"], means: Float[np.ndarray, " resample"], level: float) -> Interval:
    estimate = x.mean()
    below = float((means < estimate).mean() + (means == estimate).mean() / 2)
    if not 0 < below < 1:  # few resamples on a very skewed sample: the bias correction is infinite
        return NO_INTERVAL
    shift = _NORMAL.inv_cdf(below)
    deviation = x - estimate  # the jackknife means deviate by this over (n - 1), with the sign turned
    scale = np.abs(deviation).max()
    deviation = deviation / scale  # so that neither the cubes nor the squares underflow
    acceleration = float((deviation**3).sum() / (6 * (deviation**2).sum() ** 1.5))
    tails = []
    for tail in ((1 - level) / 2, (1 + level) / 2):
        z = shift + _NORMAL.inv_cdf(tail)
        # |acceleration| is at most 1/6 (n = 2 gives 0, one outlier among many nearly 1/6), so only an extreme level
        # reaches the pole of the formula, beyond which it means nothing.
        room = 1 - acceleration * z
        if room <= 0:
            return NO_INTERVAL
        tails.append(_NORMAL.cdf(shift + z / room))
    low, high = np.quantile(means, tails)
    return Interval(float(low), float(high))
