"""What a federated run cost, as a table for the terminal: joules by kind, and bytes as charged and as they crossed."""

import json
from pathlib import Path


def traffic_table(folder: Path) -> str:
    """Per method and seed: joules by phase and kind, then kilobytes that the link charges, payload and network."""
    summary = json.loads((folder / "summary.json").read_text())
    lines = []
    for name, method in summary["methods"].items():
        joules = ", ".join(
            f"{phase} {cell['joules']:.3g} ({kind})"
            for phase, kinds in method["energy"].items()
            for kind, cell in kinds.items()
        )
        t = {column: amount / 1000 for column, amount in method["traffic"].items()}
        lines.append(
            f"{name:<16}  {joules}\n{'':<16}  up {t['charged_up']:.1f} {t['payload_up']:.1f} {t['network_up']:.1f} kB, "
            f"down {t['charged_down']:.1f} {t['payload_down']:.1f} {t['network_down']:.1f} kB "
            "(charged by the link, payload, over the network)"
        )
        if method["skipped"]:
            lines.append(f"{'':<16}  {method['skipped']} answers were left out: see skipped.csv")
    return "\n".join(lines)
