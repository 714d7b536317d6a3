"""The results as text: a line for each side of each row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from benchmarks.row import Result

HEADINGS = ("what", "side", "median", "min - max", "", "ratio", "target", "")


def lines(results: Iterable[Result]) -> Iterator[str]:
    """Columns as wide as what is in them."""
    cells = [HEADINGS, *(line for result in results for line in _cells(result))]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADINGS))]
    for number, row in enumerate(cells):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        if number == 0:
            yield "  ".join("-" * width for width in widths)


def _cells(result: Result) -> Iterator[tuple[str, ...]]:
    row = result.row
    ours_first = sorted(result.values, key=lambda side: side != row.ours)
    for number, side in enumerate(ours_first):
        values = result.values[side]
        median = result.median(side)
        spread = f"{shown(min(values))} - {shown(max(values))}" if len(values) > 1 else ""
        ratio, target, verdict = _judged(result) if side == row.ours else ("", "", "")
        yield (row.title if number == 0 else "", side, shown(median), spread, row.unit, ratio, target, verdict)
    for side, reason in result.missing.items():
        yield ("", side, "-", "", reason, "", "", "")


def _judged(result: Result) -> tuple[str, str, str]:
    ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
    target = "" if result.row.target is None else result.row.target.told(result.row.unit)
    return ratio, target, verdict(result)


def verdict(result: Result) -> str:
    word = {True: "met", False: "MISSED", None: ""}[result.is_met]
    return f"{word} (disturbed)" if result.disturbed else word


def shown(value: float | None) -> str:
    """Three digits that matter."""
    if value is None:
        return "-"
    for least, form in ((100, "{:,.0f}"), (10, "{:.1f}"), (0, "{:.2f}")):
        if abs(value) >= least:
            return form.format(value)
    return "-"
