"""`<think>…</think>` at the beginning of the text: what a model thinks before it answers."""

from typing import Final

from router.api.parsers.delta import SPACE, Prose

OPEN: Final = "<think>"
CLOSE: Final = "</think>"


class ThinkParser:
    """Parts reasoning from the rest. With `opened` the prompt has ended in the opening tag already; a tag that the
    model writes nevertheless is skipped."""

    def __init__(self, opened: bool = False) -> None:
        self._opened = opened
        self._begin: str | None = ""
        """White space, as long as the opening tag may follow."""
        self._prose: Prose | None = None
        self._answer = Prose()

    def feed(self, text: str) -> tuple[str, str]:
        """Reasoning and ordinary text that are certain now."""
        if self._begin is not None:
            text = self._opening(self._begin + text)
        reasoning = ""
        if self._prose is not None:
            reasoning, tag, text = self._prose.take(text)
            if not tag:
                return reasoning, ""
            self._prose = None
            self._answer.after_tag()
        return reasoning, self._answer.take(text)[0] if text else ""

    def finish(self) -> tuple[str, str]:
        """Reasoning and ordinary text that are still held back when the text ends."""
        if self._begin is not None:
            text, self._begin = self._begin, None
            return (text, "") if self._opened and text.strip(SPACE) else ("", text)
        if self._prose is not None:
            return self._prose.rest(), ""
        return "", self._answer.rest()

    def _opening(self, text: str) -> str:
        bare = text.lstrip(SPACE)
        if OPEN.startswith(bare) and bare != OPEN:
            self._begin = text
            return ""
        self._begin = None
        if bare.startswith(OPEN):
            text = bare[len(OPEN) :]
        elif not self._opened:
            return text
        self._prose = Prose(CLOSE)
        self._prose.after_tag()
        return text
