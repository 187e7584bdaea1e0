"""Whether to spin for an answer that is about to come: waking up from the kernel takes longer than many answers do.

A wait is spun through only where the one before it on the same wire was short, for as long as a short one lasts. One
spin that brings nothing ends it until a wait was short again, and so does a turn of the event loop that took long:
then others want the loop, or the processor. So nothing spins on an idle wire, and a machine without a processor to
spare gets at most one spin per answer.
"""

from typing import Final

SPIN_S: Final = 0.0003
"""The longest wait that counts as short: a little more than a small pull takes at its holder."""
_TURN_S: Final = 0.0001
"""A turn of an event loop with little to do takes a tenth of this."""


class Spin:
    """Decides for one wire; times are seconds."""

    def __init__(self) -> None:
        self._worthwhile = False

    def budget_s(self) -> float:
        """How long to spin before sleeping; 0 for not at all."""
        return SPIN_S if self._worthwhile else 0.0

    def waited(self, seconds: float) -> None:
        """A wait is over, however it was spent."""
        self._worthwhile = seconds <= SPIN_S

    def crowded(self, turn_s: float) -> bool:
        """Whether a turn of the loop took so long that others need what a spin takes."""
        return turn_s > _TURN_S
