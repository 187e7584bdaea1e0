"""`router.generation.PinnedPrefixes` over the fleet: who has the blocks of a prefix that is kept, and letting go of
them."""

from collections.abc import Sequence

from router.dispatch.adapters import prompt_root
from router.fleet.fleet import Fleet
from router.fleet.peer import Peer
from router.generation import BlockShape, Generation, PrefixReplica
from tandem.core.kv import NAME_BYTES, chain_names
from tandem.core.messages import Unpin


class FleetPinnedPrefixes:
    """Knows holders by incarnation: what another one has was not kept by it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def shape(self, model: str) -> BlockShape | None:
        hellos = [peer.hello for peer in self._fleet.peers() if peer.hello.model == model]
        if not hellos:
            return None
        layout = hellos[0].layout
        return BlockShape(layout.block_tokens, layout.block_bytes, any(hello.tiers for hello in hellos))

    def names(self, holder: PrefixReplica, generation: Generation) -> bytes:
        peer = self._peer(holder)
        if peer is None:
            return b""
        block_tokens = peer.hello.layout.block_tokens
        prompt = generation.prompt[: 4 * block_tokens * holder.blocks]
        root = prompt_root(peer.hello.root, peer.view.adapters, generation)
        return b"" if root is None else b"".join(chain_names(root, prompt, block_tokens))

    def still(self, holders: Sequence[PrefixReplica], names: bytes) -> tuple[PrefixReplica, ...]:
        here = [holder for holder in holders if self._peer(holder) is not None]
        if not here:
            return ()
        leading = self._fleet.leading([names[at : at + NAME_BYTES] for at in range(0, len(names), NAME_BYTES)])
        return tuple(
            PrefixReplica(holder.worker_id, holder.epoch, leading[holder.worker_id].total)
            for holder in here
            if holder.worker_id in leading
        )

    def unpin(self, holder: PrefixReplica, names: bytes, tenant_salt: str) -> None:
        peer = self._peer(holder)
        if peer is not None:
            peer.send(Unpin(names[: NAME_BYTES * holder.blocks], tenant_salt))

    def _peer(self, holder: PrefixReplica) -> Peer | None:
        peer = self._fleet.peer(holder.worker_id)
        return peer if peer is not None and peer.epoch == holder.epoch else None
