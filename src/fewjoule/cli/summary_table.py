"""The result of a run on the screen: one line per method, best first, from summary.json."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def print_summary(folder: Path) -> None:
    """Quality at the headline number of steps, and joules by phase with how they are known."""
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    metric, statistic, at = summary["metric"], summary["statistic"], str(summary["headline_steps"])
    sign = -1 if summary["better"] == "higher" else 1
    kinds = {kind for m in summary["methods"].values() for kind in m["energy"].get("computation", {})}
    table = Table(title=f"{summary['title']}: per run, all agents together", title_justify="left")
    table.add_column("method")
    table.add_column(f"{statistic} {metric}\nafter {at} steps", justify="right")
    table.add_column("best on this\nshare of tasks", justify="right")
    table.add_column("radio up\nJ, analytic", justify="right")
    table.add_column(f"arithmetic\nJ, {'/'.join(sorted(kinds)) or 'none'}", justify="right")

    def score(method: dict[str, Any]) -> float | None:
        return method["quality"][at][metric][statistic] if method["quality"] else None

    ranked = sorted(summary["methods"].values(), key=lambda m: (score(m) is None, sign * (score(m) or 0.0)))
    for method in ranked:
        value = score(method)
        gone = f" ({len(method['diverged'])} of {len(summary['seeds'])} seeds diverged)" if method["diverged"] else ""
        table.add_row(
            method["label"] + gone,
            "diverged" if not method["quality"] else "overflow" if value is None else f"{value:.3g}",
            f"{method['share_best']:.0%}",
            _joules(method, "uplink"),
            _joules(method, "computation"),
        )
    Console(highlight=False).print(table)


def _joules(method: dict[str, Any], phase: str) -> str:
    amounts = method["energy"].get(phase, {})
    joules = sum(a["joules"] for a in amounts.values())
    return f"{joules:,.0f}" if joules >= 100 else f"{joules:.3g}"
