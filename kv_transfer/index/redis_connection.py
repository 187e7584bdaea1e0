"""The seam between the Redis index and whatever speaks to a Redis node: commands in, answers or typed failures out.

`kv_transfer.index.redis_client` is the real one. `tests/contract/test_redis_connection.py` defines the behaviour, for
the simulation's stand-in too.
"""

from collections.abc import Callable
from typing import Protocol

Argument = str | bytes | int
"""A part of a command."""


class RedisFailed(Exception):
    """The node refused the command, or the connection is lost."""


class ScriptUnknown(RedisFailed):
    """`EVALSHA` named a script that the node never received or no longer has."""


class CommandRefused(RedisFailed):
    """The node answered a command with an error that is about the command alone, such as a key with a value of
    another type. The connection is as good as before."""


class RedisConnection(Protocol):
    """Connections to one node, made when they are needed. Nothing here bounds a wait: the caller does."""

    async def ask(self, *command: Argument) -> object:
        """The answer: numbers, bytes, or lists of them. Raises `RedisFailed`, `OSError`."""
        ...

    async def run_id(self) -> str:
        """The id of the run of the server; raises as `ask` does. Another run may have other data."""
        ...

    async def close(self) -> None:
        """Leave the node."""
        ...


Connect = Callable[[str], RedisConnection]
"""Opens the node at a URL. Nothing is sent yet."""
