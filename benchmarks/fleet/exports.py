"""Blocks of prompts that a worker computes for others, from the prompt's admission until they have been fetched."""

from benchmarks.fleet.workload import Request
from tandem.engine.scheduler.step_rules import blocks_for, may_export


class Exports:
    """`tokens` of the pool are exported or will be, what several prompts share being counted once."""

    __slots__ = ("_pool_blocks", "_share", "_size", "_users", "tokens")

    def __init__(self, share: float, pool_tokens: int, block_tokens: int) -> None:
        self._share = share
        self._size = block_tokens
        self._pool_blocks = pool_tokens // block_tokens
        self._users: dict[int, int] = {}
        self.tokens = 0

    def may_add(self, request: Request) -> bool:
        """Whether exports leave room for this prompt."""
        exported, size = -(-self.tokens // self._size), self._size
        return may_export(exported, blocks_for(request.input_tokens, size), self._pool_blocks, self._share)

    def add(self, request: Request) -> None:
        users = self._users
        for place, name in enumerate(request.blocks):
            users[name] = count = users.get(name, 0) + 1
            if count == 1:
                self.tokens += request.leading(place + 1) - request.leading(place)

    def remove(self, request: Request) -> None:
        users = self._users
        for place, name in enumerate(request.blocks):
            users[name] -= 1
            if not users[name]:
                del users[name]
                self.tokens -= request.leading(place + 1) - request.leading(place)
