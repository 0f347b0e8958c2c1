"""A run folder in a few lines, for a terminal or a notebook: quality and joules of every method."""

from typing import TYPE_CHECKING, Any, NamedTuple

from fewjoule.energy.ledger import TRAINING, WITH_SERVER
from fewjoule.energy.show import si_text

if TYPE_CHECKING:
    from fewjoule.reporting.run_folder import RunFolder


class _Row(NamedTuple):
    label: str
    score: float | None
    why: str  # there is no score
    by_kind: dict[str, float]  # joules of the training, per seed
    with_server: dict[str, float]  # the same and what the server learned by itself


def _rows(folder: "RunFolder") -> list[_Row]:
    """The methods, the best first, those that diverged last."""
    s = folder.summary
    rows = []
    for name, method in s.methods.items():
        by_kind, with_server = (
            {k: j / len(s.seeds) for k, j in folder.ledger.select(method=name, phase=phases).by_kind().items()}
            for phases in (TRAINING, WITH_SERVER)
        )
        score = s.score(name, s.headline_steps)
        why = "" if score is not None else s.no_score(name, s.headline_steps)
        rows.append(_Row(method.label, score, why, by_kind, with_server))
    sign = 1 if s.better == "lower" else -1
    return sorted(rows, key=lambda row: (row.score is None, sign * (row.score or 0.0)))


def _what(folder: "RunFolder") -> str:
    s = folder.summary
    return f"{s.statistic} {s.metric} after {s.headline_steps} steps"


def table(folder: "RunFolder") -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: method, quality, joules of the training by kind, and with the server's where any learned."""
    header: tuple[str, ...] = ("method", _what(folder), "joules of the training")
    found = _rows(folder)
    served = any(row.with_server != row.by_kind for row in found)
    rows: list[tuple[str, ...]] = []
    for row in found:
        totals = [
            " + ".join(f"{si_text(amount, 'J')} {kind}" for kind, amount in total.items()) or "nothing"
            for total in (row.by_kind, row.with_server)[: 1 + served]
        ]
        rows.append((row.label, row.why if row.score is None else f"{row.score:.3g}", *totals))
    return (*header, "with the server") if served else header, rows


def chart(folder: "RunFolder") -> Any:
    """Quality against joules of the training, all kinds together: an Altair chart."""
    import altair as alt

    rows = [
        {"method": row.label, "joules": sum(row.by_kind.values()), "quality": row.score}
        for row in _rows(folder)
        if row.score is not None and row.by_kind
    ]
    scale = alt.Scale(type="log" if folder.summary.metric == "loss" else "linear", zero=False)
    points = alt.Chart(alt.InlineData(values=rows)).encode(
        x=alt.X("joules:Q", scale=alt.Scale(type="log")),
        y=alt.Y("quality:Q", title=_what(folder), scale=scale),
        tooltip=["method:N", "joules:Q", "quality:Q"],
    )
    return points.mark_point(filled=True) + points.mark_text(align="left", dx=8).encode(text="method:N")
