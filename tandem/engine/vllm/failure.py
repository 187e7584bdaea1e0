"""One sentence for an engine that could not start, or has died."""

import signal
from collections.abc import Sequence
from typing import Final

from tandem.core.errors import TandemError


class EngineGone(Exception):
    """The engine process has ended or will say nothing more."""


_MEMORY: Final = ("out of memory", "cannot allocate memory", "bad_alloc", "outofmemory", "no available memory")
_WORDS_MAX: Final = 400
_BLAND: Final = ("EngineCore failed to start", "EngineCore encountered", "Engine core initialization failed")


def start_error(error: BaseException, words: Sequence[str], statuses: Sequence[int]) -> TandemError:
    """The error for a vLLM that did not start, from the exception it raised here and what its processes said before
    they ended."""
    if isinstance(error, TandemError):
        return error
    said = first_cause(words)
    if said is None and isinstance(error, (ValueError, NotImplementedError, KeyError)):
        return TandemError("bad_setting", f"vLLM refuses its arguments: {_plain(str(error))}")
    return TandemError("engine_failed", f"vLLM did not start: {_reason(said or _plain(str(error)), statuses)}")


def death_sentence(words: Sequence[str], statuses: Sequence[int]) -> str:
    """Why the engine is gone."""
    said = first_cause(words)
    if said is None:
        return f"the vLLM engine process {_ended(statuses)}"
    return f"vLLM failed: {_reason(said, statuses)}"


def first_cause(words: Sequence[str]) -> str | None:
    """The first error among `words` that names a cause; vLLM's processes repeat and wrap an error of one of them."""
    telling = [_plain(text) for text in words if not text.startswith(_BLAND)]
    return telling[0] if telling else None


def _reason(said: str, statuses: Sequence[int]) -> str:
    if any(sign in said.lower() for sign in _MEMORY):
        return f"out of memory ({said}); give it less KV memory, a shorter context or more ranks"
    killed = [status for status in statuses if status < 0]
    return f"{said} (the engine process {_ended(killed)})" if killed else said


def _ended(statuses: Sequence[int]) -> str:
    status = next((status for status in statuses if status), None)
    if status is None:
        return "closed its connection"
    if status > 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name
    hint = ", which the system does to who uses too much memory" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


def _plain(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _WORDS_MAX else f"{text[:_WORDS_MAX]}…"
