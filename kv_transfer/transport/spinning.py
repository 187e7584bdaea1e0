"""Decides whether to spin for an answer that is about to come: waking up from the kernel takes longer than many
answers do.

A wait spins only if the previous wait on the same wire was short, and only for as long as a short wait lasts.
Spinning ends with the first spin that brings nothing, until a wait is short again. It also ends with a turn of the
event loop that took long: other tasks then want the loop, or other programs the processor, which every turn offers to
them. So no idle wire spins, and a machine without a spare processor spins at most once per answer.
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
        """Whether to look again after other tasks had their turns, given that nothing has arrived yet. If not,
        sleeping is better."""
        if self._began is None:
            self._began = self._last = now
        elif now - self._last > TURN_S or now - self._began > SPIN_S:
            self._worthwhile = False
        self._last = now
        return self._worthwhile

    def over(self, now: float) -> None:
        """Record that something has arrived. If it had to be waited for, spinning or not, the next wait goes by the
        length of this one."""
        if self._began is not None:
            self._worthwhile = now - self._began <= SPIN_S
            self._began = None
