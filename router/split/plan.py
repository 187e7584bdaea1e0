"""Decides which workers of role `auto` take prompts for others. Pure: no clock, no I/O."""

from collections import deque
from collections.abc import Iterator, Sequence

from router.settings import SplitSettings
from router.split.values import Outlook, Seen, Split, Standing, WorkTimes
from tandem.core.slo import Slo


class Planner:
    """Of one service. `split` is what is to be in force."""

    def __init__(self, settings: SplitSettings) -> None:
        self._settings = settings
        self._seen: deque[Seen] = deque(maxlen=settings.requests_max)
        self.split = Split(frozenset(), None, "nothing has been seen yet: every worker takes prompts and decodes")
        self.outlooks: tuple[Outlook, ...] = ()
        """Of the last look, the best first."""
        self.last_look_s: float | None = None
        self.moves = 0
        """How many workers have changed what they take."""
        self.forecast_error: float | None = None
        """Mean difference of the attainment that was forecast from the one that was observed; None while unknown."""

    def seen(self, request: Seen) -> None:
        """A request was placed for the first time."""
        self._seen.append(request)

    def outcome(self, arrival_s: float, met: bool) -> None:
        """A request that arrived then has ended, within its objective or not. Those that their clients cancelled are
        not told."""

    def look(
        self, now: float, standings: Sequence[Standing], times: WorkTimes, slo: Slo, share: float = 1.0
    ) -> Iterator[None]:
        """Look at the ways there are: yields after every slice of work, so that an event loop gets its turn. When it
        is exhausted `split` is what is to be in force. `share` is the share of the service's requests that are told
        here."""
        self.last_look_s = now
        present = {standing.worker_id for standing in standings}
        kept = self.split.prefills & present
        if kept != self.split.prefills:
            self.split = self.split._replace(prefills=kept)
        yield
