"""The back-off during which a template that was given up is not tried again."""

from typing import Final

_FIRST_S: Final = 30.0
_LONGEST_S: Final = 480.0
_SMALL_BYTES: Final = 8192


class TemplateBackoff:
    """The back-off of one template. It doubles each time that the template is given up again after the previous
    back-off was over.

    A template that takes too much for a large conversation may be fine for ordinary ones. Conversations of less than
    half the size are still tried, down to a size that every template has to manage.
    """

    def __init__(self) -> None:
        self._length_s = 0.0
        self._until = 0.0
        self._from_bytes = 0
        self.why = ""

    def left_s(self, size_bytes: int, now: float) -> float:
        """Seconds for which a conversation of `size_bytes` is still refused; 0 when it is not refused."""
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
