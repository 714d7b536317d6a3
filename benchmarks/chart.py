"""The results as a picture: plain SVG, readable on a light page and on a dark one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape

from benchmarks.row import Result
from benchmarks.table import shown, verdict

WIDTH, LEFT, BAR_WIDTH = 880, 250, 440
BAR, GAP, HEAD = 16, 6, 34
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 13px; }
.note { fill: #59636e; }
.ours { fill: #1a7f5a; } .other { fill: #a8b1bb; }
.spread { stroke: #1f2328; stroke-width: 1.5; }
.bound { stroke: #bc4c00; stroke-width: 2; stroke-dasharray: 3 2; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .note { fill: #9198a1; }
  .ours { fill: #3fb58a; } .other { fill: #59636e; }
  .spread { stroke: #e6edf3; } .bound { stroke: #f0883e; }
}
"""


def draw(results: Iterable[Result], facts: Mapping[str, str]) -> str:
    """A block for each row: a bar for each side, its spread, and where the target is."""
    parts: list[str] = []
    y = 30
    for result in results:
        if result.values:
            parts += _block(result, y)
            y += HEAD + len(result.values) * (BAR + GAP) + GAP
    title = "dramatiq-outbox: each row has its own scale; the dashed line is the target"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 24}" role="img">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style>",
            f'<text class="note" x="10" y="20">{title}</text>',
            *parts,
            f'<text class="note" x="10" y="{y + 10}">{escape(facts.get("machine", ""))}</text>',
            "</svg>",
            "",
        ]
    )


def _block(result: Result, y: int) -> Iterator[str]:
    row = result.row
    target = "" if row.target is None else f"target {row.target.told(row.unit)}"
    ratio = "" if result.ratio is None or row.target is None or not row.target.beside else f"ratio {result.ratio:.2f}"
    notes = ", ".join(note for note in (ratio, target, verdict(result)) if note)
    yield f'<text class="title" x="10" y="{y + 20}">{escape(row.title)}</text>'
    yield f'<text class="note" x="{WIDTH - 10}" y="{y + 20}" text-anchor="end">{escape(notes)}</text>'
    bound = _bound(result)
    most = max([*(max(values) for values in result.values.values()), 0.0 if bound is None else bound]) or 1.0
    sides = sorted(result.values, key=lambda side: side != row.ours)
    for number, side in enumerate(sides):
        top = y + HEAD + number * (BAR + GAP)
        yield from _bar(result, side, top, BAR_WIDTH / most)
    if bound is not None:
        x = LEFT + bound * BAR_WIDTH / most
        bottom = y + HEAD + len(sides) * (BAR + GAP) - GAP
        yield f'<line class="bound" x1="{x:.1f}" x2="{x:.1f}" y1="{y + HEAD - 3}" y2="{bottom + 3}"/>'


def _bar(result: Result, side: str, top: int, scale: float) -> Iterator[str]:
    values, median = result.values[side], result.median(side)
    kind = "ours" if side == result.row.ours else "other"
    length = (median or 0.0) * scale
    low, high = (LEFT + value * scale for value in (min(values), max(values)))
    middle = top + BAR / 2
    yield f'<text x="{LEFT - 8}" y="{top + 12}" text-anchor="end">{escape(side)}</text>'
    yield f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{length:.1f}" height="{BAR}" rx="2"/>'
    yield f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>'
    told = f"{shown(median)} {result.row.unit}"
    yield f'<text x="{LEFT + BAR_WIDTH + 12}" y="{top + 12}">{escape(told)}</text>'


def _bound(result: Result) -> float | None:
    """The target as a value of this row."""
    target = result.row.target
    if target is None:
        return None
    if not target.beside:
        return target.bound
    ours, ratio = result.median(result.row.ours), result.ratio
    return None if ours is None or not ratio else target.bound * ours / ratio
