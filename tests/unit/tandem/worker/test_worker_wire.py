"""A prefill and a decode worker over real links and real KV transports: in one process, and as processes."""

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kv_transfer.key_file import read_keyring
from kv_transfer.transport.protocol import Transport
from kv_transfer.transport.shm import ShmSettings, ShmTransport
from kv_transfer.transport.tcp import TcpSettings, TcpTransport
from tandem.core.entropy import SeededEntropy
from tandem.core.errors import TandemError
from tandem.core.messages import Hello, Submit
from tandem.core.request import ChildRequest, Sampling, Stopping
from tandem.core.simple_tokenizer import decode
from tandem.engine.local import LocalEngine
from tandem.engine.memory import HostMemory
from tandem.engine.settings import SchedulerSettings
from tandem.engine.simulated.model import SimulatedModel
from tandem.engine.simulated.reference import reference_tokens
from tandem.engine.simulated.runner import SimulatedRunner
from tandem.link.dialer import open_dialer
from tandem.link.proof import LinkKeys
from tandem.link.tcp_dialer import TcpDialer
from tandem.link.tcp_server import TcpLinkServer
from tandem.process.system import SystemClock
from tandem.process.tls_settings import TlsSettings
from tandem.worker.deps import WorkerDeps
from tandem.worker.simple_decoder import SimpleDecoder
from tests.worlds.certificates import HAS_OPENSSL, make_certificates
from tests.worlds.transport_stage import encrypted
from tests.worlds.worker_stage import (
    Router,
    build_decode,
    build_prefill,
    dial,
    hand_off,
    prompt,
    running,
    submit,
)

needs_openssl = pytest.mark.skipif(not HAS_OPENSSL, reason="makes certificates with openssl")
FAST = SimulatedModel(blocks=512, context_tokens=4096, base_s=0.0002, sequence_s=0.0, token_s=0.0, context_s=0.0)


def _parts(label: str) -> WorkerDeps:
    clock, entropy = SystemClock(), SeededEntropy(3, label)
    memory = HostMemory(FAST.layout.block_bytes, FAST.blocks)
    engine = LocalEngine(SimulatedRunner(FAST, memory), SchedulerSettings(), clock, entropy.u64())
    return WorkerDeps(engine, SimpleDecoder(), clock, entropy)


def _transport(scheme: str, folder: Path) -> Transport:
    if scheme == "shm":
        return ShmTransport(ShmSettings(str(folder)))
    return TcpTransport(TcpSettings(), encrypted() if scheme == "tls" else None)


def _reference(model: SimulatedModel, one: Submit, branch: int = 0) -> tuple[int, ...]:
    return reference_tokens(model, one.prompt, one.branches[branch], one.sampling, one.stopping).tokens


def _hello(router: Router) -> Hello:
    assert router.hello is not None
    return router.hello


@pytest.mark.parametrize("scheme", ["tcp", pytest.param("tls", marks=needs_openssl), "shm"])
async def test_hand_offs_over_real_links_and_transports_give_the_reference(scheme: str, tmp_path: Path) -> None:
    prefill = build_prefill(_parts("p"), TcpLinkServer("127.0.0.1:0"), [_transport(scheme, tmp_path)])
    decoder = build_decode(_parts("d"), TcpLinkServer("127.0.0.1:0"), [_transport(scheme, tmp_path)])
    path = "shm" if scheme == "shm" else "tcp"
    async with running(prefill, decoder):
        dialer = TcpDialer("router", SeededEntropy(4))
        p, d = await dial(dialer, prefill.address), await dial(dialer, decoder.address)
        pairs: dict[int, Submit] = {}
        for handle, length in enumerate((1, 15, 16, 17, 31, 33, 160, 700, 2100), start=1):
            branches = (
                (ChildRequest(0, handle), ChildRequest(1, handle + 50)) if handle % 2 else (ChildRequest(0, handle),)
            )
            to_p, to_d = hand_off(
                handle, _hello(p), _hello(d), prompt(length, handle), SystemClock().wall(), branches=branches
            )
            p.link.tokens.send(to_p)
            d.link.tokens.send(to_d)
            pairs[handle] = to_d
        for handle, one in pairs.items():
            report = await d.ended(handle)
            await p.ended(handle)
            assert report.tokens_computed == 0
            assert report.bytes_pulled > 0
            assert next(span for span in report.spans if span.name == "kv.pull").attributes["path"] == path
            for index in range(len(one.branches)):
                expected = _reference(FAST, one, index)
                assert d.tokens(handle, index) == expected
                assert d.text(handle, index) == decode(expected)
                assert p.tokens(handle, index) == expected[:1]
        assert not p.failed
        assert not d.failed
        p.stop()
        d.stop()


class Worker:
    """A worker process under test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events: list[str] = []

    @classmethod
    async def start(cls, module: str, *flags: str) -> "Worker":
        argv = (sys.executable, "-m", module, "--events", "--engine", "simulated", *flags)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return cls(
            await asyncio.create_subprocess_exec(
                *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=environment
            )
        )

    async def address(self) -> str:
        """Wait until it is ready."""
        assert self.process.stdout is not None
        address = ""
        async with asyncio.timeout(100.0):
            while "ready" not in self.events:
                line = json.loads(await self.process.stdout.readline())
                self.events.append(line["event"])
                address = line.get("address", address)
        return address

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()


@needs_openssl
async def test_a_worker_with_certificates_proves_its_encrypted_path_before_it_is_ready(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path / "tls", "DNS:tandem-worker")
    key_file = tmp_path / "key"
    key_file.write_text("6b" * 32 + "\n")
    flags = (
        *(f"--link.tls.{name}={getattr(tls, name)}" for name in ("certificate", "private_key", "authority")),
        *("--ticket_key_file", str(key_file), "--kv.transports=tcp"),
    )
    named = await Worker.start("prefill_worker", "--worker_id=p-0", "--link.tls.server_name=tandem-worker", *flags)
    wrong = await Worker.start("prefill_worker", "--worker_id=p-1", "--link.tls.server_name=another", *flags)
    try:
        address = await named.address()
        dialer = open_dialer("router", SeededEntropy(4), replace(tls, server_name="tandem-worker"))
        (offered,) = _hello(await dial(dialer, address)).addresses
        assert offered.startswith("tcp://")
        assert offered.endswith("/tls")
        assert await asyncio.wait_for(wrong.process.wait(), 100.0) != 0
        named.process.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(named.process.communicate(), 100.0)
        assert b"kv_preflight" in said
        assert b"encrypted=True" in said
        _, said = await wrong.process.communicate()
        assert b"certificate is not the one expected" in said
    finally:
        named.kill()
        wrong.kill()


async def test_worker_processes_serve_hand_offs_and_leave_on_sigterm(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text("6b" * 32 + "\n")
    prefill = await Worker.start(
        "prefill_worker",
        "--worker-id",
        "p-0",
        "--ticket-key-file",
        str(key_file),
        "--socket-directory",
        str(tmp_path),
    )
    decoder = await Worker.start(
        "decode_worker",
        *("--worker-id", "d-0", "--ticket-key-file", str(key_file)),
        *("--socket-directory", str(tmp_path)),
    )
    try:
        keys = LinkKeys(read_keyring(key_file).secrets)
        dialer = open_dialer("router", SeededEntropy(4), TlsSettings(), keys)
        addresses = await prefill.address(), await decoder.address()
        assert [address.partition("://")[0] for address in addresses] == ["tcp", "tcp"]
        p, d = await dial(dialer, addresses[0]), await dial(dialer, addresses[1])
        keyring = read_keyring(key_file)
        to_p, to_d = hand_off(
            1, _hello(p), _hello(d), prompt(500), SystemClock().wall(), keyring, stopping=Stopping(max_tokens=20)
        )
        p.link.tokens.send(to_p)
        d.link.tokens.send(to_d)
        report = await d.ended(1)
        assert d.tokens(1) == _reference(SimulatedModel(), to_d)
        assert report.tokens_computed == 0
        assert {span.name for span in report.spans} >= {"queue", "kv.pull", "decode"}

        d.link.tokens.send(submit(2, stopping=Stopping(max_tokens=400), sampling=Sampling(temperature=0.0)))
        await d.until(lambda: len(d.tokens(2)) > 2)
        decoder.process.send_signal(signal.SIGTERM)
        await d.ended(2)
        assert len(d.tokens(2)) == 400
        assert await asyncio.wait_for(decoder.process.wait(), 100.0) == 0
        await d.until(lambda: d.lost is not None)

        prefill.process.send_signal(signal.SIGKILL)
        await p.until(lambda: p.lost is not None)
        p.stop()
        d.stop()
    finally:
        prefill.kill()
        decoder.kill()
        await prefill.process.wait()
        await decoder.process.wait()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--engine", "steam"), "bad_setting: engine = 'steam': expected torch or vllm or simulated"),
        (("--kv.port", "x"), "bad_setting: kv.port = 'x': Expected `int`, got `str`"),
        (("--link.transport", "grpc"), "bad_setting: link.transport: transport = 'grpc': links run over tcp alone"),
        (("--link.bind", "256.0.0.1:1"), "bad_setting: link.bind '256.0.0.1:1': the address cannot be bound"),
    ],
)
async def test_a_worker_that_cannot_start_says_why_in_one_sentence(flags: tuple[str, ...], sentence: str) -> None:
    worker = await Worker.start("decode_worker", *flags)
    out, err = await asyncio.wait_for(worker.process.communicate(), 100.0)
    assert worker.process.returncode == 1
    assert sentence in err.decode()
    assert "Traceback" not in err.decode()
    last = json.loads(out.decode().splitlines()[-1])
    assert (last["event"], last["code"]) == ("failed", "bad_setting")


def test_key_files_hold_one_or_two_keys(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("aa" * 32 + "\n" + "bb" * 32 + "\n")
    both = read_keyring(path)
    assert both.other is not None
    path.write_text("bb" * 32)
    assert read_keyring(path).current == both.other
    for bad in ("", "xyz", "aa", "aa" * 16 + "\n" + "bb" * 16 + "\n" + "cc" * 16):
        path.write_text(bad)
        with pytest.raises(TandemError) as caught:
            read_keyring(path)
        assert caught.value.code == "bad_setting"
