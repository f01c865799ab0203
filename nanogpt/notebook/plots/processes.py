"""Pictures of training by several processes: losses that agree but for rounding."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from . import style
from .style import BLUE, GREEN, GREY, ORANGE, VERMILION, new_figure, styled

LOOKS = ((VERMILION, "-", "o"), (GREEN, "--", "s"), (BLUE, ":", "x"), (ORANGE, "-.", "+"))
LEAST = 1e-8  # what an axis of differences shows for none


@styled
def losses_by_processes(runs: Sequence[dict], apart: Sequence[Sequence[float]]) -> Figure:
    """The loss by step, and how far each run is from the first; `runs` as `by_torchrun` gives."""
    figure, (above, below) = new_figure(4.6, rows=2, sharex=True, height_ratios=(1, 1.2))
    style.headline(figure, "Any number of processes: the same losses, but for rounding")
    steps = range(1, len(runs[0]["losses"]) + 1)
    for run, own, (colour, dash, mark) in zip(runs[1:], apart[1:], LOOKS * 2, strict=False):
        look = {"color": colour, "ls": dash, "marker": mark, "ms": 5, "lw": 0.8}
        above.plot(steps, run["losses"], label=run_name(run), **look)
        below.plot(steps, [max(value, LEAST) for value in own], **look)
    above.plot(steps, runs[0]["losses"], color=GREY, lw=0.8, label="1 process")
    above.set_ylabel("loss of the batch")
    above.legend(fontsize=8)
    style.log_axis(below, "y", [LEAST, 1e-7, 1e-6, 1e-5], ["none", "10⁻⁷", "10⁻⁶", "10⁻⁵"])
    below.set_ylim(LEAST / 2, max(1e-5, 2 * max(map(max, apart))))
    below.set(xlabel="step", ylabel="from that of 1 process")
    below.xaxis.get_major_locator().set_params(integer=True)
    return figure


def run_name(run: dict) -> str:
    """As in "4 processes, two hosts"."""
    many = "es" if run["processes"] > 1 else ""
    return f"{run['processes']} process{many}{', two hosts' if run['agents'] > 1 else ''}"
