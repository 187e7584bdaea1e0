"""Awaiting without a task: drive something to its first wait, and go on later with what remains.

Most of what a request waits for is there already (its body came with its head, its client reads). Driving by hand
then costs a function call where a timeout or a task would cost many.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Finished(Generic[T]):
    """The result of an awaitable that did not have to wait."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


class Waiting(Generic[T]):
    """An awaitable that has run to its first wait; await this, once, for what remains."""

    __slots__ = ("_driven", "_waited_for")

    def __init__(self, driven: Generator[Any, Any, T], waited_for: Any) -> None:
        self._driven = driven
        self._waited_for = waited_for

    def __await__(self) -> Generator[Any, Any, T]:
        waited_for = self._waited_for
        while True:
            try:
                value = yield waited_for
            except BaseException as error:  # noqa: BLE001  (whatever the task is told, what it drives is told)
                step = _step(self._driven.throw, error)
            else:
                step = _step(self._driven.send, value)
            if isinstance(step, Finished):
                result: T = step.value
                return result
            waited_for = step


def begin(awaitable: Awaitable[T]) -> Finished[T] | Waiting[T]:
    """Run to the first wait or to the end. Raises what the awaitable raises until then."""
    driven = awaitable.__await__()
    try:
        waited_for = driven.send(None)
    except StopIteration as ended:
        return Finished(ended.value)
    return Waiting(driven, waited_for)


def _step(advance: Callable[[Any], Any], value: Any) -> Any:
    """Advance to the next wait: gives what is waited for next, or `Finished`."""
    try:
        return advance(value)
    except StopIteration as ended:
        return Finished(ended.value)
