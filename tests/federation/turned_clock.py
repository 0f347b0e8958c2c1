"""A clock that tests turn."""

from datetime import UTC, datetime, timedelta

BEGIN = datetime(2027, 1, 1, tzinfo=UTC)


class TurnedClock:
    def __init__(self, at: datetime = BEGIN) -> None:
        self.at = at

    def __call__(self) -> datetime:
        return self.at

    def pass_days(self, days: float) -> None:
        self.at += timedelta(days=days)
