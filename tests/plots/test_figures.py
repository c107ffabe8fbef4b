"""Every figure: drawn from real data without a warning, labelled, the same each time, and nothing global changed."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text

from stocktake_jax import plots
from stocktake_jax.errors import InputError
from stocktake_jax.evaluation.published import published_agents
from stocktake_jax.evaluation.skill import References, score
from stocktake_jax.models import FACTORS, Tape, World
from stocktake_jax.plots import style

from .conftest import (
    COVERAGE,
    FACTORS_ON,
    HALVED,
    IGNORED,
    OUTLOOK,
    PAIRS,
    TRUE,
    VALUES_OF,
    WAIT,
    believed,
    document,
    misspecified,
)

Maker = Callable[[pytest.FixtureRequest], Callable[[], Any]]


def made(kind: str, get: Callable[[str], Any]) -> Callable[..., Any]:
    """The figure of a kind as a function of optional keywords, on the data of conftest."""
    world: World = get("world")
    if kind == "tape":
        return lambda **k: plots.tape(get("tape"), world, **k)
    if kind == "posterior":
        return lambda **k: plots.posterior(world.port, get("filtered")["port"], get("tape").states["port"], **k)
    if kind == "posteriors":
        return lambda **k: plots.posteriors(world, get("filtered"), get("tape"), **k)
    if kind == "beliefs":
        later = {n: np.vstack([b[:1], b[:-1]]) for n, b in get("filtered").items()}
        return lambda **k: plots.beliefs(world, {"prompt": get("filtered"), "late": later}, get("tape"), **k)
    if kind == "decision":
        return lambda **k: plots.decision(get("decided"), **k)
    if kind == "books":
        saved = plots.saved_ledgers(get("results").seeds[0])
        return lambda **k: plots.books(saved, Tape.published(60, world), world, **k)
    if kind == "skill":
        costs = {a: published_agents()[a] for a in ("grok-4.5", "gpt-5.4")}
        table = score(costs, References.published(), resamples=50)
        return lambda **k: plots.skill(table, **k)
    if kind in ("detection", "knowing_doing"):
        return lambda **k: getattr(plots, kind)(get("board"), **k)
    if kind == "rank_histograms":
        return lambda **k: plots.rank_histograms(get("ranked"), **k)
    if kind == "parameters":
        prior = {n: np.linspace(0, 4, 500) for n in get("draws")}
        truth = {"port.build_onset": 0.06, "port.wait_sd": 2.0}
        return lambda **k: plots.parameters(get("draws"), prior, truth, **k)
    if kind == "coverage":
        return lambda **k: plots.coverage(COVERAGE, **k)
    if kind in WRONG_MODELS:
        return lambda **k: getattr(plots, kind)(misspecified(*WRONG_MODELS[kind]), **k)
    names = {"tornado": "study", "sample_complexity": "learned", "reliability": "calibration"}
    return lambda **k: getattr(plots, kind)(document(f"{names[kind]}.json"), **k)


WRONG_MODELS = {"models": [*IGNORED, *HALVED], "curves": [*FACTORS_ON, *VALUES_OF], "grid": PAIRS}
ONE_PANEL = ("posterior", "decision", "knowing_doing", "tornado", "coverage", "models")
KINDS = (
    *ONE_PANEL,
    *("tape", "posteriors", "beliefs", "books", "skill", "detection", "reliability", "rank_histograms"),
    *("parameters", "sample_complexity", "curves", "grid"),
)

UNITS = {
    "tape": ("week", "ships/week", "days", "units/week", "100 = normal", "inspection"),
    "posterior": ("week",),
    "posteriors": ("week", "probability"),
    "beliefs": ("week", "P(stress)"),
    "decision": ("($)",),
    "books": ("week", "units", "units ordered", "($)"),
    "skill": ("skill (floor 0, oracle 1)",),
    "detection": ("% of stress episodes", "weeks from the onset", "% of all names"),
    "knowing_doing": ("%",),
    "rank_histograms": ("data sets", "share of draws below"),
    "parameters": ("density", "probability", "days"),
    "coverage": ("%",),
    "tornado": ("($)",),
    "models": ("($) against the true model",),
    "curves": ("additional cost of an episode ($)", "value believed (days)"),
    "grid": ("port.wait_sd (truth: 2 days)", "port.outlook_sd (truth: 3 days)", "($)"),
    "sample_complexity": ("tapes", "($)", "nats/week", "error"),
    "reliability": ("probability stated", "share of weeks"),
}
"""What the labels of the axes must say, units above all."""

NAMES = {
    "tape": ("Suez", "Cape", "forecast", "charged", "outlook", "fill (%)", "under stress", "stress brewing"),
    "posterior": ("clear", "building", "congested", "customs hold", "probability"),
    "posteriors": ("calm", "in control", "structural decline"),
    "beliefs": ("prompt", "late", "truly under stress"),
    "decision": ("no order", "happened", "units on shelf and at sea"),
    "books": ("on the shelf", "at sea", "stockout", "by sea", "by air", "shipping", "holding", "some factor"),
    "skill": ("gpt-5.4", "grok-4.5", "floor", "oracle", "median", "mean and its 95 % interval", "one seed"),
    "detection": ("gpt-5.4", "grok-4.5", "never named in time"),
    "knowing_doing": ("gpt-5.4", "no stress", "stress, not named", "stress, named"),
    "rank_histograms": ("port.build_onset", "port: log likelihood: not flat", "99 %"),
    "parameters": ("port.wait_sd", "posterior density", "prior density", "truth", "middle 90 %"),
    "coverage": ("port.build_onset", "transition that the data can tell", "any other parameter", "chance allows"),
    "tornado": ("port.disperse", "halved", "doubled"),
    "models": ("quality ignored", "stress of port x0.5", "95 % interval over seeds", "Monte Carlo standard error"),
    "curves": (WAIT, OUTLOOK, "truth", "95 % interval over seeds", "Monte Carlo standard error"),
    "grid": ("halved", "true", "doubled", "+50\n± 10", "-40\n± 10", "Framed", "Hatched"),
    "sample_complexity": ("plug-in", "averaged", "supplier", "true model"),
    "reliability": ("port", "quality", "congested", "paper likelihood", "exact likelihood"),
}
"""What must stand in a figure so that every series has its name."""


def texts(figure: Figure) -> list[str]:
    return [t.get_text() for t in figure.findobj(Text) if t.get_visible() and t.get_text()]


def is_cut(file: Path) -> bool:
    """Whether something reaches the edge of a PNG, where it is cut."""
    pixels = imread(file)[..., :3]
    return any((edge != 1.0).any() for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]))


@pytest.mark.parametrize("kind", KINDS)
def test_figure(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    draw = made(kind, request.getfixturevalue)
    before = dict(mpl.rcParams)
    axes = draw()
    assert isinstance(axes, Axes) == (kind in ONE_PANEL)
    every = list(style.all_axes(axes))
    assert every
    assert all(isinstance(ax, Axes) for ax in every)
    figure = plots.figure_of(axes)
    (file,) = plots.save(axes, tmp_path / "figure.png")
    assert not is_cut(file)
    assert dict(mpl.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    labels = " | ".join(label for ax in figure.axes for label in (ax.get_xlabel(), ax.get_ylabel()) if label)
    for unit in UNITS[kind]:
        assert unit in labels
    said = texts(figure)
    for name in NAMES[kind]:
        assert any(name in text for text in said), f"{name!r} is nowhere in the figure"
    # A title that says something: over the figure, or over its only panel.
    title = figure.get_suptitle() or every[0].get_title(loc="left")
    assert len(title) > 15


LARGE = ("tape", "posteriors", "beliefs", "books", "reliability", "sample_complexity", "models", "curves", "grid")
"""Figures of many panels, which take their second or two; what makes them the same each time is the others' code."""


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow) if k in LARGE else k for k in KINDS])
def test_same_bytes_twice(kind: str, request: pytest.FixtureRequest) -> None:
    draw = made(kind, request.getfixturevalue)
    assert plots.svg_text(draw()) == plots.svg_text(draw())


@pytest.mark.parametrize("kind", KINDS)
def test_draws_where_it_is_told_to(kind: str, request: pytest.FixtureRequest) -> None:
    draw = made(kind, request.getfixturevalue)
    mine = Figure(figsize=(12, 9))
    if kind in ONE_PANEL:
        ax = mine.subplots()
        assert draw(ax=ax, title="mine") is ax
        assert ax.get_title(loc="left") == "mine"
    else:
        part = mine.subfigures(1, 2)[0]
        for ax in style.all_axes(draw(figure=part, title="mine")):
            assert ax.get_figure() is part
        assert part.get_suptitle() == "mine"


# ---- what figures say -----------------------------------------------------------------------------------------------


def test_tape_shades_the_weeks_under_stress(tape: Tape, world: World) -> None:
    from matplotlib.colors import to_hex

    axes = plots.tape(tape, world)
    for name, ax in axes.items():
        stressed = world.factors[name].stress_mask[tape.states[name]]
        shaded = np.zeros(27, bool)
        for patch in ax.patches:
            if to_hex(patch.get_facecolor()).upper() == style.STRESS:
                a, width = patch.get_x(), patch.get_width()
                shaded[round(a + 0.5) : round(a + 0.5 + width)] = True
        assert shaded.tolist() == stressed.tolist()


def covered(ax: Axes) -> list[tuple[str, str]]:
    """Pairs of texts of a panel, its title too, of which one lies over the other."""
    figure = ax.figure
    assert isinstance(figure, Figure)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    shown = [t for t in (*ax.texts, *ax.findobj(Text, include_self=False)) if t.get_text() in REGIMES]
    shown += [t for t in ax.texts if t.get_text().startswith(("scorecard", "↑"))]
    boxes = {id(t): (t.get_text(), t.get_window_extent(renderer)) for t in shown}
    pairs = itertools.combinations(boxes.values(), 2)
    return [(a, b) for (a, one), (b, other) in pairs if one.padded(-0.7).overlaps(other.padded(-0.7))]


REGIMES = {style.words(label) for factor in World.paper().factors.values() for label in factor.labels} | set(FACTORS)


@pytest.mark.parametrize("seed", [0, 9, 160])
def test_names_of_regimes_do_not_cover_each_other(seed: int) -> None:
    """On tapes where three regimes follow each other in as many weeks, two of them at the very end."""
    panels = plots.tape(Tape.published(seed))
    assert [(name, pair) for name, ax in panels.items() for pair in covered(ax)] == []


def test_texts_that_meet_go_to_lines_of_their_own() -> None:
    free: list[float] = []
    assert [style.first_free(free, *ends) for ends in ((0, 2), (1, 3), (2.5, 4), (1, 9), (4, 5))] == [0, 1, 0, 2, 1]


def test_a_bill_that_dwarfs_all_others_leaves_them_to_be_seen(results: Any) -> None:
    saved = plots.saved_ledgers(results.seeds[0])
    plain = plots.books(saved)
    most = max(float(sum(e.bill.values()).max()) for e in saved.values())
    assert plain["floor"]["bill"].get_ylim()[1] >= most
    assert not plain["floor"]["bill"].texts
    fees = saved["oracle"].bill["couple"].copy()
    fees[[7, 8]] += (50_000.0, 70_000.0)
    dear = dataclasses.replace(saved["oracle"], bill=saved["oracle"].bill | {"couple": fees})
    drawn = plots.books(saved | {"oracle": dear})
    bills = sum(dear.bill.values())
    assert most / 4 < drawn["oracle"]["bill"].get_ylim()[1] < 2 * most
    assert drawn["floor"]["bill"].get_ylim() == drawn["oracle"]["bill"].get_ylim()
    told = [t.get_text() for t in drawn["oracle"]["bill"].texts]
    assert told[-2:] != [] and {f"↑ ${bills[week]:,.0f}" for week in (7, 8)} <= set(told)
    assert covered(drawn["oracle"]["bill"]) == []


def test_coverage_names_only_what_it_shows() -> None:
    for keep, said in ((0, "transition that the data can tell"), (1, "any other parameter")):
        ax = plots.coverage({**COVERAGE, "parameters": COVERAGE["parameters"][keep : keep + 1]})
        legend = ax.get_legend()
        assert legend is not None
        assert [t.get_text() for t in legend.get_texts()] == [said, "chance allows if 90% is true"]


def test_the_legend_of_a_tornado_stands_below_its_bars() -> None:
    ax = plots.tornado(document("study.json"))
    legend = ax.get_legend()
    assert legend is not None
    renderer = FigureCanvasAgg(plots.figure_of(ax)).get_renderer()
    plots.figure_of(ax).draw(renderer)
    assert legend.get_window_extent(renderer).y1 <= ax.get_window_extent(renderer).y0


def test_errors_of_estimates_have_few_enough_ticks_to_read() -> None:
    wide = document("learned.json")
    for row, error in zip(wide["models"], (0.011, 0.9), strict=False):
        row["parameter_error"]["transitions"] = error
    ax = plots.sample_complexity(wide)["parameters"]
    low, high = ax.get_ylim()
    ticks = [tick for tick in ax.get_yticks() if low <= tick <= high]
    assert 3 <= len(ticks) <= 8 and not len(ax.get_yticks(minor=True))


def test_posterior_frames_the_truth_and_shades_the_belief(filtered: Any, tape: Tape, world: World) -> None:
    ax = plots.posterior(world.port, filtered["port"], tape.states["port"])
    (image,) = ax.images
    np.testing.assert_allclose(image.get_array().T, filtered["port"])
    truth = tape.regimes(world)["port"]
    framed: dict[int, str] = {}
    for patch in ax.patches:
        x, y = patch.get_xy()
        for week in range(round(x + 0.5), round(x + 0.5 + patch.get_width())):
            framed[week] = world.port.labels[round(y + 0.46)]
    assert [framed[week] for week in range(27)] == truth
    right = np.mean([filtered["port"][t, world.port.labels.index(r)] for t, r in enumerate(truth)])
    assert f"{right:.2f}" in ax.get_title(loc="left")


def test_states_are_pooled_into_regimes(world: World, tape: Tape) -> None:
    belief = np.eye(len(world.canal.states))[tape.states["canal"]]
    table = plots.hidden.regime_table(world.canal, belief)
    assert [world.canal.labels[i] for i in table.argmax(1)] == tape.regimes(world)["canal"]


def test_decision_marks_the_cheapest_candidate(decided: Any) -> None:
    ax = plots.decision(decided, most=3)
    labels = [t.get_text() for t in ax.get_yticklabels()]
    assert len(labels) == 3
    assert labels[0] == "> " + decided.labels[decided.chosen]
    assert [t.get_fontweight() for t in ax.get_yticklabels()] == ["bold", "normal", "normal"]
    means = sorted(decided.costs.mean(axis=1))[:3]
    drawn = [float(line.get_xdata()[0]) for line in ax.lines if line.get_marker() in ("D", "o")]
    np.testing.assert_allclose(drawn, means)


def test_books_stack_up_to_the_bill(results: Any) -> None:
    saved = plots.saved_ledgers(results.seeds[0])
    assert saved["floor"].cost == pytest.approx(results.seeds[0].floor)
    assert saved["oracle"].cost == pytest.approx(results.seeds[0].oracle[0])
    axes = plots.books(saved)
    for name, ledger in saved.items():
        bars = [p for p in axes[name]["bill"].patches if p.get_width() == pytest.approx(0.85)]
        assert sum(bar.get_height() for bar in bars) == pytest.approx(ledger.cost)
        crosses = [line for line in axes[name]["stock"].lines if line.get_marker() == "X"]
        weeks = crosses[0].get_xdata().tolist() if crosses else []
        assert weeks == (np.flatnonzero(ledger.unmet)).tolist()
    title = plots.figure_of(axes).get_suptitle()
    assert title.startswith("oracle pays $")
    assert "less than floor" in title


def test_skill_shows_every_seed_or_counts_it() -> None:
    table = score({"deepseek-v4-pro": published_agents()["deepseek-v4-pro"]}, References.published(), resamples=20)
    axes = plots.skill(table, groups=["all"])
    skills = table.agents[0].skill[np.isfinite(table.agents[0].skill)]
    dots = next(line for line in axes["all"].lines if line.get_marker() == "o" and len(line.get_xdata()) > 1)
    np.testing.assert_allclose(np.sort(dots.get_xdata()), np.sort(skills[skills >= -2]))
    below = int((skills < -2).sum())
    assert below > 0
    assert f"{below} farther below" in texts(plots.figure_of(axes))


def test_scores_of_a_document_are_those_of_the_board(board: Any) -> None:
    a, b = plots.detection(board), plots.detection(board.to_json())
    for metric, ax in a.items():
        points = [[line.get_xdata()[0] for line in x.lines if line.get_marker() == "o"] for x in (ax, b[metric])]
        assert points[0] == points[1]
    # Only the board knows intervals.
    assert len(a["precision"].lines) > len(b["precision"].lines)


def test_tornado_puts_the_costliest_parameter_on_top() -> None:
    study = document("study.json")
    ax = plots.tornado(study, most=2)
    span: dict[str, float] = {}
    for o in study["outcomes"][1:]:
        span[o["parameter"]] = max(span.get(o["parameter"], 0), abs(o["difference"]))
    ranked = sorted(span, key=lambda n: -span[n])[:2]
    assert [t.get_text() for t in ax.get_yticklabels()] == ranked
    widths = {round(p.get_width(), 6) for p in ax.patches}
    assert widths == {round(o["difference"], 6) for o in study["outcomes"] if o["parameter"] in ranked}


def test_every_kind_of_wrong_model_gets_its_figure() -> None:
    everything = misspecified(*IGNORED, *FACTORS_ON, *VALUES_OF, *PAIRS, *HALVED, believed({WAIT: 9.0}, 3.0))
    drawn = plots.misspecified(everything)
    assert list(drawn) == ["tornado", "curves", "grid", "models"]
    assert [t.get_text() for t in drawn["tornado"].get_yticklabels()] == ["stress of port", "stress of demand"]
    assert list(drawn["curves"]) == [WAIT, OUTLOOK] and list(drawn["grid"]) == [f"{WAIT}, {OUTLOOK}"]
    # A value by itself makes no curve; costliest on top.
    names = [t.get_text() for t in drawn["models"].get_yticklabels()]
    ignored = [o["label"] for o in IGNORED[::-1]]
    assert names == [*ignored[:3], f"{WAIT} = 9", *ignored[3:]]
    assert list(plots.misspecified(misspecified(*FACTORS_ON[1:3]))) == ["tornado"]


def test_models_are_dots_with_both_intervals() -> None:
    ax = plots.models(misspecified(*IGNORED), order="given", most=2)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["port ignored", "quality ignored"]
    assert [[float(x) for x in line.get_xdata()] for line in ax.lines[:3]] == [[5.0, 65.0], [25.0, 45.0], [35.0]]
    assert ax.get_title(loc="left") == "The costliest model: quality ignored (+$55)"
    assert "Nothing here costs more" in plots.models(misspecified(IGNORED[0])).get_title(loc="left")


def test_curves_go_through_the_truth() -> None:
    axes = plots.curves(misspecified(*FACTORS_ON, *VALUES_OF))
    lines = {name: axes[name].lines[1].get_xydata().tolist() for name in axes}
    assert lines[WAIT] == [[0.5, 2.5], [1.0, 5.0], [2.0, 0.0], [4.0, 20.0], [8.0, 40.0]]
    assert lines[OUTLOOK] == [[2.0, 6.0], [3.0, 0.0], [6.0, 2.0]]
    assert (axes[WAIT].get_xscale(), axes[OUTLOOK].get_xscale()) == ("log", "linear")
    # A document that does not say what is true: factors have their truth at one, values none.
    old = [{**o, "believed": {}} for o in (*FACTORS_ON, *VALUES_OF)]
    axes = plots.curves({"outcomes": [{**TRUE, "believed": {}}, *old]})
    assert [1.0, 0.0] in axes[WAIT].lines[1].get_xydata().tolist() and axes[WAIT].get_xlabel() == "times the truth"
    assert axes[OUTLOOK].lines[1].get_xydata().tolist() == [[2.0, 6.0], [6.0, 2.0]]


def test_the_grid_marks_the_truth_and_what_is_cheaper() -> None:
    (ax,) = plots.grid(misspecified(*PAIRS)).values()
    (image,) = ax.collections
    assert image.get_array().tolist() == [[20.0, 0.0, -40.0], [70.0, 50.0, 10.0]]
    assert image.get_clim() == (-70.0, 70.0)
    hatched = [p.get_xy() for p in ax.patches if p.get_hatch()]
    framed = [p.get_xy() for p in ax.patches if not p.get_hatch()]
    assert hatched == [(2, 0)] and framed == [(1.03, 0.03)]
    bold = {t.get_text().split()[0] for t in ax.texts if t.get_fontweight() == "bold"}
    assert bold == {"-40", "+50", "+70"}
    # By values the truth is known from the study.
    by_value = [believed({WAIT: a, OUTLOOK: b}, a - b) for a in (1.0, 2.0) for b in (3.0, 4.0)]
    (ax,) = plots.grid(misspecified(*by_value)).values()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["3\n(truth)", "4"]
    assert [p.get_xy() for p in ax.patches if not p.get_hatch()] == [(0.03, 1.03)]


def test_rank_histograms_mark_what_is_not_flat(ranked: Any) -> None:
    axes = plots.rank_histograms([ranked])
    assert "not flat" not in axes["port.build_onset"].get_title(loc="left")
    assert "not flat" in axes["port: log likelihood"].get_title(loc="left")
    heights = [p.get_height() for p in axes["port.build_onset"].patches if p.get_width() < 0.5]
    assert heights == ranked.histogram()[0].tolist()


def test_parameters_count_the_intervals_that_hold_the_truth(draws: Any) -> None:
    axes = plots.parameters(draws, None, {"port.build_onset": 0.5, "port.wait_sd": 2.0})
    assert plots.figure_of(axes).get_suptitle() == "1 of 2 90 % intervals hold the truth"


def test_prior_draws_follow_the_priors(world: World) -> None:
    import jax

    names = ("port.build_onset", "port.customs_onset", "port.wait_sd")
    drawn = plots.prior_draws(world, names, 3000, key=jax.random.key(3))
    assert set(drawn) == set(names)
    # Two competing events share a row, so that they are uniform below the diagonal: their mean is 1/3.
    assert np.mean(drawn["port.build_onset"]) == pytest.approx(1 / 3, abs=0.03)
    assert np.median(drawn["port.wait_sd"]) == pytest.approx(2.0, rel=0.1)
    assert (drawn["port.build_onset"] + drawn["port.customs_onset"] <= 1).all()


# ---- bad data -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda w, t: plots.tape(Tape.published_batch([1, 2], w), w), "one tape"),
        (lambda w, t: plots.posterior(w.port, np.ones((5, 3))), "4 regimes"),
        (lambda w, t: plots.posterior(w.port, np.ones((5, 4)), np.zeros(6, int)), "5 weeks"),
        (lambda w, t: plots.posteriors(w, {"weather": np.ones((5, 4))}), "unknown factor 'weather'"),
        (lambda w, t: plots.posteriors(w, {}), "no factor"),
        (lambda w, t: plots.beliefs(w, {"a": {"port": np.ones((5, 4))}}), "two filters"),
        (lambda w, t: plots.books({}), "no episode"),
        (lambda w, t: plots.skill(score({"a": {1: 5.0}}, References.published([1])), groups=["none"]), "'none'"),
        (lambda w, t: plots.detection({"a": {}}), "nobody has"),
        (lambda w, t: plots.knowing_doing({}), "nobody has"),
        (lambda w, t: plots.tornado({}), "no 'outcomes'"),
        (lambda w, t: plots.tornado(misspecified(*IGNORED)), "change by a factor"),
        (lambda w, t: plots.models(misspecified()), "the true model alone"),
        (lambda w, t: plots.curves(misspecified(*IGNORED)), "change of one parameter"),
        (
            lambda w, t: plots.curves({"outcomes": [*FACTORS_ON, *[{**v, "changes": {WAIT: 1.0}} for v in VALUES_OF]]}),
            "is true",
        ),
        (lambda w, t: plots.grid(misspecified(*FACTORS_ON)), "change of two parameters"),
        (lambda w, t: plots.tornado("study.json"), "not str"),
        (lambda w, t: plots.reliability({"scores": []}), "no 'reliability'"),
        (lambda w, t: plots.rank_histograms({}), "no 'factors'"),
        (lambda w, t: plots.rank_histograms([]), "no ranks"),
        (lambda w, t: plots.coverage({"level": 0.9}), "no 'parameters'"),
        (lambda w, t: plots.parameters({}), "no posterior draws"),
        (lambda w, t: plots.sample_complexity({"models": [{"tapes": None}]}), "how many tapes"),
    ],
)
def test_bad_data_is_refused(draw: Callable[[World, Tape], Any], words: str, world: World, tape: Tape) -> None:
    with pytest.raises(InputError, match=words):
        draw(world, tape)


# ---- files ----------------------------------------------------------------------------------------------------------


def test_save_writes_the_same_bytes_twice(tmp_path: Path) -> None:
    def files(name: str) -> list[bytes]:
        written = plots.save(plots.coverage(COVERAGE), tmp_path / name / "figure")
        assert [p.name for p in written] == ["figure.png", "figure.svg"]
        return [p.read_bytes() for p in written]

    png, svg = files("a")
    assert files("b") == [png, svg]
    assert png.startswith(b"\x89PNG")
    assert b"<dc:date>" not in svg
    assert b"Software\0stocktake" in png
    assert not any(line.endswith(b" ") for line in svg.splitlines())
    assert svg.startswith(b"<?xml")
    assert svg.rstrip().endswith(b"</svg>")


def test_svg_text_is_an_element(tmp_path: Path) -> None:
    text = plots.svg_text(plots.coverage(COVERAGE))
    assert text.startswith("<svg")
    assert "<!DOCTYPE" not in text


@pytest.mark.parametrize(
    ("paths", "words"), [((), "where the figure goes"), (("a.pdf",), r"\.png or \.svg"), (("no/where.png",), "written")]
)
def test_bad_files_are_refused(paths: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no").write_text("a file, no folder")
    with pytest.raises(InputError, match=words):
        plots.save(plots.coverage(COVERAGE), *paths)


def test_dollars_are_no_formulas() -> None:
    ax = plots.coverage(COVERAGE, title="$5 and $6")
    (title,) = (t for t in ax.findobj(Text) if t.get_text() == "$5 and $6")
    assert not title.get_parse_math()


def test_figures_are_readable_in_grey() -> None:
    """No two series of a figure share their line style, marker and hatch, so that colour is never all that tells them."""
    forms = [(repr(look.line), look.marker, look.hatch) for look in style.LOOKS]
    for k in range(3):
        assert len({form[k] for form in forms}) == len(forms)
    assert len({look.color for look in style.LOOKS}) == len(forms)


def test_stress_is_darker_than_brewing_in_grey(tmp_path: Path) -> None:
    from matplotlib.colors import to_rgb

    grey = [float(np.dot(to_rgb(c), (0.299, 0.587, 0.114))) for c in (style.STRESS, style.BREWING)]
    assert grey[0] < grey[1] - 0.05


def test_png_has_the_size_that_was_asked_for(tmp_path: Path) -> None:
    (file,) = plots.save(style.axes_of(None, 4.0, 2.0), tmp_path / "a.png")
    assert imread(file).shape[:2] == (300, 600)


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # makes an import raise
    with pytest.raises(InputError, match=r"figures need matplotlib: pip install 'stocktake-jax\[plots\]'"):
        plots.coverage(COVERAGE)
