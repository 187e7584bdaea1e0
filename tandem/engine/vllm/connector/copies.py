"""The `Copies` seam: how a rank's pages are copied from the engine's blocks to slots of the stage and back.

Copies are begun inside a step and never waited for there. The seam guarantees this order. A save reads what the step
has computed up to the call, and nothing later. A load writes after everything that was computed before the step, and
after a fence of the step. After a fence nothing is computed until all saves that were begun are over. A copy that was
begun is over when its `Copying` says so, in any order between saves and loads.
"""

from collections.abc import Sequence
from typing import Protocol

from tandem.engine.vllm.connector.orders import PageTarget


class Copying(Protocol):
    """Copies that were begun together. `bytes` of this rank are moved."""

    @property
    def bytes(self) -> int: ...

    @property
    def over(self) -> bool:
        """Whether all bytes are where they belong. Never waits; once true it stays true."""
        ...

    @property
    def seconds(self) -> float:
        """Seconds that the copies took, available once they are over."""
        ...


class Copies(Protocol):
    """The operations with which a rank copies blocks. Two tests in `tests/unit` check implementations against the
    order above: `test_copies_schedules.py` and `test_device_copies.py`."""

    @property
    def groups(self) -> Sequence[range]:
        """The groups of layers in which the rank's blocks are saved: one group where copies do not run beside the
        computing."""
        ...

    def map_slots(self, memory: memoryview) -> None:
        """Use this memory as slots, before anything else is asked. Raises `bad_setting` when a device cannot."""
        ...

    def begin_step(self, *, fence: bool) -> None:
        """A step is about to compute."""
        ...

    def blank(self, blocks: Sequence[int]) -> None:
        """Zero all pages of the engine's blocks, before the step computes."""
        ...

    def save(self, targets: Sequence[PageTarget], layers: range) -> Copying:
        """Begin to copy these layers of blocks to their slots."""
        ...

    def load(self, targets: Sequence[PageTarget]) -> Copying:
        """Begin to copy slots to blocks, all layers."""
        ...

    def close(self) -> None:
        """Wait for the copies that were begun, and release the memory. Idempotent."""
        ...
