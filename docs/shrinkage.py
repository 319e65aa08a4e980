"""Draw docs/shrinkage.svg, the example by hand in docs/hierarchical.md: python docs/shrinkage.py."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#2166ac", "#d6604d", "#666666"
USERS = {"ann": (4, 0.75, BLUE), "bob": (1, 0.0, ORANGE)}  # payoffs, their mean, colour
NOISE, BETWEEN, MEAN = 0.1, 0.05, 0.5  # κ, s² and the population's mean
STYLE = {"font.size": 10, "svg.hashsalt": "shrinkage", "svg.fonttype": "none", "font.family": "sans-serif"}


def weight(n: float) -> float:
    """Return how much a user's own mean counts after n payoffs."""
    return n * BETWEEN / (n * BETWEEN + NOISE)


def draw() -> Figure:
    """Return the figure: estimates between own and population's mean, and the weight by number of payoffs."""
    figure = Figure(figsize=(8, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1.35, 1])
    left.axvline(MEAN, color=GREY, linewidth=1, linestyle="--")
    left.text(MEAN, 1.62, "population's mean", ha="center", color=GREY)
    for y, (n, own, colour) in zip((1, 0), USERS.values(), strict=True):
        estimate = weight(n) * own + (1 - weight(n)) * MEAN
        arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.5, "shrinkA": 6, "shrinkB": 5}
        left.annotate("", (estimate, y), (own, y), arrowprops=arrow)
        left.plot(
            own, y, "o", markersize=9, markerfacecolor="white", markeredgecolor=colour, markeredgewidth=1.5
        )
        left.plot(estimate, y, "o", markersize=9, color=colour)
        left.text(own, y - 0.38, f"own mean\n{own:.2f}", ha="center", va="center", color=colour, fontsize=9)
        left.text(
            estimate, y + 0.26, f"estimate {estimate:.2f}", ha="center", va="center", color=colour, fontsize=9
        )
    left.set(xlim=(-0.12, 1.0), ylim=(-0.75, 1.55), xlabel="payoff", xticks=[0, 0.25, 0.5, 0.75, 1])
    left.set_yticks(
        [1, 0], [f"{name}\n{n} payoff{'s' if n > 1 else ''}" for name, (n, _, _) in USERS.items()]
    )
    left.tick_params(axis="y", length=0)

    line = np.linspace(0, 12, 200)
    right.plot(line, [weight(n) for n in line], color=GREY)
    for name, (n, _, colour) in USERS.items():
        right.plot(n, weight(n), "o", markersize=9, color=colour)
        right.text(n + 0.5, weight(n) - 0.1, name, color=colour)
    right.set(xlim=(0, 12), ylim=(0, 1.03), xlabel="payoffs of the user", ylabel="weight of the own mean")
    right.set_xticks([0, 2, 4, 6, 8, 10, 12])
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


if __name__ == "__main__":
    with mpl.rc_context(STYLE):
        figure = draw()
        figure.savefig(Path(__file__).with_suffix(".svg"), facecolor="white", metadata={"Date": None})
