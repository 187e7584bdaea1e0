"""Run the ranks of an engine whose front end and scheduler are on another node. This is the other module that calls
vLLM's API."""

import multiprocessing.connection
from dataclasses import replace
from typing import Any, Final

from tandem.engine.vllm.arguments import EngineArguments
from tandem.engine.vllm.internals import AsyncEngineArgs, MultiprocExecutor

_REAP_S: Final = 5.0


class Ranks:
    """Processes of this node's ranks, which have loaded the model and wait for the leader's steps."""

    def __init__(self, arguments: EngineArguments) -> None:
        """Blocks until they are there, which may be for ever. Raises what vLLM raises."""
        config = AsyncEngineArgs(**arguments.keywords).create_engine_config(headless=True)
        self._executor: Any = MultiprocExecutor(config, monitor_workers=False)
        self._processes = tuple(worker.proc for worker in self._executor.workers)

    def wait(self) -> tuple[int, ...]:
        """Block until one has ended; gives the exit statuses of those that have, negative for a signal."""
        ended = multiprocessing.connection.wait([process.sentinel for process in self._processes])
        for process in self._processes:
            if process.sentinel in ended:
                # Its pipes close a moment before its status can be had.
                process.join(_REAP_S)
        return tuple(process.exitcode for process in self._processes if process.exitcode is not None)

    def close(self) -> None:
        """End them and their queues. Blocks for seconds at most."""
        self._executor.shutdown()


def build(arguments: EngineArguments) -> Ranks:
    """See `Ranks`. What is for the leader alone is left out."""
    leading = ("kv_events_config", "disable_log_stats")
    keywords = {key: value for key, value in arguments.keywords.items() if key not in leading}
    return Ranks(replace(arguments, keywords=keywords))
