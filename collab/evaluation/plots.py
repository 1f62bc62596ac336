"""The plots people expect, each a function from plain numbers to a matplotlib figure.

Figures are made without pyplot, so nothing global changes and nothing opens a window. They are drawn in the colours of the
report (`PALETTE`), on a transparent ground; `as_svg` turns them into text, `darkened` into their dark twin.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collab.evaluation.statistics import Interval, MeanEstimate, Reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, LINE = "#24272c", "#6a6e77", "#dedad2"
GOOD, BAD, ACCENT = "#2e7d5b", "#b0524a", "#2f6f8f"
SERIES = ("#2f6f8f", "#c98a2b", "#2e7d5b", "#8a5a9e", "#b0524a", "#6a8caf", "#7a7a5c")
_DARK = {
    INK: "#e7e5e0",
    MUTED: "#9aa0a8",
    LINE: "#33383f",
    GOOD: "#6fc39b",
    BAD: "#e0877e",
    ACCENT: "#79b8d4",
    "#c98a2b": "#e0b060",
    "#8a5a9e": "#bd93d0",
    "#6a8caf": "#9bb7d4",
    "#7a7a5c": "#b4b48c",
}

Estimate = Interval | MeanEstimate | float | None


def mr_distributions(chosen: Sequence[float], rejected: Sequence[float]) -> Figure:
    """Draw the distributions of the MR of chosen and of rejected replies, with their means (the spread behind Table 5).

    Raises:
        ValueError: when both are empty.
    """
    import numpy as np

    if not len(chosen) + len(rejected):
        raise ValueError("no Multiturn-aware Rewards to draw")
    figure, (axes,) = _figure(1, height=3.2)
    every = [*chosen, *rejected]
    edges = np.histogram_bin_edges(every, bins=min(40, max(8, int(len(every) ** 0.5)))).tolist()
    for values, label, colour in ((rejected, "rejected", BAD), (chosen, "chosen", GOOD)):
        if len(values):
            axes.hist(values, bins=edges, color=colour, alpha=0.35, edgecolor="none")
            axes.hist(values, bins=edges, color=colour, histtype="step", linewidth=1.4, label=f"{label} (n = {len(values):,})")
            axes.axvline(float(np.mean(values)), color=colour, linewidth=1.4, linestyle=(0, (4, 2)))
    _label(axes, x="Multiturn-aware Reward (dashed: mean)", y="replies")
    _legend(axes)
    return figure


def reward_distributions(rewards: Mapping[str, Mapping[str, Sequence[float]]], x: str = "R*") -> Figure:
    """Draw the distribution of R* of every policy, and its mean, in one panel an environment: {environment: {policy: values}}.

    Raises:
        ValueError: when there is nothing to draw.
    """
    import numpy as np

    panels = {name: values for name, values in rewards.items() if any(map(len, values.values()))}
    figure, every = _figure(len(panels), height=2.6)
    names = _unique(name for values in panels.values() for name in values)
    for axes, (environment, by_policy) in zip(every, panels.items(), strict=True):
        together = [value for values in by_policy.values() for value in values]
        edges = np.histogram_bin_edges(together, bins=min(24, max(8, int(len(together) ** 0.5)))).tolist()
        for policy, values in by_policy.items():
            colour = SERIES[names.index(policy) % len(SERIES)]
            if len(values):
                axes.hist(values, bins=edges, color=colour, alpha=0.12, edgecolor="none")
                axes.hist(values, bins=edges, color=colour, histtype="step", linewidth=1.4, label=policy)
                axes.axvline(float(np.mean(values)), color=colour, linewidth=1.4, linestyle=(0, (4, 2)))
        _label(axes, title=environment, x=x, y="conversations")
    _shared_legend(figure, every)
    return figure


def training_curves(curves: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]]) -> Figure:
    """Draw one panel a metric with one line a run: {metric: {run: (steps, values)}}; values that are None leave a gap.

    Raises:
        ValueError: when there are no metrics.
    """
    figure, panels = _figure(len(curves), height=2.8)
    names = _unique(run for runs in curves.values() for run in runs)
    for axes, (metric, runs) in zip(panels, curves.items(), strict=True):
        for run, (steps, values) in runs.items():
            colour = SERIES[names.index(run) % len(SERIES)]
            numbers = [float("nan") if value is None else value for value in values]
            few = len(numbers) <= 30
            axes.plot(steps, numbers, color=colour, linewidth=1.6, marker="o" if few else None, markersize=3, label=run)
        _label(axes, title=metric, x="step")
    if len(names) > 1:
        _shared_legend(figure, panels)
    return figure


def score_by_turn(series: Mapping[str, Sequence[Estimate]], y: str = "score") -> Figure:
    """Draw a score against the turn it was reached in: {policy: [estimate of turn 1, of turn 2, ...]}; None leaves a gap.

    Raises:
        ValueError: when there are no series.
    """
    figure, (axes,) = _figure(1 if series else 0, height=3.2)
    _turns(axes, series)
    _label(axes, x="turn", y=y)
    _legend(axes, above=True)
    return figure


def scores_by_turn(panels: Mapping[str, Mapping[str, Sequence[Estimate]]], y: str = "score") -> Figure:
    """Draw one panel an environment as `score_by_turn` does: {environment: {policy: estimates}}.

    Raises:
        ValueError: when there are no panels.
    """
    figure, every = _figure(len(panels), height=2.6)
    for axes, (environment, series) in zip(every, panels.items(), strict=True):
        _turns(axes, series)
        _label(axes, title=environment, x="turn", y=y)
    _shared_legend(figure, every)
    return figure


def _turns(axes: Axes, series: Mapping[str, Sequence[Estimate]]) -> None:
    from matplotlib.ticker import MaxNLocator

    for number, (name, estimates) in enumerate(series.items()):
        colour = SERIES[number % len(SERIES)]
        points = [(turn, *_parts(estimate)) for turn, estimate in enumerate(estimates, start=1) if estimate is not None]
        turns = [point[0] for point in points]
        axes.plot(turns, [point[1] for point in points], color=colour, linewidth=1.6, marker="o", markersize=4, label=name)
        axes.fill_between(turns, [p[1] - p[2] for p in points], [p[1] + p[3] for p in points], color=colour, alpha=0.15, lw=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def window_ablation(metrics: Mapping[str, Mapping[str, Estimate]]) -> Figure:
    """Draw one panel a metric with one bar a reward mechanism (CollabLLM Figure 4): {metric: {mechanism: estimate}}.

    Raises:
        ValueError: when there are no metrics.
    """
    figure, panels = _figure(len(metrics), height=3.2)
    names = _unique(name for bars in metrics.values() for name in bars)
    for axes, (metric, bars) in zip(panels, metrics.items(), strict=True):
        _bars(axes, [(name, bars.get(name), SERIES[number % len(SERIES)]) for number, name in enumerate(names)])
        _label(axes, title=metric)
    return figure


def rewards_by_window(rewards: Mapping[str, Mapping[str, Estimate]]) -> Figure:
    """Draw what each reward mechanism gives to each reply (CollabLLM Figure 6): {reply: {mechanism: estimate}}.

    Raises:
        ValueError: when there are no replies.
    """
    figure, (axes,) = _figure(1 if rewards else 0, height=3.2)
    mechanisms = _unique(name for values in rewards.values() for name in values)
    width, decimals = 0.8 / len(rewards), _decimals([value for values in rewards.values() for value in values.values()])
    for number, (reply, values) in enumerate(rewards.items()):
        colour = SERIES[number % len(SERIES)]
        for place, name in enumerate(mechanisms):
            where = place + (number - (len(rewards) - 1) / 2) * width
            _bar(axes, where, values.get(name), colour, width * 0.9, decimals, label=reply if place == 0 else None)
    _ticks(axes, mechanisms)
    _label(axes, y="reward")
    _legend(axes, above=True)
    return figure


def reliability_boxes(results: Mapping[str, Mapping[str, Reliability]]) -> Figure:
    """Draw aptitude and unreliability (Lost in Conversation): {policy: {setting: metrics}}.

    A box goes from the mean 10th to the mean 90th percentile of an instruction's runs, so its top is A90 and its height U; the
    line in it is P.

    Raises:
        ValueError: when there are no policies.
    """
    figure, (axes,) = _figure(1 if results else 0, height=3.4)
    settings = _unique(setting for values in results.values() for setting in values)
    width = 0.8 / len(settings)
    for number, setting in enumerate(settings):
        colour = SERIES[number % len(SERIES)]
        for place, values in enumerate(results.values()):
            if setting in values:
                metrics, where = values[setting], place + (number - (len(settings) - 1) / 2) * width
                height, top = metrics.unreliability.estimate, metrics.aptitude.estimate
                axes.bar(
                    where, height, width * 0.8, bottom=top - height, color=colour, alpha=0.3, edgecolor=colour, linewidth=1.2
                )
                middle = metrics.performance.estimate
                axes.plot([where - width * 0.4, where + width * 0.4], [middle, middle], color=colour, linewidth=2.2)
        axes.bar(0, 0, color=colour, label=setting)
    axes.set_ylim(0, 102)
    _ticks(axes, list(results))
    _label(axes, y="score (box: p10 to p90, line: mean)")
    _legend(axes, above=True)
    return figure


def before_after(metrics: Mapping[str, tuple[Estimate, Estimate]], labels: tuple[str, str] = ("before", "after")) -> Figure:
    """Draw one panel a metric with a bar before and a bar after training, with their intervals.

    Raises:
        ValueError: when there are no metrics.
    """
    figure, panels = _figure(len(metrics), height=2.8)
    for axes, (metric, pair) in zip(panels, metrics.items(), strict=True):
        _bars(axes, list(zip(labels, pair, (MUTED, ACCENT), strict=True)))
        _label(axes, title=metric)
    return figure


def as_svg(figure: Figure) -> str:
    """Return a figure as SVG text, with its letters as outlines: it needs no font and no network, and is the same every time."""
    from matplotlib import rc_context

    stream = io.StringIO()
    with rc_context({"svg.hashsalt": "collab", "svg.fonttype": "path"}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    return stream.getvalue()[stream.getvalue().index("<svg") :]


def darkened(svg: str) -> str:
    """Return the SVG of one of our figures in the colours of the dark theme."""
    return re.sub(r"#[0-9a-f]{6}\b", lambda match: _DARK.get(match[0], match[0]), svg)


def _figure(panels: int, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure of 7.2 inches by `height` with so many panels in a row, in rows of three."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if panels < 1:
        raise ValueError("nothing to draw: no series were given")
    columns = min(panels, 3)
    rows = -(-panels // columns)
    figure = Figure(figsize=(7.2, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False)
    every = list(grid.ravel())
    for axes in every[panels:]:
        axes.remove()
    for axes in every[:panels]:
        axes.set_facecolor("none")
        axes.grid(axis="y", color=LINE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(colors=MUTED, labelsize=8.5, length=0)
        for side, spine in axes.spines.items():
            spine.set_visible(side == "bottom")
            spine.set_color(LINE)
    return figure, every[:panels]


def _label(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> None:
    axes.set_title(_literal(title), fontsize=10, color=INK, loc="left", fontweight="bold")
    axes.set_xlabel(_literal(x), fontsize=9, color=MUTED)
    axes.set_ylabel(_literal(y), fontsize=9, color=MUTED)


def _legend(axes: Axes, *, above: bool = False) -> None:
    """Name the series: inside, where there is most room, or in a line above where the plot may fill its frame."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return
    place: dict[str, Any] = {"loc": "best"}
    if above:
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": min(4, len(labels)), "borderaxespad": 0.3}
    axes.legend(handles, [_literal(label) for label in labels], fontsize=8.5, labelcolor=INK, frameon=False, **place)


def _shared_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """Name the series once for all panels, above them."""
    named: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    if named:
        columns = min(4, len(named))
        labels = [_literal(label) for label in named]
        figure.legend(
            list(named.values()), labels, loc="outside upper left", ncols=columns, fontsize=8.5, labelcolor=INK, frameon=False
        )


def _ticks(axes: Axes, names: Sequence[str]) -> None:
    """Name the bars; names that would run into each other are slanted."""
    axes.set_xticks(range(len(names)), [_literal(name) for name in names])
    place = axes.get_subplotspec()
    columns = place.get_gridspec().ncols if place else 1
    if max(map(len, names)) * len(names) > 72 / columns:
        axes.tick_params(axis="x", rotation=30)
        for text in axes.get_xticklabels():
            text.set_horizontalalignment("right")
            text.set_rotation_mode("anchor")
    axes.axhline(0, color=LINE, linewidth=1.0, zorder=0.5)


def _bars(axes: Axes, bars: Sequence[tuple[str, Estimate, str]]) -> None:
    decimals = _decimals([estimate for _, estimate, _ in bars])
    for place, (_, estimate, colour) in enumerate(bars):
        _bar(axes, place, estimate, colour, 0.66, decimals)
    _ticks(axes, [name for name, _, _ in bars])
    axes.set_xlim(-0.6, len(bars) - 0.4)
    if not any(map(any, (_parts(estimate) for _, estimate, _ in bars if estimate is not None))):
        axes.set_ylim(0, 1)  # nothing but zeros has no scale of its own


def _bar(
    axes: Axes, where: float, estimate: Estimate, colour: str, width: float, decimals: int, label: str | None = None
) -> None:
    """Draw one bar with its whisker and its value; where there is no value a dash, which is not a bar of height 0."""
    if label is not None:
        axes.bar(where, 0, color=colour, label=label)
    if estimate is None:
        axes.annotate("–", (where, 0), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=9, color=MUTED)
        return
    value, below, above = _parts(estimate)
    axes.bar(where, value, width, color=colour)
    if below or above:
        axes.errorbar(where, value, yerr=[[below], [above]], color=INK, linewidth=1.1, capsize=2.5)
    edge, offset, align = (value + above, 3, "bottom") if value >= 0 else (value - below, -3, "top")
    text, size = f"{value:,.{decimals}f}", 8 if width > 0.2 else 7
    axes.annotate(
        text, (where, edge), xytext=(0, offset), textcoords="offset points", ha="center", va=align, fontsize=size, color=INK
    )
    axes.margins(y=0.15)


def _decimals(estimates: Sequence[Estimate]) -> int:
    """Return how many decimals the bars of one panel are labelled with."""
    largest = max((abs(_parts(estimate)[0]) for estimate in estimates if estimate is not None), default=0.0)
    return 0 if largest >= 100 else 1 if largest >= 10 else 2


def _parts(estimate: Interval | MeanEstimate | float) -> tuple[float, float, float]:
    """Return (value, how far the whisker goes below it, how far above)."""
    match estimate:
        case Interval(estimate=value, low=low, high=high):
            return (
                (value, max(0.0, value - low), max(0.0, high - value)) if low is not None and high is not None else (value, 0, 0)
            )
        case MeanEstimate(mean=value, std_error=error):
            return value, error or 0.0, error or 0.0
        case _:
            return float(estimate), 0.0, 0.0


def _literal(text: str) -> str:
    """Keep matplotlib from reading a name as mathematics, or as a series to leave out of the legend."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def _unique(names: Any) -> list[str]:
    return list(dict.fromkeys(names))
