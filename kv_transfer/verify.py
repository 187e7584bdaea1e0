"""Whether the bytes that arrived are the block that was asked for: incarnation, name, digest."""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.core.kv import Handle
from tandem.engine.digest import bind
from tandem.engine.hashing import DigestJob, Hashing, hashed


@dataclass(frozen=True)
class Refusal:
    """Why a pulled block is not used. `reason` is a metric label: `epoch`, `name` or `digest`."""

    reason: str
    message: str


class Verifier:
    """Checks blocks of one layout."""

    def __init__(self, hashing: Hashing) -> None:
        self._hashing = hashing

    def begin(self, blocks: Sequence[memoryview]) -> DigestJob:
        """Start hashing blocks, whose slots must not be written to before the job is over. `judge` evaluates the
        result."""
        return self._hashing.begin(blocks)

    async def check(
        self, blocks: Sequence[memoryview], handles: Sequence[Handle], *, epoch: int, names: Sequence[bytes]
    ) -> list[bytes | Refusal]:
        """Hash blocks that are here and `judge` them. When cancelled, it ends once nothing reads the blocks any
        more."""
        return judge(await hashed(self._hashing, blocks), handles, epoch=epoch, names=names)

    def close(self) -> None:
        """Threads end with what they have been given."""
        self._hashing.close()


def judge(
    words: Sequence[bytes], handles: Sequence[Handle], *, epoch: int, names: Sequence[bytes]
) -> list[bytes | Refusal]:
    """Check each block, which hashes to `words[i]`. Gives its unbound content words, or the reason why it is not
    block `names[i]` of incarnation `epoch` as `handles[i]` says."""
    return [
        _refusal(handle, found, epoch, name) or found
        for handle, found, name in zip(handles, words, names, strict=True)
    ]


def _refusal(handle: Handle, words: bytes, epoch: int, name: bytes) -> Refusal | None:
    if handle.epoch != epoch:
        return Refusal("epoch", f"the block is of epoch {handle.epoch:x}, {epoch:x} was asked for")
    if handle.name != name:
        return Refusal("name", f"the block is {handle.name.hex()}, {name.hex()} was asked for")
    if bind(words, handle.epoch, handle.name, handle.generation) != handle.digests:
        return Refusal("digest", f"the bytes of block {name.hex()} are not those its holder computed")
    return None
