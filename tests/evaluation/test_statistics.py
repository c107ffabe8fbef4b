"""The statistics against plain references: enumeration, scipy, definitions written out."""

import itertools
import math

import jaxtyping
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from stocktake_jax.errors import InputError
from stocktake_jax.evaluation import statistics
from stocktake_jax.evaluation.statistics import (
    NO_INTERVAL,
    Contrast,
    Interval,
    MeanEstimate,
    adjust_holm,
    cluster_mean_estimate,
    holm,
    mean_estimate,
    oracle_noise,
    paired_contrast,
    pairwise_contrasts,
    resolution,
    signed_rank_p,
    summarise_cells,
)

FEW = 400  # resamples where only exact relations between two calls are tested
samples = st.lists(st.integers(-1000, 1000).map(lambda x: x / 8), min_size=2, max_size=12)


@pytest.fixture
def unchecked():
    """Arrays as a user may pass them: without the shape checks of the test session."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def ends(interval):
    return np.array([interval.low, interval.high])


# --- one mean ---------------------------------------------------------------------------------------------------------


def test_percentile_interval_is_that_of_all_resamples_enumerated():
    x = np.array([0.3, 1.7, -2.2, 5.9, 0.8, 3.1])
    means = np.array(list(itertools.product(x, repeat=6))).mean(axis=1)
    found = mean_estimate(x, seed=3).percentile
    np.testing.assert_allclose(ends(found), np.quantile(means, [0.025, 0.975]), atol=0.06)


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_intervals_agree_with_scipy_on_skewed_data(level):
    x = np.random.default_rng(5).lognormal(0.0, 1.2, 40)
    found = mean_estimate(x, seed=1, level=level)
    theirs = {}
    for method in ("percentile", "BCa"):
        result = scipy.stats.bootstrap(
            (x,), np.mean, n_resamples=50_000, confidence_level=level, method=method, rng=np.random.default_rng(2)
        )
        theirs[method] = np.array(result.confidence_interval)
    noise = 0.02
    np.testing.assert_allclose(ends(found.percentile), theirs["percentile"], atol=noise)
    np.testing.assert_allclose(ends(found.bca), theirs["BCa"], atol=noise)
    # the data must be skewed enough that taking one method for the other could not pass
    assert np.abs(theirs["BCa"] - theirs["percentile"]).min() > 2 * noise
    assert (found.n, found.mean, found.median) == (40, pytest.approx(x.mean()), pytest.approx(np.median(x)))


def test_bca_counts_resampled_ties_half():
    x = np.array([0.0] * 9 + [1.0] * 3 + [4.0])
    result = scipy.stats.bootstrap((x,), np.mean, n_resamples=50_000, method="BCa", rng=np.random.default_rng(2))
    # the resampled means are multiples of 1/13: both must end on the same ones
    np.testing.assert_allclose(ends(mean_estimate(x, seed=1).bca), np.array(result.confidence_interval))


@settings(max_examples=60, deadline=None)
@given(samples, st.integers(-50, 50), st.sampled_from([0.5, 2.0, 8.0]))
def test_intervals_move_with_location_scale_and_sign(values, shift, scale):
    x = np.array(values)
    found = mean_estimate(x, seed=4, resamples=FEW)
    moved = mean_estimate(shift + scale * x, seed=4, resamples=FEW)
    np.testing.assert_allclose(ends(moved.percentile), shift + scale * ends(found.percentile), atol=1e-9)
    flipped = mean_estimate(-x, seed=4, resamples=FEW)
    np.testing.assert_allclose(ends(flipped.percentile), -ends(found.percentile)[::-1], atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(samples, st.floats(0.05, 0.99))
def test_intervals_lie_within_the_data_in_order_and_grow_with_the_level(values, level):
    found = mean_estimate(values, seed=4, level=level, resamples=FEW)
    wider = mean_estimate(values, seed=4, level=(1 + level) / 2, resamples=FEW)
    slack = 1e-9
    for interval in (found.percentile, found.bca):
        if not math.isnan(interval.low):
            assert min(values) - slack <= interval.low <= interval.high <= max(values) + slack
    assert wider.percentile.low <= found.percentile.low + slack
    assert wider.percentile.high >= found.percentile.high - slack


def test_intervals_depend_on_the_seed_alone():
    x = np.random.default_rng(0).normal(size=20)
    found = mean_estimate(x, seed=7, resamples=FEW)
    assert found == mean_estimate(x, seed=7, resamples=FEW)
    assert found.percentile != mean_estimate(x, seed=8, resamples=FEW).percentile


def test_cutting_the_draws_into_pieces_changes_nothing(monkeypatch):
    x = np.random.default_rng(0).normal(size=13)
    ones = np.ones(13)
    whole = mean_estimate(x, seed=7, resamples=FEW), oracle_noise(x, ones, ones, seed=7, resamples=FEW)
    monkeypatch.setattr(statistics, "_DRAWS_AT_ONCE", 13 * 7)
    pieces = mean_estimate(x, seed=7, resamples=FEW), oracle_noise(x, ones, ones, seed=7, resamples=FEW)
    assert pieces[1] == whole[1]
    assert pieces[0].n == whole[0].n
    for field in ("percentile", "bca"):  # whole samples are summed by counts: the same draws, to rounding
        a, b = getattr(pieces[0], field), getattr(whole[0], field)
        assert (a.low, a.high) == pytest.approx((b.low, b.high), rel=1e-12)


@pytest.mark.parametrize(("total", "width"), [(50_000, 49), (50_000, 100_000), (3, 10**8)])
def test_draws_are_cut_to_the_memory_budget(total, width):
    pieces = list(statistics._chunks(total, width))
    assert sum(pieces) == total
    assert max(pieces) == 1 or max(pieces) * width <= statistics._DRAWS_AT_ONCE


def test_samples_without_a_spread():
    empty = mean_estimate([], seed=0)
    assert empty.n == 0 and math.isnan(empty.mean) and math.isnan(empty.median)
    assert empty.percentile is NO_INTERVAL and empty.bca is NO_INTERVAL
    one = mean_estimate([2.5, math.nan], seed=0)
    assert (one.n, one.mean, one.median) == (1, 2.5, 2.5) and one.percentile is NO_INTERVAL and one.bca is NO_INTERVAL
    same = mean_estimate([0.1] * 7, seed=0)
    assert same == MeanEstimate(7, 0.1, 0.1, Interval(0.1, 0.1), Interval(0.1, 0.1))


def test_nan_is_left_out():
    assert mean_estimate([1.0, math.nan, 2.0, 4.0], seed=3) == mean_estimate([1.0, 2.0, 4.0], seed=3)


@pytest.mark.parametrize(
    ("values", "options"),
    [
        ([1.0, math.inf], {}),
        ([1.0, 2.0], {"level": 1.0}),
        ([1.0, 2.0], {"level": 0.0}),
        ([1.0, 2.0], {"resamples": 0}),
        ([], {"level": 95}),
    ],
)
def test_means_that_cannot_be_taken(values, options):
    with pytest.raises(InputError):
        mean_estimate(values, seed=0, **options)


# --- repeats ----------------------------------------------------------------------------------------------------------


def test_cells_by_hand():
    cells = summarise_cells([[1.0, 3.0], [5.0], [], [2.0, math.nan], [0.0, 3.0, 6.0]])
    np.testing.assert_allclose(cells.mean, [2.0, 5.0, math.nan, math.nan, 3.0])
    np.testing.assert_allclose(cells.sd, [math.sqrt(2.0), math.nan, math.nan, math.nan, 3.0])
    assert cells.repeats.tolist() == [2, 1, 0, 2, 3]
    assert cells.pooled_sd == pytest.approx(math.sqrt((1 * 2.0 + 2 * 9.0) / 3))
    assert math.isnan(summarise_cells([[1.0], [2.0]]).pooled_sd)


def test_clusters_are_averaged_first_and_resampled_whole():
    values = [1.0, 3.0, 10.0, 4.0, 5.0, 6.0]
    clusters = [7, 7, 2, 5, 5, 5]
    found = cluster_mean_estimate(values, clusters, seed=9)
    assert found == mean_estimate([10.0, 5.0, 2.0], seed=9)
    # copies of a run are no new seeds: the interval must not shrink
    copied = cluster_mean_estimate(np.repeat(values, 4), np.repeat(clusters, 4), seed=9)
    np.testing.assert_allclose(ends(copied.percentile), ends(found.percentile))
    assert copied.n == 3


def test_a_cluster_with_an_unfinished_run_has_no_mean():
    assert cluster_mean_estimate([1.0, math.nan, 4.0, 6.0], [0, 0, 1, 2], seed=0).n == 2
    with pytest.raises(InputError, match="one cluster per value"):
        cluster_mean_estimate([1.0, 2.0], [0], seed=0)


# --- tests ------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=9, unique=True), st.integers(0, 2**9 - 1), st.integers(0, 3)
)
def test_signed_rank_p_is_that_of_all_sign_patterns(sizes, signs, zeros):
    x = np.array([size if signs >> i & 1 else -size for i, size in enumerate(sizes)], dtype=float)
    ranks = scipy.stats.rankdata(np.abs(x))
    patterns = np.array(list(itertools.product([0, 1], repeat=len(x)))) @ ranks
    centre = ranks.sum() / 2
    extreme = abs(ranks[x > 0].sum() - centre)
    p = np.mean(np.abs(patterns - centre) >= extreme - 1e-9)
    assert signed_rank_p(np.append(x, [0.0] * zeros)) == pytest.approx(p)


def test_signed_rank_p_at_the_edges():
    assert math.isnan(signed_rank_p([]))
    assert math.isnan(signed_rank_p([math.nan]))
    assert signed_rank_p([0.0, 0.0]) == 1.0
    assert signed_rank_p([1.0, math.nan, 2.0, 0.0, 3.0]) == pytest.approx(0.25)
    with pytest.raises(InputError):
        signed_rank_p([math.inf])


def test_holm_on_a_known_case():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(st.floats(0, 1), st.just(math.nan), st.sampled_from([0.01, 0.02, 1.0])), max_size=7))
def test_holm_is_the_closure_of_bonferroni(p_values):
    """A hypothesis is rejected when every set that holds it is, each set being tested by Bonferroni."""
    tested = [i for i, p in enumerate(p_values) if not math.isnan(p)]
    expected = [math.nan] * len(p_values)
    for i in tested:
        others = [j for j in tested if j != i]
        sets = (subset for size in range(len(tested)) for subset in itertools.combinations(others, size))
        expected[i] = max(min(1.0, (len(s) + 1) * min([p_values[i], *(p_values[j] for j in s)])) for s in sets)
    np.testing.assert_allclose(holm(p_values), expected)


@pytest.mark.parametrize("p_values", [[0.5, 1.5], [-0.1]])
def test_p_values_that_are_none(p_values):
    with pytest.raises(InputError):
        holm(p_values)


def test_holm_runs_over_a_named_family():
    blank = mean_estimate([], seed=0)
    family = [Contrast("a", "b", blank, 0.01), Contrast("a", "c", blank, math.nan), Contrast("b", "c", blank, 0.02)]
    adjusted = adjust_holm(family, family="three pairs")
    np.testing.assert_allclose([c.p_holm for c in adjusted], [0.02, math.nan, 0.02])
    assert {(c.family, c.family_size) for c in adjusted} == {("three pairs", 2)}
    with pytest.raises(InputError, match="family"):
        adjust_holm(family, family=" ")


# --- contrasts --------------------------------------------------------------------------------------------------------


def test_a_contrast_pairs_the_seeds_that_both_have():
    rng = np.random.default_rng(1)
    a, b = rng.normal(1, 1, 30), rng.normal(0, 1, 30)
    a[3] = b[3] = b[4] = math.nan
    found = paired_contrast(a, b, names=("a", "b"), seed=2)
    kept = np.delete(a - b, [3, 4])
    assert found.estimate == mean_estimate(kept, seed=2)
    assert found.estimate.n == 28
    assert found.p_value == pytest.approx(scipy.stats.wilcoxon(kept).pvalue)
    turned = paired_contrast(b, a, names=("b", "a"), seed=2)
    assert turned.p_value == pytest.approx(found.p_value)
    np.testing.assert_allclose(ends(turned.estimate.percentile), -ends(found.estimate.percentile)[::-1])


def test_pairing_removes_what_the_seeds_share():
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 10, 40)
    a, b = shared + rng.normal(0.5, 0.1, 40), shared + rng.normal(0, 0.1, 40)
    assert paired_contrast(a, b, names=("a", "b"), seed=2).estimate.percentile.half_width < 0.1


def test_all_pairs_in_order_and_their_resolution():
    rng = np.random.default_rng(1)
    values = {name: rng.normal(0, spread, 25) for name, spread in (("z", 1.0), ("y", 2.0), ("x", 3.0))}
    pairs = pairwise_contrasts(values, family="f", seed=2)
    assert [(c.first, c.second) for c in pairs] == [("z", "y"), ("z", "x"), ("y", "x")]
    assert pairs[1].estimate == paired_contrast(values["z"], values["x"], names=("z", "x"), seed=2).estimate
    np.testing.assert_allclose([c.p_holm for c in pairs], holm([c.p_value for c in pairs]))
    widths = sorted((c.estimate.percentile.high - c.estimate.percentile.low) / 2 for c in pairs)
    assert resolution(pairs) == pytest.approx(widths[1])
    assert resolution(pairs[:2]) == pytest.approx(
        sum((c.estimate.percentile.high - c.estimate.percentile.low) / 4 for c in pairs[:2])
    )
    assert math.isnan(resolution([]))
    assert math.isnan(resolution([Contrast("a", "b", mean_estimate([1.0], seed=0), 0.5)]))


# --- the oracle's own error -------------------------------------------------------------------------------------------


def test_oracle_noise_is_what_rerunning_the_oracle_shows():
    rng = np.random.default_rng(3)
    floor, oracle, cost = rng.uniform(6000, 9000, 30), rng.uniform(4500, 5500, 30), rng.uniform(4500, 9000, 30)
    run_sd = rng.uniform(50, 400, 30)
    reruns = oracle + rng.normal(size=(2000, 20, 30)).mean(axis=1) * run_sd
    means = ((floor - cost) / (floor - reruns)).mean(axis=1)
    found = oracle_noise(floor - cost, floor - oracle, run_sd / math.sqrt(20), seed=1)
    assert found.delta_se == pytest.approx(means.std(), rel=0.06)
    assert found.resampled_se == pytest.approx(means.std(), rel=0.06)
    np.testing.assert_allclose(ends(found.interval), np.quantile(means, [0.025, 0.975]), atol=0.15 * means.std())
    assert found.unscoreable == 0


def test_delta_method_against_a_numerical_derivative():
    gain, room, se = np.array([900.0, -400.0, 2500.0]), np.array([1000.0, 1500.0, 800.0]), np.array([20.0, 90.0, 5.0])
    step = 1e-3
    slopes = [((gain / (room + step * np.eye(3)[i])).mean() - (gain / room).mean()) / step for i in range(3)]
    found = oracle_noise(gain, room, se, seed=1, resamples=FEW)
    assert found.delta_se == pytest.approx(
        math.sqrt(sum((s * e) ** 2 for s, e in zip(slopes, se, strict=True))), rel=1e-4
    )


def test_redrawing_shows_the_bias_of_a_ratio():
    gain, room, se = np.full(40, 500.0), np.full(40, 1000.0), np.full(40, 100.0)
    found = oracle_noise(gain, room, se, seed=1)
    assert found.bias == pytest.approx(0.5 * 0.1**2, rel=0.1)  # second order: ratio * (se / headroom)**2


def test_redrawn_seeds_without_headroom_are_left_out_and_counted():
    found = oracle_noise(np.array([1.0, 1.0]), np.array([1.0, 1.0]), np.array([1.0, 0.0]), seed=1)
    assert found.unscoreable == pytest.approx(scipy.stats.norm.cdf(-1.0) / 2, abs=0.003)
    assert found.interval.low > 0  # a negative headroom would have turned the sign
    # half the draws lose the second seed, and their mean is the first seed's ratio alone
    half = oracle_noise(np.array([1.0, 1.0]), np.array([1.0, 1.0]), np.array([0.0, 1e6]), seed=1, level=0.8)
    assert half.interval.high == 1.0
    assert half.interval.low == pytest.approx(0.5, abs=1e-4)


def test_oracle_noise_leaves_out_what_is_not_scored():
    nan = math.nan
    full = oracle_noise(np.array([3.0, 1.0]), np.array([9.0, 7.0]), np.array([1.0, 1.0]), seed=1, resamples=FEW)
    gain, room, se = np.array([3.0, nan, 1.0, 5.0]), np.array([9.0, 9.0, 7.0, -2.0]), np.array([1.0, 1.0, 1.0, nan])
    assert oracle_noise(gain, room, se, seed=1, resamples=FEW) == full
    assert math.isnan(oracle_noise(gain[:1], room[:1], np.array([nan]), seed=1).delta_se)
    unknown = oracle_noise(gain[[0, 2]], room[[0, 2]], np.array([1.0, nan]), seed=1)
    assert np.isnan([unknown.delta_se, unknown.resampled_se, unknown.bias, unknown.unscoreable]).all()
    assert unknown.interval is NO_INTERVAL
    assert math.isnan(oracle_noise(gain[1:2], room[1:2], se[1:2], seed=1).delta_se)
    exact = oracle_noise(gain[:1], room[:1], np.array([0.0]), seed=1, resamples=FEW)
    assert (exact.delta_se, exact.resampled_se, exact.bias) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)
    with pytest.raises(InputError, match="negative"):
        oracle_noise(gain[:1], room[:1], np.array([-1.0]), seed=1)


@pytest.mark.usefixtures("unchecked")
def test_arrays_of_the_wrong_shape():
    one, two, square = np.ones(1), np.ones(2), np.ones((2, 2))
    with pytest.raises(InputError, match="one value per seed"):
        mean_estimate(square, seed=0)
    with pytest.raises(InputError, match="one value per seed"):
        signed_rank_p(square)
    with pytest.raises(InputError, match="flat list"):
        holm(square)
    for first, second in ((one, two), (square, square)):
        with pytest.raises(InputError, match="same seeds"):
            paired_contrast(first, second, names=("a", "b"), seed=0)
        with pytest.raises(InputError, match="one cluster per value"):
            cluster_mean_estimate(first, second.astype(int), seed=0)
        with pytest.raises(InputError, match="one value per seed"):
            oracle_noise(first, second, second, seed=0)
