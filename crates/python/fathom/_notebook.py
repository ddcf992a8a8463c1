"""What notebooks show: plain HTML and SVG, without widgets."""

from __future__ import annotations

import sys
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from fathom._run import Run
    from fathom._table import Table


def display_of() -> Callable[[str], None] | None:
    """A function that shows HTML in one place of the running cell; None outside notebooks."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython  # type: ignore[import-not-found, unused-ignore]
    from IPython import display as shown  # type: ignore[import-not-found, unused-ignore]

    HTML: Any = shown.HTML
    display: Any = shown.display

    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    handle: Any = display(HTML(""), display_id=True)
    return lambda text: handle.update(HTML(text))


def line(points: list[tuple[float, float]], width: int = 420, height: int = 120) -> str:
    """A line as SVG, with the first and last values."""
    if len(points) < 2:
        return ""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)

    def at(x: float, y: float) -> str:
        across = (x - left) / ((right - left) or 1) * width
        up = height - (y - low) / ((high - low) or 1) * height
        return f"{across:.1f},{up:.1f}"

    path = " ".join(at(x, y) for x, y in points)
    return (
        f'<svg width="{width + 70}" height="{height + 20}" viewBox="-4 -10 {width + 70} {height + 20}">'
        f'<polyline points="{path}" fill="none" stroke="#2a6fb0" stroke-width="1.5"/>'
        f'<text x="{width + 6}" y="10" font-size="11">{high:.4g}</text>'
        f'<text x="{width + 6}" y="{height}" font-size="11">{low:.4g}</text></svg>'
    )


def progress_html(text: str, losses: list[tuple[int, float]]) -> str:
    """The progress of a run: its figures, and the loss so far."""
    points = [(float(step), loss) for step, loss in losses]
    thinned = points[:: max(1, len(points) // 400)]
    return f"<div>{escape(text)}</div>{line(thinned)}"


def run_html(run: Run) -> str:
    """A run: its outcome, its loss, and samples of what it writes."""
    losses, samples = [], []
    for event in run.events:
        if event.get("event") == "step" and event.get("loss") is not None:
            losses.append((int(event["step"]), float(event["loss"])))
        elif event.get("event") == "sample":
            samples.append(event)
    parts = [progress_html(f"{run.folder}: {run.outcome}, {len(losses)} steps", losses)]
    for sample in samples[-2:]:
        parts.append(f"<pre><b>{escape(sample['prompt'])}</b>{escape(sample['text'])}</pre>")
    return "".join(parts)


def needles_html(table: Table) -> str:
    """The grid of needles: a cell for each length and depth, green where they were found."""
    rows = table.to_pylist()
    names = table.columns
    length = next((name for name in names if "length" in name or "tokens" in name), None)
    depth = next((name for name in names if "depth" in name), None)
    found = next((name for name in names if name in ("accuracy", "share", "found", "right")), None)
    if not rows or length is None or depth is None or found is None:
        return ""
    lengths, depths = sorted({row[length] for row in rows}), sorted({row[depth] for row in rows})
    value = {(row[length], row[depth]): float(row[found] or 0) for row in rows}
    most = max([*value.values(), 1.0])
    head = "".join(f"<th>{at}</th>" for at in lengths)
    body = "".join(
        f"<tr><th>{at}</th>"
        + "".join(
            f'<td style="background:hsl({120 * value.get((of, at), 0) / most:.0f} 60% 70%)">{value.get((of, at), 0):g}</td>'
            for of in lengths
        )
        + "</tr>"
        for at in depths
    )
    return f"<table><tr><th>depth</th>{head}</tr>{body}</table>"
