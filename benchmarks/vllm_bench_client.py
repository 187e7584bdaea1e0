"""A process that runs `vllm bench serve` again and again: importing it takes longer than a round.

A line of standard input is a JSON list of its arguments, without those that name a result; a line of standard output,
after a mark, is the result in JSON. `Client` is the other end.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_MARK: Final = b"tandem-bench-result "
_ROUND_S: Final = 400.0
_LINE_MAX: Final = 64 << 20


class Client:
    """One such process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, arguments: Sequence[str]) -> Mapping[str, Any]:
        """The result of one run. Raises `RuntimeError` when it does not end well, or not in time."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(list(arguments)).encode() + b"\n")
        try:
            async with asyncio.timeout(_ROUND_S):
                return await self._answer()
        except TimeoutError:
            raise RuntimeError(f"vllm bench serve took longer than {_ROUND_S:g} s") from None

    async def _answer(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None
        said = [b""]
        while line := await self._process.stdout.readline():
            if line.startswith(_MARK):
                told: Mapping[str, Any] = json.loads(line.removeprefix(_MARK))
                return told
            said = [*said[-20:], line]
        raise RuntimeError(f"vllm bench serve ended: {b''.join(said).decode(errors='replace')}")


@contextlib.asynccontextmanager
async def client(environment: Mapping[str, str]) -> AsyncIterator[Client]:
    """A client in a session of its own, which does not outlive the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.vllm_bench_client", stdin=PIPE, stdout=PIPE, stderr=DEVNULL,
        limit=_LINE_MAX, env={**os.environ, **environment}, start_new_session=True,
    )  # fmt: skip
    try:
        yield Client(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _main() -> None:
    from vllm.benchmarks.serve import add_cli_args, main_async

    for line in sys.stdin:
        parser = argparse.ArgumentParser()
        add_cli_args(parser)
        with tempfile.TemporaryDirectory() as place:
            result = ["--save-result", "--result-dir", place, "--result-filename", "told.json"]
            asyncio.run(main_async(parser.parse_args([*json.loads(line), *result])))
            told = json.loads((Path(place) / "told.json").read_text("utf-8"))
        # What is told per request is not needed.
        short = {name: value for name, value in told.items() if not isinstance(value, list)}
        sys.stdout.write(f"\n{_MARK.decode()}{json.dumps(short)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
