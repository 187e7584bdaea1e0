"""The engine of a store: it computes nothing and has no pool, so that a store is a worker like any other."""

import asyncio

from tandem.core.errors import TandemError
from tandem.core.messages import Hello
from tandem.engine.protocol import BlockSpace, EngineInfo, EngineRequest, Listener


def info_of(hello: Hello, blocks: int) -> EngineInfo:
    """The `EngineInfo` of a store, whose blocks are those of the worker that sent `hello`."""
    return EngineInfo(
        model=hello.model,
        model_hash=hello.model_hash,
        vocab_size=0,
        context_tokens=hello.context_tokens,
        eos_token_ids=hello.eos_token_ids,
        blocks=blocks,
        layout=hello.layout,
    )


class IdleEngine:
    """`tandem.engine.protocol.Engine` that refuses every work."""

    def __init__(self, info: EngineInfo) -> None:
        self._info = info
        self._stopped = asyncio.Event()

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def kv(self) -> BlockSpace | None:
        return None

    async def start(self) -> EngineInfo:
        return self._info

    async def run(self, listener: Listener) -> None:
        """Nothing, until `stop`."""
        await self._stopped.wait()

    async def stop(self) -> None:
        self._stopped.set()

    def submit(self, work: EngineRequest) -> None:
        """Raises `no_workers`."""
        raise TandemError("no_workers", "a store keeps blocks and computes nothing")

    def cancel(self, work_id: int, sequence: int | None = None) -> None:
        return None

    def provide_first(self, work_id: int, sequence: int, token: int, relay: bool = False) -> None:
        return None

    def sample_first(self, work_id: int) -> None:
        return None

    def set_itl_target(self, itl_target_s: float | None) -> None:
        return None

    def snapshot(self) -> tuple[bytes, ...]:
        return ()
