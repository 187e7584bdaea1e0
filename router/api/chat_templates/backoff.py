"""For how long a template that was given up is not tried again."""

from typing import Final

_FIRST_S: Final = 30.0
_LONGEST_S: Final = 480.0
_SMALL_BYTES: Final = 8192


class TemplateBackoff:
    """Of one template. Each time that it is given up again after its time was over is twice as long.

    A template that takes too much for a large conversation may be fine for ordinary ones: those of less than half the
    size are still tried, down to a size that every template has to manage.
    """

    def __init__(self) -> None:
        self._length_s = 0.0
        self._until = 0.0
        self._from_bytes = 0
        self.why = ""

    def left_s(self, size_bytes: int, now: float) -> float:
        """For how long a conversation of this size is refused; 0 when it is not."""
        return max(0.0, self._until - now) if size_bytes >= self._from_bytes else 0.0

    def give_up(self, size_bytes: int, now: float, why: str) -> None:
        """A conversation of this size took too much."""
        if now >= self._until:
            self._length_s = min(_LONGEST_S, 2 * self._length_s or _FIRST_S)
        self._until = now + self._length_s
        self._from_bytes = 0 if size_bytes <= _SMALL_BYTES else size_bytes // 2
        self.why = why

    def rendered(self, size_bytes: int) -> None:
        """A conversation of this size went well: if it is one that was refused before, all is forgotten."""
        if self._length_s and size_bytes >= self._from_bytes:
            self._length_s = self._until = 0.0
