"""Both runners answer alike; a dead engine process is one sentence; bad settings and models stop the load."""

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.request import Sampling
from tandem.engine.digest import Digester
from tandem.engine.scheduler.plan import BlockRef, Draw, Row, Step
from tandem.engine.torch.build import build_runner
from tandem.engine.torch.process import ProcessRunner
from tandem.engine.torch.settings import TorchSettings
from tests.worlds.torch_drive import Driver, draw_row, prompt, save_model


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_model(path, "Llama")
    return path


def settings(path: Path, **changes: Any) -> TorchSettings:
    return TorchSettings(**{"model": str(path), "blocks": 32, "block_tokens": 8, "threads": 1, **changes})


@pytest.mark.parametrize("mode", ["thread", "process"])
async def test_runner(mode: str, llama: Path) -> None:
    tokens = prompt(13)
    expected = Driver(llama).greedy(tokens, 4)
    runner = build_runner(settings(llama, mode=mode, context_tokens=300))
    info = await runner.load()
    try:
        assert (info.model, info.blocks, info.context_tokens, info.eos_token_ids) == (llama.name, 32, 300, (159,))
        assert (info.layout.engine, info.layout.packing, info.layout.dtype) == (
            "tandem-torch",
            "block-major",
            "float32",
        )
        table = pack_tokens((30, 2, 7))
        result = await runner.execute(Step(1, (draw_row(tokens, 0, table),), complete=(BlockRef(30, 8),)))
        assert result.number == 1
        assert result.compute_s > 0
        assert result.digests == (Digester(info.layout).content_words(runner.memory.block(30)),)
        output = [result.drawn[0].token]
        sampling = Sampling(temperature=0.0, logprobs=2)
        while len(output) < 4:
            draw = Draw(1, 0, 7, len(output) + 1, sampling)
            row = Row(pack_tokens(output[-1:]), 12 + len(output), table, draws=(draw,))
            (drawn,) = (await runner.execute(Step(len(output) + 1, (row,)))).drawn
            assert drawn.logprob is not None
            assert drawn.logprob.top[0].token == drawn.token
            output.append(drawn.token)
        assert output == expected
    finally:
        await runner.close()


def test_process_runner_on_the_loop_that_services_use(llama: Path) -> None:
    async def one_step() -> int:
        runner = build_runner(settings(llama))
        await runner.load()
        result = await runner.execute(Step(1, (draw_row(prompt(9), 0, pack_tokens((1, 2))),)))
        await runner.close()
        return result.drawn[0].token

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        assert [loop.run(one_step())] == Driver(llama).greedy(prompt(9), 1)


async def test_dead_process_fails_the_step_and_the_next(llama: Path) -> None:
    runner = build_runner(settings(llama))
    assert isinstance(runner, ProcessRunner)
    await runner.load()
    try:
        assert runner.pid is not None
        os.kill(runner.pid, signal.SIGKILL)
        for number in (1, 2):
            with pytest.raises(TandemError, match=rf"was ended by SIGKILL during step {number}") as caught:
                await runner.execute(Step(number, (draw_row([5], 0, pack_tokens((1,))),)))
            assert caught.value.code == "engine_failed"
    finally:
        await runner.close()


async def test_stuck_process_fails_the_step_in_time(llama: Path) -> None:
    runner = build_runner(settings(llama, step_timeout_s=0.2))
    assert isinstance(runner, ProcessRunner)
    await runner.load()
    try:
        assert runner.pid is not None
        os.kill(runner.pid, signal.SIGSTOP)
        with pytest.raises(TandemError, match=r"step 1 took longer than 0\.2 s"):
            await runner.execute(Step(1, (draw_row([5], 0, pack_tokens((1,))),)))
    finally:
        await runner.close()


async def test_process_ends_with_its_connection(llama: Path) -> None:
    runner = build_runner(settings(llama))
    assert isinstance(runner, ProcessRunner)
    await runner.load()
    pid = runner.pid
    await runner.close()
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


OWNER = """
import asyncio, os, signal, sys
from tandem.engine.torch.build import build_runner
from tandem.engine.torch.settings import TorchSettings

async def main():
    runner = build_runner(TorchSettings(model=sys.argv[1], blocks=4, threads=1))
    await runner.load()
    print(runner.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_process_ends_with_its_owner(llama: Path) -> None:
    """The engine process holds the owner's standard output: end-of-file there means that it has ended."""
    done = subprocess.run([sys.executable, "-c", OWNER, str(llama)], stdout=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert int(done.stdout) > 0


HUNG = """
import asyncio, os, signal, sys
import uvloop
from tandem.engine.torch.build import build_runner
from tandem.engine.torch.settings import TorchSettings

async def main():
    runner = build_runner(TorchSettings(model=sys.argv[1], blocks=4, threads=1))
    await runner.load()
    os.kill(runner.pid, signal.SIGSTOP)
    print(runner.pid, flush=True)
    await asyncio.Event().wait()

with asyncio.Runner(loop_factory=eval(sys.argv[2])) as loop:
    loop.run(main())
"""
GONE_S = 60.0
"""A bound on what takes the kernel microseconds."""


only_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children of their parent's death")


def ends_with_its_owner(*command: str) -> bool:
    """Whether the process that `command` starts and tells the id of ends when `command` is killed."""
    with subprocess.Popen([sys.executable, "-c", *command], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        child = os.pidfd_open(int(owner.stdout.readline()))
        try:
            owner.kill()
            owner.wait()
            readable, _, _ = select.select([child], [], [], GONE_S)
            return bool(readable)
        finally:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child, signal.SIGKILL)
            os.close(child)


@only_linux
@pytest.mark.parametrize("loop", ["uvloop.new_event_loop", "asyncio.new_event_loop"])
def test_a_process_that_hangs_ends_with_its_owner(loop: str, llama: Path) -> None:
    """Stopped as by a device that hangs, it reads no end-of-file."""
    assert ends_with_its_owner(HUNG, str(llama), loop)


ASKING = """
import sys
from tandem.engine.torch.gpu_memory import read_gpu_memory
sys.executable = sys.argv[1]
read_gpu_memory("cuda")
"""


@only_linux
def test_a_driver_that_says_nothing_is_not_asked_any_longer_than_its_asker_lives(tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho $$ >/proc/$PPID/fd/1\nexec sleep 600\n")
    silent.chmod(0o755)
    assert ends_with_its_owner(ASKING, str(silent))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dtype": "int4"}, "dtype = 'int4': expected auto, float32"),
        ({"block_tokens": 0}, "block_tokens = 0"),
        ({"blocks": 0}, "blocks = 0"),
        ({"blocks": None, "kv_memory_bytes": 10}, r"kv_memory_bytes = 10: one block needs \d+ bytes"),
        ({"context_tokens": 9999}, "context_tokens = 9999: the model reaches 1 to 512"),
        ({"device": "quantum"}, "device = 'quantum'"),
        ({"mode": "fibre"}, "mode = 'fibre': expected thread or process"),
    ],
)
async def test_bad_settings(changes: dict[str, Any], says: str, llama: Path) -> None:
    with pytest.raises(TandemError, match=says) as caught:
        await build_runner(settings(llama, **{"mode": "thread", **changes})).load()
    assert caught.value.code == "bad_setting"


def edit(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"intermediate_size": 80}, r"gate_proj\.weight has shape \[96, 64\], config\.json implies \[80, 64\]"),
        ({"num_hidden_layers": 3}, r"tensor model\.layers\.2\.\S+ is missing from the checkpoint"),
        ({"num_hidden_layers": 1}, r"tensor model\.layers\.1\.\S+ has no place in this architecture"),
        ({"attention_bias": True}, r"q_proj\.bias is missing"),
    ],
)
async def test_weights_that_do_not_fit(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    edit(tmp_path, **changes)
    with pytest.raises(TandemError, match=says) as caught:
        await build_runner(settings(tmp_path, mode="thread")).load()
    assert caught.value.code == "bad_model"


async def test_bad_model_crosses_the_process_boundary(tmp_path: Path) -> None:
    save_model(tmp_path, "Llama")
    edit(tmp_path, intermediate_size=80)
    runner = build_runner(settings(tmp_path))
    with pytest.raises(TandemError, match=r"config\.json implies") as caught:
        await runner.load()
    assert (caught.value.code, caught.value.param) == ("bad_model", "model.layers.0.mlp.gate_proj.weight")
    await runner.close()
