"""Frames that travel on a KV connection besides the values of `protocol`. `rpc` encodes them."""

from dataclasses import dataclass
from typing import Final

from kv_transfer.transport.protocol import Alive, Missing, PullOpen
from tandem.core.kv import Handle
from tandem.engine.protocol import FirstTokens

GREETING: Final = b"tandemkv"
"""The first bytes of a receiver on a new connection; anything else is not one of ours."""

REQUEST_BYTES_MAX: Final = 2 << 20
"""Longest receiver frame: room for 128k block names of 16 bytes."""

ANSWER_BYTES_MAX: Final = 1 << 20
"""Longest holder frame, block bytes not counted."""


@dataclass(frozen=True)
class Acknowledge:
    """The receiver wants nothing more of a lease."""

    lease_id: str


@dataclass(frozen=True)
class Refused:
    """A block of a lease did not verify where it arrived."""

    lease_id: str
    name: bytes


@dataclass(frozen=True)
class Offers:
    """Complete blocks, in order, at least one: `handles[i]` is what was asked for at `indices[i]`. Over TCP their
    bytes follow."""

    indices: tuple[int, ...]
    handles: tuple[Handle, ...]


@dataclass(frozen=True)
class Failed:
    """The pull ends with a typed error of the holder."""

    code: str
    message: str


@dataclass(frozen=True)
class Pool:
    """The holder's block memory, as the receiver gets to it: over shared memory a file descriptor comes with the byte
    after this frame, over nixl `agent` has it registered, with block 0 at address `base`."""

    block_bytes: int
    blocks: int
    agent: bytes = b""
    agent_name: str = ""
    base: int = 0
    connection: int = 0


ReceiverFrame = PullOpen | Acknowledge | Refused
HolderFrame = Offers | Missing | Alive | FirstTokens | Failed | Pool
