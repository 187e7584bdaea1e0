"""Prompts from a file: a line each, as text or JSON."""

from pathlib import Path
from typing import Any, Final

import msgspec

from tandem.core.errors import TandemError

_SHOWN: Final = 48


class Prompt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of: text or token ids to continue, or a conversation."""

    prompt: str | tuple[int, ...] | None = None
    messages: tuple[dict[str, Any], ...] | None = None

    @property
    def shown(self) -> str:
        """The beginning of the prompt, for people."""
        text = str(self.messages[-1].get("content", "")) if self.messages else str(self.prompt)
        line = " ".join(text.split())
        return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Every line of the file that is not blank. A line that begins with `{`, `[` or a quote is JSON: an object with
    `prompt` or `messages`, token ids, or text; any other line is text as it is.

    Raises `bad_setting` naming the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TandemError("bad_setting", f"--prompts: {path} cannot be read: {error}") from error
    prompts = tuple(_prompt(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip())
    if not prompts:
        raise TandemError("bad_setting", f"--prompts: {path} has no prompts")
    return prompts


def _prompt(line: str, place: str) -> Prompt:
    if not line.lstrip().startswith(("{", "[", '"')):
        return Prompt(prompt=line)
    try:
        value = msgspec.json.decode(line)
        prompt = msgspec.convert(value if isinstance(value, dict) else {"prompt": value}, Prompt)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise TandemError("bad_setting", f"--prompts: {place} is no prompt: {error}") from error
    if (prompt.prompt is None) == (prompt.messages is None) or not (prompt.prompt or prompt.messages):
        raise TandemError("bad_setting", f"--prompts: {place} needs one of prompt and messages")
    return prompt
