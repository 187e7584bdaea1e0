"""The embedded engine on a device of its own, tried without one: copies that end late, and how large its pool is."""

import dataclasses
import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.engine.digest import Digester
from tandem.engine.scheduler.plan import Step
from tandem.engine.torch.executor import ModelExecutor
from tandem.engine.torch.gpu_memory import GpuMemory, host_free, kv_bytes, read_gpu_memory
from tandem.engine.torch.prepare import Prepared, prepare
from tandem.engine.torch.settings import TorchSettings
from tandem.engine.torch.side_copies import Pairs, StreamCopies
from tests.unit.tandem.engine.torch.test_torch_steps import complete, draw_row, prompt
from tests.worlds.torch_drive import prepared, save_model

GIB = 1 << 30


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_model(path, "Llama")
    return path


class LateCopies:
    """A device that is as slow as it may be: what computing was promised to see is there, but host memory is read
    again, and first written, at the last moment that the contract allows."""

    def __init__(self) -> None:
        self._asked: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._fenced = 0
        self.waits = 0

    def copy(self, pairs: Pairs) -> None:
        self._end(self._fenced)
        self._asked += pairs

    def fence(self) -> None:
        self._fenced = len(self._asked)
        self._end(self._fenced)

    def wait(self) -> None:
        self._end(len(self._asked))
        self._asked.clear()
        self._fenced = 0
        self.waits += 1

    def _end(self, count: int) -> None:
        for target, source in self._asked[:count]:
            target.copy_(source)


def mirrored(path: Path) -> tuple[Prepared, ModelExecutor]:
    ready = prepared(path)
    return ready, ModelExecutor(dataclasses.replace(ready.spec, mirrored=True), ready.memory, LateCopies())


def test_a_landed_slot_may_be_overwritten_once_the_step_has_ended(llama: Path) -> None:
    """A step that computes nothing and completes nothing used to return while its slots were still being read."""
    tokens = prompt(17)
    source, first = mirrored(llama)
    row = draw_row(tokens, 0, pack_tokens((4, 9, 2)))
    drawn = first.execute(Step(0, (row,), complete=complete(row.table, 17, 8)))
    following = draw_row([drawn.drawn[0].token], 17, row.table)
    expected = first.execute(Step(1, (following,))).drawn[0].token

    target, second = mirrored(llama)
    for slot in (4, 9, 2):
        target.memory.block(slot)[:] = source.memory.block(slot)
    second.execute(Step(0, (), landed=(4, 9, 2)))
    for slot in (4, 9, 2):
        target.memory.block(slot)[:] = b"\x3f" * target.memory.block_bytes
    assert second.execute(Step(1, (following,))).drawn[0].token == expected


def test_complete_blocks_are_in_host_memory_when_the_step_has_ended(llama: Path) -> None:
    ready, computer = mirrored(llama)
    row = draw_row(prompt(17), 0, pack_tokens((4, 9, 2)))
    result = computer.execute(Step(0, (row,), complete=complete(row.table, 17, 8)))
    digester = Digester(ready.spec.layout)
    assert result.digests == tuple(digester.content_words(ready.memory.block(slot)) for slot in (4, 9, 2))


def test_streams_wait_for_each_other_and_the_host_for_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """What CUDA is told, in order; never to wait for the whole device."""
    told: list[str] = []

    class Stream:
        def __init__(self, name: object) -> None:
            self.name = name if isinstance(name, str) else "side"

        def wait_stream(self, other: "Stream") -> None:
            told.append(f"{self.name} waits for {other.name}")

        def wait_event(self, event: "Event") -> None:
            told.append(f"{self.name} waits for {event.name}")

    class Event:
        made = 0

        def __init__(self, *, blocking: bool) -> None:
            assert blocking
            Event.made += 1
            self.name = f"event {Event.made}"

        def record(self, stream: Stream) -> None:
            told.append(f"{stream.name} records {self.name}")

        def synchronize(self) -> None:
            told.append(f"host waits for {self.name}")

    fakes: dict[str, Any] = {
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda _: Stream("compute"),
        "stream": lambda _: nullcontext(),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.delattr(torch.cuda, "synchronize")
    copies = StreamCopies(torch.device("cpu"))
    device, host = torch.zeros(4), torch.ones(4)
    copies.copy([(device, host)])
    copies.fence()
    copies.copy([(host, device)])
    copies.wait()
    copies.wait()
    assert told == [
        "side waits for compute",
        "side records event 1",
        "compute waits for event 1",
        "side waits for compute",
        "side records event 2",
        "host waits for event 2",
    ]
    assert device.tolist() == [1.0] * 4


def test_the_pool_takes_what_the_card_leaves() -> None:
    card = GpuMemory(free=78 * GIB, total=80 * GIB)
    assert kv_bytes(card, 0.9, 16 * GIB, 1 << 40) == 55 * GIB
    assert kv_bytes(card, 0.45, 16 * GIB, 1 << 40) == 19 * GIB
    assert kv_bytes(GpuMemory(20 * GIB, 80 * GIB), 0.9, 16 * GIB, 1 << 40) == 3 * GIB, "never more than is free"
    assert kv_bytes(card, 0.9, 16 * GIB, 64 * GIB) == 32 * GIB, "its mirror is in host memory"
    with pytest.raises(TandemError, match="is less than the weights"):
        kv_bytes(card, 0.2, 16 * GIB, 1 << 40)
    assert host_free() > 0


def test_a_gpu_pool_is_sized_from_the_card_and_says_what_it_is_for(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def card(device: str) -> GpuMemory:
        asked.append(device)
        return GpuMemory(free=2 * GIB, total=2 * GIB)

    with caplog.at_level(logging.WARNING):
        ready = prepare(TorchSettings(str(llama), device="cuda"), card)
    try:
        size = ready.spec.blocks * ready.spec.layout.block_bytes
        assert 0.7 * GIB < size < 0.8 * GIB, "0.9 of 2 GiB, less 1 GiB"
        assert asked == ["cuda"]
        (said,) = [record for record in caplog.records if record.message == "torch_on_gpu"]
        assert "tests and small models" in said.fields["meant_for"]
    finally:
        ready.memory.close()
    on_cpu = prepare(TorchSettings(str(llama)), card)
    on_cpu.memory.close()
    assert on_cpu.spec.blocks * on_cpu.spec.layout.block_bytes <= 256 << 20
    assert asked == ["cuda"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_machine_without_a_gpu_is_said() -> None:
    with pytest.raises(TandemError, match="device = 'cuda'") as caught:
        read_gpu_memory("cuda")
    assert caught.value.code == "bad_setting"
