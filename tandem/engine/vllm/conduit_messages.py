"""The messages between a stage and the ranks of its engine. One message is one packet of a Unix socket."""

from typing import Final

import msgspec

from tandem.engine.counts import ExpertBalance
from tandem.engine.vllm.canonical import PageFormat, RankPart

CONDUIT_VERSION: Final = 2
PACKET_BYTES_MAX: Final = 64 << 10
INDICES_MAX: Final = 4096
"""The most block indices in one message."""
OUTPUT_BLOCKS_MAX: Final = 2048
"""Blocks of a request's output that are offered: their names fit one packet."""


# -- from a rank --


class RankHello(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """The first message of a rank, once its KV cache is allocated: who it is and what it holds of every block."""

    version: int
    rank: int
    world: int
    pid: int
    pages: PageFormat
    part: RankPart


class Saved(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """Reports that this rank's part of these blocks of a request is in their slots."""

    work: int
    indices: tuple[int, ...]


class LoadFinished(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """Reports that this rank has declared a request's load finished. `copied` blocks were taken from slots."""

    work: int
    sequence: int
    copied: int


class Began(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """The engine gave a request its blocks: `cached` leading tokens were in its own prefix cache, `loading` more are
    awaited from the stage. Told by rank 0 alone."""

    work: int
    sequence: int
    cached: int
    loading: int


class Ended(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=5):
    """A request is over: this rank touches no slot for it any more."""

    work: int
    sequence: int


class Routed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=6):
    """Reports how the tokens of this rank's layers were routed to experts of late, for a metric. Of the ranks that
    see the same tokens, one sends it."""

    balance: ExpertBalance


class OutputOffer(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=7):
    """A request is over, and the engine keeps the blocks of its output for a moment: these are their names. Told by
    rank 0 alone; answered with `OutputSlots` to all ranks."""

    work: int
    sequence: int
    names: tuple[bytes, ...]


class OutputSaved(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=8):
    """Reports that this rank no longer uses the slots it was given for a request's output. `saved`: its part is in
    them."""

    work: int
    sequence: int
    saved: bool


FromRank = RankHello | Saved | LoadFinished | Began | Ended | Routed | OutputOffer | OutputSaved


# -- to all ranks --


class Welcome(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=16):
    """The stage's memory, whose descriptor comes with this message."""

    block_bytes: int
    blocks: int


class BlocksReceived(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=17):
    """Reports that these blocks of a request are complete in their slots and verified."""

    work: int
    indices: tuple[int, ...]


class Spoiled(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=18):
    """Reports that these blocks of a request turned out to be damaged after they had landed."""

    work: int
    indices: tuple[int, ...]


class Withheld(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=23):
    """Late bytes may still land in the slots of these blocks: they are not to be saved."""

    work: int
    indices: tuple[int, ...]


class NoMore(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=19):
    """Reports that no more blocks land for a request."""

    work: int


class First(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=20):
    """The next position of a sequence, drawn elsewhere."""

    work: int
    sequence: int
    token: int


class DrawFirst(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=21):
    """Asks the ranks to sample here the next positions of a request that have not been provided."""

    work: int


class Closed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=22):
    """A work is over."""

    work: int


class OutputSlots(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=24):
    """The slots for the offered blocks of a request's output, in the order of their names; `NO_SLOT` for a block that
    the stage has, or has no room for. Every rank answers with `OutputSaved`."""

    work: int
    sequence: int
    slots: tuple[int, ...]


ToRank = Welcome | BlocksReceived | Spoiled | Withheld | NoMore | First | DrawFirst | Closed | OutputSlots

encode: Final = msgspec.msgpack.Encoder().encode
decode_from_rank: Final = msgspec.msgpack.Decoder(FromRank).decode
decode_to_rank: Final = msgspec.msgpack.Decoder(ToRank).decode
