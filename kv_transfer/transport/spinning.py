"""Whether to spin for an answer that is about to come: waking up from the kernel takes longer than many answers do.

A wait is spun through only where the one before it on the same wire was short, for as long as a short one lasts. One
spin that brings nothing ends it until a wait was short again, and so does a turn of the event loop that took long:
then others want the loop, or the processor, which is offered to them on every turn. So nothing spins on an idle wire,
and a machine without a processor to spare gets at most one spin per answer.
"""

from typing import Final

SPIN_S: Final = 0.0003
"""The longest wait that counts as short: a little more than a small pull takes at its holder."""
TURN_S: Final = 0.0001
"""A turn of an event loop with little to do takes a tenth of this."""


class Spin:
    """Decides for one wire; times are seconds of one clock."""

    def __init__(self) -> None:
        self._worthwhile = False
        self._began: float | None = None
        self._last = 0.0

    def again(self, now: float) -> bool:
        """There is nothing yet: whether to look again once others had their turns. If not, it is better to sleep."""
        if self._began is None:
            self._began = self._last = now
        elif now - self._last > TURN_S or now - self._began > SPIN_S:
            self._worthwhile = False
        self._last = now
        return self._worthwhile

    def over(self, now: float) -> None:
        """There is something. If it had to be waited for, however that was spent, the next wait goes by it."""
        if self._began is not None:
            self._worthwhile = now - self._began <= SPIN_S
            self._began = None
