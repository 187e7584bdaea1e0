"""One run of a Redis node that knows the index's commands and scripts, and no others. Pure."""

import hashlib
from collections.abc import Callable, Sequence

from kv_transfer.index.redis_connection import Argument, RedisFailed, ScriptUnknown
from tandem.apps.simulation.redis_data import RedisData
from tandem.apps.simulation.redis_scripts import SCRIPTS


class RedisServer:
    """One run of one node: answers commands. `now` is the node's clock in milliseconds."""

    def __init__(self, run_id: str, data: RedisData, now: Callable[[], int]) -> None:
        self.run_id = run_id
        self.data = data
        self._now = now
        self._loaded: dict[str, str] = {}

    def forget_scripts(self) -> None:
        """`SCRIPT FLUSH`."""
        self._loaded.clear()

    def ask(self, *command: Argument) -> object:
        """Raises `RedisFailed` for what it does not know."""
        match command:
            case ("ROLE",):
                return [b"master", 0, []]
            case ("INFO", "server"):
                return self.run_id
            case ("SCRIPT", "LOAD", str(script)):
                return self._load(script).encode()
            case ("EVALSHA", str(digest), 0, *arguments):
                if digest not in self._loaded:
                    raise ScriptUnknown("NOSCRIPT No matching script")
                return self._run(self._loaded[digest], arguments)
            case ("EVAL", str(script), 0, *arguments):
                self._load(script)
                return self._run(script, arguments)
            case _:
                raise RedisFailed(f"unknown command {command[0]!r}")

    def _load(self, script: str) -> str:
        digest = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        self._loaded[digest] = script
        return digest

    def _run(self, script: str, arguments: Sequence[Argument]) -> object:
        known = SCRIPTS.get(script)
        if known is None:
            raise RedisFailed("a script that the index does not have")
        return known(self.data, self._now(), [_encoded(argument) for argument in arguments])


def _encoded(argument: Argument) -> bytes:
    return argument if isinstance(argument, bytes) else str(argument).encode()
