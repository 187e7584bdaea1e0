"""Determines how long a router waits between two dials of one member."""

import asyncio

from router.settings import FleetSettings


class Redial:
    """Waits double from the first to the longest. One of many lost workers that answers again ends every wait: then
    others may answer too."""

    def __init__(self, settings: FleetSettings, answers: asyncio.Event) -> None:
        """`answers` is set for a moment when dialing again at once is worth it."""
        self._settings = settings
        self._answers = answers
        self._wait_s = settings.redial_first_s

    def refused(self) -> None:
        """The member cannot be worked with as it is."""
        self._wait_s = self._settings.refused_redial_s

    def lasted(self, for_s: float) -> None:
        """A dial and the link after it took so long."""
        if for_s > self._settings.redial_max_s:
            self._wait_s = self._settings.redial_first_s

    async def pause(self) -> None:
        """Wait until the next dial."""
        try:
            async with asyncio.timeout(self._wait_s):
                await self._answers.wait()
            self._wait_s = self._settings.redial_first_s
        except TimeoutError:
            self._wait_s = min(2 * self._wait_s, max(self._wait_s, self._settings.redial_max_s))
