"""Several routers before one fleet: of what the others place each knows only what workers tell."""

from collections.abc import Callable, Sequence

from benchmarks.fleet.router import Decider, Knowledge
from benchmarks.fleet.workload import Request


class Routers:
    """`benchmarks.fleet.router.Decider`: requests come to the routers in turn."""

    def __init__(self, routers: Sequence[Decider]) -> None:
        self._routers = tuple(routers)

    def place(self, request: Request, now: float) -> tuple[int, int] | None:
        return self._of(request).place(request, now)

    def first_token(self, request: Request, now: float) -> None:
        self._of(request).first_token(request, now)

    def finished(self, request: Request, now: float) -> None:
        self._of(request).finished(request, now)

    def transferred(self, request: Request, tokens: int, seconds: float) -> None:
        self._of(request).transferred(request, tokens, seconds)

    def _of(self, request: Request) -> Decider:
        return self._routers[request.number % len(self._routers)]


def several(one: Callable[[Knowledge], Decider], count: int) -> Callable[[Knowledge], Routers]:
    """So many routers, each made by `one`, for one run."""
    return lambda knowledge: Routers([one(knowledge) for _ in range(count)])
