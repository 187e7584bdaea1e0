"""Values known of each worker, computed when they are first asked for. Pure."""

from collections.abc import Callable
from typing import TypeVar

Known = TypeVar("Known")


class LazyDict(dict[str, Known]):
    """Values by worker id. A computed value is kept until the owner drops it because it has learned something."""

    def __init__(self, work_out: Callable[[str], Known]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, worker_id: str) -> Known:
        found = self[worker_id] = self._work_out(worker_id)
        return found
