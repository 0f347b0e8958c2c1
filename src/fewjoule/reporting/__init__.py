"""Run folder to charts, tables and one page. It reads nothing but the folder."""

from pathlib import Path

__all__ = ["write_report"]


def write_report(folder: str | Path) -> Path:
    """Make `figures/` and `report.html` of a run folder and return the page's path; the same folder, the same bytes."""
    from fewjoule.reporting.write import write  # charts are slow to import, and most commands draw none

    return write(Path(folder))
