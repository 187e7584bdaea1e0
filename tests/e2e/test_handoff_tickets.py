"""A holder gives its blocks to the one receiver its ticket was issued for, and to nobody else."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kv_transfer.tickets import Claims, Keyring, TicketKey, issue
from kv_transfer.transport.protocol import BlockReceived, Delivered, PullEvent, PullOpen
from tandem.core.errors import TandemError
from tandem.core.kv import pack_tokens
from tandem.core.request import ChildRequest, Stopping
from tandem.engine.private_memory import PrivateMemory
from tandem.engine.protocol import EngineRequest, FirstTokens
from tandem.process.system import SystemClock
from tandem.worker.identity import root_name
from tests.worlds.asking import GREEDY
from tests.worlds.platform import Platform, Worker, platform, until
from tools.equality.models import demo
from tools.equality.runs import Setting

SETTING = Setting(demo())


class Shelf:
    """A sink of its own memory."""

    def __init__(self, block_bytes: int, blocks: int) -> None:
        self._memory = PrivateMemory(block_bytes, blocks)

    def block(self, index: int) -> memoryview:
        return self._memory.block(index)


LEASE = "a-lease"
RECEIVER = 99
STRANGER = Keyring(TicketKey("platform", b"the right name, the wrong secret"))
WRONG: dict[str, Callable[[Keyring, Claims], bytes]] = {
    "no ticket": lambda _keys, _claims: b"",
    "another lease": lambda keys, claims: issue(keys, replace(claims, lease_id="another")),
    "another receiver": lambda keys, claims: issue(keys, replace(claims, receiver_epoch=RECEIVER + 1)),
    "another holder": lambda keys, claims: issue(keys, replace(claims, holder_epoch=claims.holder_epoch ^ 1)),
    "expired": lambda keys, claims: issue(keys, replace(claims, expires=claims.expires - 1000)),
    "forged": lambda _keys, claims: issue(STRANGER, claims),
    "changed": lambda keys, claims: bytes((*(ticket := issue(keys, claims))[:-1], ticket[-1] ^ 1)),
}


async def pulled(running: Platform, scheme: str, ticket: Callable[[Keyring, Claims], bytes]) -> list[PullEvent]:
    """Everything a receiver gets of a finished prefill when it presents this ticket."""
    holder = running.workers["prefill-0"].engine
    transport = running.workers["decode-0"].transports[0]
    claims = Claims("tenant", holder.epoch, LEASE, RECEIVER, SystemClock().wall() + 60)
    names = holder.snapshot()
    request = PullOpen(LEASE, ticket(running.keyring, claims), holder.epoch, RECEIVER, holder.layout, names)
    address = running.workers["prefill-0"].kv_addresses[0]
    assert address.startswith(scheme)
    pull = await transport.open(address, request, Shelf(holder.layout.block_bytes, len(names)), 5.0)
    try:
        return [event async for event in pull.events()]
    finally:
        await pull.close()


def export_something(worker: Worker) -> None:
    """Let a worker compute a prompt of two whole blocks and keep it under `LEASE`."""
    engine = worker.engine
    engine.submit(
        EngineRequest(
            work_id=1 << 40,
            mode="prefill",
            prompt=pack_tokens(SETTING.subject.prompt(32, 7)),
            branches=(ChildRequest(0, 1),),
            sampling=GREEDY,
            stopping=Stopping(max_tokens=4),
            root=root_name(engine.info),
            deadline=SystemClock().now() + 60,
            lease_id=LEASE,
            lease_s=60.0,
        )
    )


@pytest.mark.parametrize("scheme", ["tcp", "shm"])
async def test_blocks_are_given_out_for_a_valid_ticket_only(scheme: str) -> None:
    async with platform(replace(SETTING.platform(scheme), prefill=1, decode=1)) as running:
        prefill = running.workers["prefill-0"]
        export_something(prefill)
        await until(lambda: prefill.engine.first_tokens(LEASE) is not None, 10, "nothing was exported")
        for what, ticket in WRONG.items():
            with pytest.raises(TandemError) as caught:
                await pulled(running, scheme, ticket)
            assert caught.value.code == "ticket_refused", what
        events = await pulled(running, scheme, issue)
        assert [landed.index for event in events for landed in _landed(event)] == [0, 1]
        assert isinstance(events[-1], FirstTokens)


def _landed(event: PullEvent) -> tuple[BlockReceived, ...]:
    if isinstance(event, Delivered):
        return event.blocks
    return (event,) if isinstance(event, BlockReceived) else ()
