"""Plots: every one draws, says what it is about, changes nothing global, and is the same every time."""

import re
import subprocess
import sys

import numpy as np
import pytest

from collab.evaluation import plots
from collab.evaluation.statistics import Interval, MeanEstimate, Reliability

INTERVAL = Interval(0.5, 0.4, 0.6)
RELIABILITY = Reliability(Interval(50, 40, 60), Interval(80, 70, 90), Interval(60, 50, 70))

DRAWN = {
    "mr_distributions": lambda: plots.mr_distributions([0.1, 0.5, 0.9], np.array([0.0, 0.2])),
    "one_sided": lambda: plots.mr_distributions([0.1, 0.5], []),
    "training_curves": lambda: plots.training_curves(
        {"loss": {"sft": ([0, 1, 2], [1.0, None, 0.5])}, "reward": {"sft": ([0], [1])}}
    ),
    "many_panels": lambda: plots.training_curves({f"metric {n}": {"run": ([0, 1], [0, 1])} for n in range(5)}),
    "reward_distributions": lambda: plots.reward_distributions(
        {"errands": {"base": [0.1, 0.2, 0.4], "SFT": [0.5]}, "math": {"base": [0.3], "SFT": []}, "empty": {"base": []}}
    ),
    "scores_by_turn": lambda: plots.scores_by_turn({"errands": {"base": [0.1, 0.2]}, "math": {"SFT": [INTERVAL, None]}}),
    "score_by_turn": lambda: plots.score_by_turn({"base": [INTERVAL, None, MeanEstimate(0.4, None, 1)], "SFT": [0.1, 0.2]}),
    "window_ablation": lambda: plots.window_ablation({"BLEU": {"w=0": INTERVAL, "w=2": None}, "tokens": {"w=2": 1200.0}}),
    "rewards_by_window": lambda: plots.rewards_by_window(
        {"A": {"w=0": 0.1, "w=2": -0.2}, "B": {"w=2": MeanEstimate(0.8, 0.1, 3)}}
    ),
    "reliability_boxes": lambda: plots.reliability_boxes({"base": {"FULL": RELIABILITY}, "SFT": {"SHARDED": RELIABILITY}}),
    "before_after": lambda: plots.before_after({"R*": (INTERVAL, None), "asks": (0.0, 1.0)}),
}


@pytest.mark.parametrize("name", DRAWN)
def test_every_plot_draws_and_is_the_same_every_time(name):
    first, second = plots.as_svg(DRAWN[name]()), plots.as_svg(DRAWN[name]())
    assert first == second
    assert first.startswith("<svg") and len(first) > 3000
    assert "<text" not in first, "letters are outlines: no font is needed"


@pytest.mark.parametrize("name", DRAWN)
def test_the_dark_twin_has_no_colour_of_the_light_one(name):
    light = plots.as_svg(DRAWN[name]())
    dark = plots.darkened(light)
    assert plots.INK in light or plots.MUTED in light
    assert not set(re.findall(r"#[0-9a-f]{6}\b", dark)) & set(plots._DARK)


def test_what_is_missing_is_not_a_bar_of_height_zero():
    (axes,) = plots.window_ablation({"BLEU": {"w=0": 0.5, "w=2": None}}).axes
    assert [bar.get_height() for bar in axes.patches] == [0.5]
    assert "–" in [text.get_text() for text in axes.texts]


def test_bars_and_whiskers_are_where_the_numbers_are():
    (axes,) = plots.before_after({"R*": (Interval(0.2, 0.1, 0.35), MeanEstimate(0.6, 0.05, 9))}).axes
    assert [bar.get_height() for bar in axes.patches] == [0.2, 0.6]
    whiskers = [segment[:, 1].tolist() for lines in axes.collections for segment in lines.get_segments()]
    assert whiskers == [pytest.approx([0.1, 0.35]), pytest.approx([0.55, 0.65])]


def test_a_box_goes_from_the_tenth_to_the_ninetieth_percentile():
    (axes,) = plots.reliability_boxes({"base": {"FULL": RELIABILITY}}).axes
    box = axes.patches[0]
    assert (box.get_y(), box.get_y() + box.get_height()) == (20, 80)


def test_names_are_not_read_as_mathematics():
    figure = plots.window_ablation({"cost in $ and $x^": {"_hidden": 0.1, "50% $": 0.2}})
    plots.as_svg(figure)
    assert figure.axes[0].get_title(loc="left") == r"cost in \$ and \$x^"


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.mr_distributions([], []),
        lambda: plots.training_curves({}),
        lambda: plots.score_by_turn({}),
        lambda: plots.scores_by_turn({}),
        lambda: plots.reward_distributions({"errands": {"base": []}}),
        lambda: plots.window_ablation({}),
        lambda: plots.rewards_by_window({}),
        lambda: plots.reliability_boxes({}),
        lambda: plots.before_after({}),
    ],
)
def test_nothing_to_draw_is_said(draw):
    with pytest.raises(ValueError, match=r"nothing to draw|no Multiturn-aware"):
        draw()


def test_drawing_changes_no_global_state_and_importing_loads_no_matplotlib():
    script = (
        "import sys; from collab.evaluation import plots, report; assert 'matplotlib' not in sys.modules\n"
        "import matplotlib\n"
        "settings = lambda: {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != 'backend'}\n"
        "before = settings(); plots.as_svg(plots.before_after({'R*': (0.1, 0.2)})); assert settings() == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
