"""How much of a KV transfer shows after prefill: a real prefill and a real decode worker, two processes each.

A prompt of eight chunks is submitted to both at once, as a router does it. Its blocks become pullable chunk by
chunk, so that only the last chunk's should be left when prefill ends. Exposed is the time from the end of prefill,
by the prefill worker's span, to the end of the pull, by the decode worker's: every block has arrived and verified
and the hand-off is acknowledged. Both spans are wall-clock times of one host. Beside it stands what a pull that
begins after prefill costs: all of it shows. Transports take turns; the model has random weights and is large enough
for a chunk to take real time. Exits non-zero when a limit is not met.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.rounds import ROUNDS, Check, alternate, table, verdict
from kv_transfer.key_file import read_keyring
from kv_transfer.tickets import Claims, Keyring, issue
from tandem.core.entropy import SeededEntropy
from tandem.core.kv import pack_tokens
from tandem.core.messages import (
    AttemptFailed,
    AttemptReport,
    Export,
    Hello,
    Ping,
    RemoteKv,
    RouterMessage,
    Submit,
)
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.core.spans import Span, TraceContext
from tandem.link.proof import LinkKeys
from tandem.link.protocol import RouterLink
from tandem.link.tcp_dialer import TcpDialer
from tandem.model.directory import open_model
from tandem.process.local_processes import LocalProcesses
from tandem.process.processes import Command, Process

CHUNKS: Final = 8
LIMIT: Final = 0.1
SCHEMES: Final = ("shm", "tcp")
_START_S: Final = 120.0
_ROUND_S: Final = 60.0
_BEAT_S: Final = 0.5


@dataclass(frozen=True)
class HandoffRun:
    """One hand-off, seconds and bytes. `exposed_s` may be as low as zero."""

    prefill_s: float
    exposed_s: float
    bytes: int


def build_model(directory: Path, hidden: int, layers: int, context: int) -> None:
    """A random Llama in bfloat16 with the demo model's tokenizer."""
    # Imported on use: seconds of start-up that only this function needs.
    import torch
    import transformers

    logs: Any = transformers.utils.logging
    logs.disable_progress_bar()
    demo = open_model("demo")
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=demo.config.vocab_size,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=context,
        dtype=torch.bfloat16,
    )
    model: Any = transformers.LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(directory)
    for file in demo.tokenizer_path.parent.glob("tokenizer*"):
        shutil.copy(file, directory)


class LinkedWorker:
    """A worker process and the link to it, with this side's heartbeats."""

    def __init__(self, process: Process, link: RouterLink) -> None:
        self.process = process
        self.link = link
        self._reports: dict[int, asyncio.Future[AttemptReport]] = {}
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._tasks = (asyncio.create_task(self._read()), asyncio.create_task(self._beat()))

    async def hello(self) -> Hello:
        return await asyncio.wait_for(self._hello, _START_S)

    def submit(self, submit: Submit) -> "asyncio.Future[AttemptReport]":
        """Send it; gives its report when the attempt has ended on this worker."""
        future = asyncio.get_running_loop().create_future()
        self._reports[submit.handle] = future
        self.link.tokens.send(submit)
        return future

    async def _read(self) -> None:
        while True:
            for message in await self.link.tokens.receive():
                self._take(message)

    def _take(self, message: RouterMessage) -> None:
        if isinstance(message, Hello):
            self._hello.set_result(message)
        elif isinstance(message, AttemptReport):
            self._ended(message.handle).set_result(message)
        elif isinstance(message, AttemptFailed):
            self._ended(message.handle).set_exception(RuntimeError(f"{message.code}: {message.message}"))

    def _ended(self, handle: int) -> "asyncio.Future[AttemptReport]":
        """The future of an attempt; a report that follows a failure is for nobody."""
        return self._reports.pop(handle, None) or asyncio.get_running_loop().create_future()

    async def _beat(self) -> None:
        count = 0
        while True:
            count += 1
            self.link.tokens.send(Ping(count))
            await asyncio.sleep(_BEAT_S)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.link.close("the measurement is over")
        self.process.signal(signal.SIGTERM)
        await asyncio.wait_for(self.process.wait(), _START_S)


async def start_worker(
    control: LocalProcesses, role: str, flags: Mapping[str, object], keys: LinkKeys, stack: AsyncExitStack
) -> LinkedWorker:
    """Start `python -m ROLE_worker`, wait until it listens, and dial it."""
    arguments = [part for key, value in flags.items() for part in (f"--{key}", str(value))]
    argv = [sys.executable, "-m", f"{role}_worker", "--events", *arguments]
    process = await control.start(Command(role, argv, os.environ))
    address = await asyncio.wait_for(_address(process), _START_S)
    link = await TcpDialer("benchmark", SeededEntropy(1, role), keys=keys).dial(address, _START_S)
    worker = LinkedWorker(process, link)
    stack.push_async_callback(worker.stop)
    return worker


async def _address(process: Process) -> str:
    while (lines := await process.lines()) is not None:
        for line in lines:
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") == "listening":
                return str(event["address"])
            if event.get("event") == "error":
                raise RuntimeError(f"a worker cannot start: {line}")
    raise RuntimeError("a worker ended before it listened")


class WorkerPair:
    """A prefill and a decode worker, as a router sees them."""

    def __init__(
        self, prefill: LinkedWorker, decode: LinkedWorker, keyring: Keyring, prompt_tokens: int, vocabulary: int
    ) -> None:
        self._prefill = prefill
        self._decode = decode
        self._keyring = keyring
        self._prompt_tokens = prompt_tokens
        self._vocabulary = vocabulary
        self._draw = random.Random(1)
        self._handle = 0

    async def hand_off(self, scheme: str, overlapped: bool) -> HandoffRun:
        """One new prompt through both workers over one transport; if not `overlapped`, one after the other."""
        self._handle += 1
        prompt = pack_tokens([self._draw.randrange(3, self._vocabulary) for _ in range(self._prompt_tokens)])
        holder, receiver = await self._prefill.hello(), await self._decode.hello()
        export = Export(f"overlap-{self._handle}", receiver.epoch, 30.0)
        remote = self._remote(holder, export, scheme)
        async with asyncio.timeout(_ROUND_S):
            computing = self._prefill.submit(self._submit("prefill", prompt, export=export))
            if not overlapped:
                await computing
            pulling = self._decode.submit(self._submit("decode", prompt, remote=remote))
            return _run(await computing, await pulling, scheme)

    def _remote(self, holder: Hello, export: Export, scheme: str) -> RemoteKv:
        claims = Claims("benchmark", holder.epoch, export.lease_id, export.decode_epoch, time.time() + _ROUND_S)
        addresses = tuple(address for address in holder.addresses if address.startswith(f"{scheme}://"))
        return RemoteKv(holder.worker_id, holder.epoch, addresses, export.lease_id, issue(self._keyring, claims))

    def _submit(
        self, mode: str, prompt: bytes, *, export: Export | None = None, remote: RemoteKv | None = None
    ) -> Submit:
        return Submit(
            handle=self._handle,
            request_id=f"overlap-{self._handle}",
            attempt=1,
            mode=mode,
            prompt=prompt,
            branches=(ChildRequest(sequence=0, seed=self._handle),),
            sampling=Sampling(temperature=0.0),
            stopping=Stopping(max_tokens=4, ignore_eos=True),
            deadline_s=_ROUND_S,
            remote=remote,
            export=export,
            traceparent=TraceContext(f"{self._handle:032x}", f"{self._handle:016x}").header(),
        )


def _run(computed: AttemptReport, pulled: AttemptReport, scheme: str) -> HandoffRun:
    """The figures of a hand-off in which everything travelled: anything else is no measurement."""
    prefill, pull = _span(computed.spans, "prefill"), _span(pulled.spans, "kv.pull")
    problems = []
    if prefill.attributes["chunks"] != CHUNKS:
        problems.append(f"prefill took {prefill.attributes['chunks']} chunks, not {CHUNKS}")
    if pull.attributes["path"] != scheme or "failed" in pull.attributes:
        problems.append(f"the pull over {scheme} gave {pull.attributes}")
    if pulled.tokens_computed:
        problems.append(f"decode computed {pulled.tokens_computed} prompt tokens")
    if problems:
        raise RuntimeError("; ".join(problems))
    exposed_s = pull.end_s - max(prefill.end_s, pull.start_s)
    return HandoffRun(prefill.end_s - prefill.start_s, max(0.0, exposed_s), pulled.bytes_pulled)


def _span(spans: Sequence[Span], name: str) -> Span:
    return next(span for span in spans if span.name == name)


async def measure(arguments: argparse.Namespace, directory: Path) -> dict[str, list[HandoffRun]]:
    """Every transport's rounds."""
    model, key = directory / "model", directory / "key"
    prompt_tokens = CHUNKS * arguments.chunk
    build_model(model, arguments.hidden, arguments.layers, prompt_tokens + 64)
    key.write_text(os.urandom(32).hex() + "\n")
    flags = {
        "model": model,
        "ticket_key_file": key,
        "socket_directory": directory,
        "torch.threads": 1,
        "scheduler.max_batched_tokens": arguments.chunk,
        "log.level": "warning",
    }
    control = LocalProcesses(directory)
    keys = LinkKeys(read_keyring(key).secrets)
    async with AsyncExitStack() as stack:
        prefill, decode = await asyncio.gather(
            *(
                start_worker(control, role, {"worker_id": role, **flags}, keys, stack)
                for role in ("prefill", "decode")
            )
        )
        pair = WorkerPair(prefill, decode, read_keyring(key), prompt_tokens, open_model(str(model)).config.vocab_size)
        contenders: dict[str, Callable[[], Awaitable[HandoffRun]]] = {}
        for scheme in SCHEMES:
            contenders[scheme] = partial(pair.hand_off, scheme, True)
            contenders[f"{scheme}, pulled after prefill"] = partial(pair.hand_off, scheme, False)
        return await alternate(contenders, arguments.rounds)


def show(results: Mapping[str, Sequence[HandoffRun]]) -> None:
    """A line per contender, medians over rounds."""
    rows = []
    for name, runs in results.items():
        prefill_s = statistics.median(run.prefill_s for run in runs)
        exposed_s = statistics.median(run.exposed_s for run in runs)
        share = statistics.median(run.exposed_s / run.prefill_s for run in runs)
        figures = (f"{prefill_s * 1e3:.0f}", f"{exposed_s * 1e3:.1f}", f"{share * 100:.1f}")
        rows.append((name, *figures, f"{runs[0].bytes / 1e6:.1f}"))
    print(table(("median of rounds", "prefill ms", "exposed ms", "share %", "MB"), rows) + "\n")


def judge(results: Mapping[str, Sequence[HandoffRun]]) -> list[Check]:
    """The share of prefill that the transfer adds, per transport."""
    shares = {name: [run.exposed_s / run.prefill_s for run in results[name]] for name in SCHEMES}
    return [
        Check(f"exposed transfer / prefill over {name}", statistics.median(share), LIMIT, at_least=False)
        for name, share in shares.items()
    ]


def main() -> int:
    """Measure and give the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--chunk", type=int, default=256, help="tokens per chunk")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=16)
    arguments = parser.parse_args()
    print(
        f"random model, hidden {arguments.hidden}, {arguments.layers} layers; {CHUNKS} chunks of {arguments.chunk}\n"
    )
    with tempfile.TemporaryDirectory() as directory:
        results = asyncio.run(measure(arguments, Path(directory)))
    show(results)
    return verdict(judge(results), "the transfer hides behind prefill")


if __name__ == "__main__":
    sys.exit(main())
