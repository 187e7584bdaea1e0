"""Scripted workers behind the real link, for measuring a router: `python -m benchmarks.router_workers …`.

`paced` workers are unified and give every sequence one token per step, a given number of steps per second.
`instant` workers are one prefill and one decode worker that answer in no time. Prints their addresses.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tandem.core.errors import TandemError
from tandem.core.kv import Layout, RootIdentity
from tandem.core.messages import (
    PROTOCOL_VERSION,
    AttemptReport,
    Cancel,
    Hello,
    Ping,
    Pong,
    ProvideFirst,
    RemoteKv,
    SequenceOutput,
    StepOutputs,
    Submit,
    Transferred,
    WorkerCommand,
)
from tandem.link.protocol import WorkerLink
from tandem.link.servers import open_server
from tandem.process.tls_settings import TlsSettings

_WORDS = (" a", " lantern", " in", " the", " window", " of", " an", " old", " house")
_LAYOUT = Layout("bench", "plain", "float32", 4, 1, 16, 1, 8)


@dataclass
class Fake:
    """One scripted worker. `steps_per_s` 0 answers at once."""

    name: str
    role: str
    model: str
    steps_per_s: float
    running: dict[int, int] = field(default_factory=dict)
    """Next position by handle."""

    async def serve(self, link: WorkerLink) -> None:
        """One router's link, to its end."""
        link.tokens.send(self._hello())
        try:
            async with asyncio.TaskGroup() as group:
                if self.steps_per_s:
                    group.create_task(self._step(link))
                while True:
                    for command in await link.tokens.receive():
                        self._take(link, command)
        except* TandemError:
            self.running.clear()

    def _hello(self) -> Hello:
        root = RootIdentity("bench", "float32", _LAYOUT.block_tokens).name()
        epoch = int.from_bytes(self.name.encode()[-6:], "little")
        addresses = (f"tcp://127.0.0.1:9/{self.name}",)
        return Hello(
            PROTOCOL_VERSION,
            self.name,
            epoch,
            self.role,
            self.model,
            "bench",
            "",
            _LAYOUT,
            root,
            1 << 20,
            1 << 17,
            (0,),
            addresses,
            max_sequences=1 << 20,
        )

    def _take(self, link: WorkerLink, command: WorkerCommand) -> None:
        match command:
            case Ping():
                link.tokens.send(Pong(self._hello().epoch, command.count))
            case Submit() if self.steps_per_s:
                self.running[command.handle] = 1
            case Submit() if command.mode == "prefill":
                self._answer(link, command.handle, 1, None)
            case Submit(remote=RemoteKv() as remote):
                told = Transferred(command.handle, remote.worker_id, remote.epoch, "tcp", 0.001, 1 << 16)
                link.tokens.send(told)
            case ProvideFirst():
                self._answer(link, command.handle, 2, "length")
            case Cancel():
                self.running.pop(command.handle, None)
            case _:
                pass

    def _answer(self, link: WorkerLink, handle: int, position: int, finish: str | None) -> None:
        offset = 0 if position == 1 else 2
        link.tokens.send(StepOutputs((SequenceOutput(handle, 0, position, (7,), " x", offset, finish),)))
        link.tokens.send(AttemptReport(handle, 1, 0, 0, 0, ()))

    async def _step(self, link: WorkerLink) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        texts = dict.fromkeys(self.running, 0)
        while True:
            due = max(due + 1 / self.steps_per_s, loop.time())
            await asyncio.sleep(due - loop.time())
            outputs = []
            for handle, position in self.running.items():
                text = _WORDS[position % len(_WORDS)]
                offset = texts.get(handle, 0)
                outputs.append(SequenceOutput(handle, 0, position, (position % 1000,), text, offset))
                texts[handle] = offset + len(text)
                self.running[handle] = position + 1
            if outputs:
                link.tokens.send(StepOutputs(tuple(outputs)))


async def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="simulated")
    parser.add_argument("--kind", choices=("paced", "instant"), default="paced")
    parser.add_argument("--steps-per-s", type=float, default=50.0)
    arguments = parser.parse_args()
    roles = ("unified", "unified") if arguments.kind == "paced" else ("prefill", "decode")
    rate = arguments.steps_per_s if arguments.kind == "paced" else 0.0
    addresses = []
    for number, role in enumerate(roles):
        fake = Fake(f"fake-{number}", role, arguments.model, rate)
        server = open_server("127.0.0.1:0", None, TlsSettings(), 5.0)
        addresses.append(await server.start(_accept(fake)))
        await asyncio.sleep(0.5 / arguments.steps_per_s)
    sys.stdout.write(json.dumps(addresses) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def _accept(fake: Fake) -> Callable[[WorkerLink], Awaitable[None]]:
    return fake.serve


if __name__ == "__main__":
    asyncio.run(main())
