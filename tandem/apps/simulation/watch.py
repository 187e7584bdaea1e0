"""The seams of simulated workers and routers, watched: what passes through them must be allowed to."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from kv_transfer.index.memory_index import MemoryIndex
from kv_transfer.transport.memory import MemoryNetwork, MemoryTransport
from kv_transfer.transport.protocol import Answer, ExportSource, PullOpen
from tandem.apps.simulation.checks import Violation
from tandem.core.errors import TandemError
from tandem.engine.protocol import BlockMemory
from tandem.engine.scheduler.plan import Step, StepResult
from tandem.engine.simulated.runner import SimulatedRunner

Broken = Callable[[Violation], None]


class WatchedRunner(SimulatedRunner):
    """A runner whose next step can be made to fail."""

    fail_next = False
    steps = 0
    """Steps begun so far."""

    async def execute(self, step: Step) -> StepResult:
        self.steps += 1
        result = await super().execute(step)
        if self.fail_next:
            raise TandemError("engine_failed", "the simulated device reports an error")
        return result


class WatchedTransport(MemoryTransport):
    """A transport that answers no pull meant for another incarnation. `epoch` gives the holder's own."""

    def __init__(self, fabric: MemoryNetwork, name: str, epoch: Callable[[], int], broken: Broken) -> None:
        super().__init__(fabric, name)
        self._node = name
        self._epoch = epoch
        self._broken = broken

    async def serve(self, source: ExportSource) -> str:
        return await super().serve(_WatchedSource(source, self._node, self._epoch, self._broken))


class _WatchedSource:
    """`kv_transfer.transport.protocol.ExportSource` around another."""

    def __init__(self, source: ExportSource, node: str, epoch: Callable[[], int], broken: Broken) -> None:
        self._source = source
        self._node = node
        self._epoch = epoch
        self._broken = broken

    @property
    def memory(self) -> BlockMemory:
        return self._source.memory

    async def answers(self, request: PullOpen) -> AsyncGenerator[tuple[Answer, ...], None]:
        async with aclosing(self._source.answers(request)) as batches:
            async for batch in batches:
                if request.holder_epoch != self._epoch():
                    self._broken(Violation(f"{self._node} answers a pull that was meant for another incarnation"))
                yield batch

    def acknowledge(self, lease_id: str) -> None:
        self._source.acknowledge(lease_id)

    def refused(self, lease_id: str, name: bytes) -> None:
        self._source.refused(lease_id, name)


class WatchedIndex(MemoryIndex):
    """An index that only knows names of full blocks that the world's requests can have; with None, any names."""

    def __init__(self, names: frozenset[bytes] | None, broken: Broken) -> None:
        super().__init__()
        self._allowed = names
        self._broken = broken

    def stored(self, worker: str, names: Sequence[bytes], tier: str = "hbm") -> None:
        if self._allowed is not None and not self._allowed.issuperset(names):
            self._broken(Violation(f"{worker} told of a block that is no full block of any request"))
        super().stored(worker, names, tier)
