"""Pictures of a benchmark, drawn with matplotlib (the ``bench`` extra)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.errors import ConfigError
from octavo.frontends.bench.metrics import NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def require_matplotlib() -> None:
    """Raises ConfigError that says how to install it. Asked before anything long runs."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'octavo[bench]'") from None


def plot_distributions(path: Path, title: str, series: Mapping[str, Sequence[float]], finished: Sequence[tuple[float, int]] = ()) -> None:
    """One panel a metric: which share of the samples (seconds, shown in ms) is at most x. ``finished``: (second, tokens) of each request's end,
    drawn as output tokens so far. Raises ConfigError if ``path`` cannot be written."""
    require_matplotlib()
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    drawn = {name: sorted(1e3 * value for value in values) for name, values in series.items() if values}
    panels = len(drawn) + bool(finished)
    figure, axes = plt.subplots(1, max(1, panels), figsize=(4.2 * max(1, panels), 3.6), squeeze=False, layout="constrained")
    for axis, (name, values) in zip(axes[0], drawn.items(), strict=False):
        _cumulative(axis, NAMES.get(name, name), values)
    if finished:
        _progress(axes[0][len(drawn)], finished)
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {error}") from None
    finally:
        plt.close(figure)


def _cumulative(axis: Any, name: str, values: Sequence[float]) -> None:
    axis.plot(values, [(i + 1) / len(values) for i in range(len(values))], drawstyle="steps-post")
    for q in (0.5, 0.99):
        axis.axhline(q, linewidth=0.6, linestyle=":", color="grey")
    axis.set(xlabel="ms", ylabel="share of samples", title=name, ylim=(0, 1.01))
    axis.set_xlim(left=0)
    axis.grid(alpha=0.25)


def _progress(axis: Any, finished: Sequence[tuple[float, int]]) -> None:
    total, xs, ys = 0, [0.0], [0]
    for second, tokens in sorted(finished):
        total += tokens
        xs.append(second)
        ys.append(total)
    axis.plot(xs, ys, drawstyle="steps-post")
    axis.set(xlabel="s", ylabel="output tokens", title="tokens of finished requests")
    axis.grid(alpha=0.25)
