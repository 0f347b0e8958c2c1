"""The page of a run that is under way: where it stands, in plain HTML that loads itself again and runs no script."""

from typing import NamedTuple

from fewjoule.reporting.colours import DARK, LIGHT, as_css
from fewjoule.reporting.wording import asset, templates


class RunState(NamedTuple):
    """One method with one seed; `rounds` are those done and those there are, None where the run is not under way."""

    method: str
    seed: int
    state: str
    rounds: tuple[int, int] | None


class AgentState(NamedTuple):
    name: str
    connection: str
    note: str


class Standing(NamedTuple):
    """Where a run stands. `amounts` are names and texts: bytes, joules of each kind, the last loss."""

    title: str
    state: str
    note: str  # why it waits or ended
    at: str  # date and time
    runs: list[RunState]
    amounts: list[tuple[str, str]]
    agents: list[AgentState]


def live_page(standing: Standing, seconds: int | None) -> str:
    """The page; a browser loads it again after `seconds`, never where that is None. All text is escaped."""
    return (
        templates(autoescape=True)
        .get_template("live.html")
        .render(**standing._asdict(), seconds=seconds, light=as_css(LIGHT), dark=as_css(DARK), css=asset("page.css"))
    )
