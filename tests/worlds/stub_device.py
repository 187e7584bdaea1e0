"""A device that is none: what `DeviceCopies` asks of CUDA, on tensors in host memory.

Everything happens at once, and a copy that a device would make slowly is refused: from memory that is not pinned, or
of pieces that are not contiguous. What is launched is noted with what it comes behind, so that tests can ask for the
order; waits of the host are counted.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass
class Stream:
    name: str
    after: set[int] = field(default_factory=set)
    """Numbers of everything that what is launched next comes behind."""


class Event:
    def __init__(self, device: "StubDevice") -> None:
        self._device = device
        self.after: frozenset[int] = frozenset()

    def record(self, stream: Stream) -> None:
        self.after = frozenset(stream.after)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self._device.syncs += 1

    def elapsed_time(self, end: "Event") -> float:
        return 1.0


class StubDevice:
    """`tandem.engine.vllm.connector.device_calls.DeviceCalls`. `launches` has (stream, what) by number."""

    def __init__(self) -> None:
        self.engine = Stream("engine")
        self.launches: list[tuple[str, str, frozenset[int]]] = []
        self.pinned: dict[int, int] = {}
        self.syncs = 0
        self._now = self.engine
        self._streams = 0

    def launch(self, what: str, stream: Stream | None = None) -> int:
        """Note something; gives its number."""
        on = stream or self._now
        number = len(self.launches)
        self.launches.append((on.name, what, frozenset(on.after)))
        on.after.add(number)
        return number

    def side_stream(self) -> Stream:
        self._streams += 1
        return Stream(f"side-{self._streams}")

    def current_stream(self) -> Stream:
        return self._now

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self._now = self._now, stream
        try:
            yield
        finally:
            self._now = before

    def wait(self, stream: Stream, event: Event) -> None:
        stream.after |= event.after

    def event(self) -> Event:
        return Event(self)

    def pin(self, address: int, size_bytes: int) -> None:
        assert address % 4096 == 0, "pages are pinned"
        self.pinned[address] = size_bytes

    def unpin(self, address: int) -> None:
        del self.pinned[address]

    def numbers(self, values: Sequence[int]) -> torch.Tensor:
        assert self._now is not self.engine, "the engine's stream is for the engine"
        return torch.tensor(values)

    def copy(self, sources: torch.Tensor, targets: torch.Tensor, sizes: torch.Tensor, *, steady: bool) -> None:
        assert self._now is not self.engine, "the engine's stream is for the engine"
        host = sources if steady else targets
        for source, target, size, at in zip(
            sources.tolist(), targets.tolist(), sizes.tolist(), host.tolist(), strict=True
        ):
            inside = [base for base, length in self.pinned.items() if base <= at and at + size <= base + length]
            assert inside, "a piece that is not pinned, or lies in two registrations, is copied slowly"
            ctypes.memmove(target, source, size)
        self.launch("load" if steady else "save")
