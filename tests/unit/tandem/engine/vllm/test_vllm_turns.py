"""Engines on one GPU start one after the other."""

import asyncio
from pathlib import Path

import pytest

from tandem.core.errors import TandemError
from tandem.engine.vllm.start_locks import hold_start_locks


async def test_one_starts_at_a_time_and_says_that_it_waits(tmp_path: Path) -> None:
    lock, said, running = str(tmp_path / "gpu-0.lock"), list[str](), 0

    async def start() -> None:
        nonlocal running
        async with hold_start_locks([lock], 30, said.append):
            running += 1
            assert running == 1
            await asyncio.sleep(0.05)
            running -= 1

    await asyncio.gather(*(start() for _ in range(3)))
    assert said == ["another worker on the same GPU starts first"] * 2


async def test_locks_are_taken_in_one_order(tmp_path: Path) -> None:
    first, second = str(tmp_path / "a.lock"), str(tmp_path / "b.lock")

    async def start(paths: list[str]) -> None:
        async with hold_start_locks(paths, 30, lambda _: None):
            await asyncio.sleep(0.01)

    await asyncio.wait_for(asyncio.gather(*(start(paths) for paths in ([first, second], [second, first]) * 2)), 60)


async def test_waiting_is_bounded(tmp_path: Path) -> None:
    lock = str(tmp_path / "gpu-0.lock")
    async with hold_start_locks([lock], 1, lambda _: None):
        with pytest.raises(TandemError, match="still starting after 0 s") as caught:
            async with hold_start_locks([lock], 0, lambda _: None):
                pass
    assert caught.value.code == "engine_failed"


async def test_without_gpus_nobody_waits() -> None:
    async with hold_start_locks([], 0, lambda _: None):
        pass
