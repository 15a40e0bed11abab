"""The figures as a table, as Markdown, as JSON."""

from __future__ import annotations

from cases import KURMA, Figure
from measuring import Conditions, median


def text(conditions: Conditions, figures: list[Figure]) -> str:
    """For the terminal. Medians, and in brackets the least and the most."""
    lines = [str(conditions)]
    for figure in figures:
        lines += ["", f"{figure.name}: {figure.what.replace('`', '')}"]
        for side, values in figure.values.items():
            ratio = "" if side == KURMA else f"   kurma takes {figure.ratio(side):.2f} of it"
            spread = f"({min(values):.1f}-{max(values):.1f}, {len(values)} runs)"
            lines.append(f"  {side:24}{median(values):9.1f} {figure.unit:4}{spread:28}{ratio}")
        if figure.target is not None:
            peer, most = figure.target
            kept = "kept" if figure.ratio(peer) <= most else "NOT kept"
            lines.append(f"  aim: at most {most} of {peer}: {kept}")
        if figure.note:
            lines.append(f"  {figure.note}")
    return "\n".join(lines)


def markdown(conditions: Conditions, figures: list[Figure]) -> str:
    """For docs/explanation/benchmarks.md."""
    lines = ["| | what | kurma | peers | ratio | aim |", "|---|---|---|---|---|---|"]
    for figure in figures:
        peers = [side for side in figure.values if side != KURMA]
        theirs = "; ".join(f"{side} {median(figure.values[side]):.1f}" for side in peers)
        ratios = "; ".join(f"{figure.ratio(side):.2f}" for side in peers)
        aim = "" if figure.target is None else f"≤ {figure.target[1]} × {figure.target[0]}"
        what = figure.what + (f" ({figure.note})" if figure.note else "")
        ours = f"{median(figure.values[KURMA]):.1f} {figure.unit}"
        lines.append(f"| {figure.name} | {what} | {ours} | {theirs} | {ratios} | {aim} |")
    return f"Medians; {conditions}.\n\n" + "\n".join(lines)


def document(conditions: Conditions, figures: list[Figure]) -> dict[str, object]:
    """For programs: every single value."""
    return {
        "conditions": {
            "processors": conditions.processors,
            "kernel": conditions.kernel,
            "load": list(conditions.load),
            "busy": conditions.busy,
            "quiet": conditions.quiet,
        },
        "figures": [
            {
                "name": figure.name,
                "what": figure.what,
                "unit": figure.unit,
                "sides": {
                    side: {
                        "median": median(values),
                        "values": list(values),
                        "ratio": None if side == KURMA else figure.ratio(side),
                    }
                    for side, values in figure.values.items()
                },
                "aim": None if figure.target is None else {"peer": figure.target[0], "ratio": figure.target[1]},
                "note": figure.note or None,
            }
            for figure in figures
        ],
    }
