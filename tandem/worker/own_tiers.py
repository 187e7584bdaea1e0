"""A worker process's own tiers, from its settings."""

from dataclasses import replace

from kv_transfer.key_file import read_keyring
from kv_transfer.tickets import Keyring, TicketKey
from kv_transfer.tiers.open import TierIdentity, open_tiers
from kv_transfer.tiers.pool_pins import PinningPool, PoolPins
from kv_transfer.tiers.protocol import Tiers
from tandem.core.clock import Clock
from tandem.core.entropy import Entropy
from tandem.core.errors import TandemError
from tandem.core.metrics import Meter
from tandem.engine.protocol import BlockSpace, EngineInfo
from tandem.worker.deps import OpenTiers
from tandem.worker.identity import root_name
from tandem.worker.process_settings import WorkerSettings


def own_tiers(settings: WorkerSettings, clock: Clock, entropy: Entropy, meter: Meter) -> OpenTiers | None:
    """The function that makes the tiers once the engine has loaded; None when the settings ask for none.

    That function raises `bad_setting` for tiers that cannot be had.
    """
    tiers = settings.tiers
    if not tiers.wanted:
        return None
    if settings.engine == "vllm":
        # Its stage is the DRAM tier; what is below takes blocks from there.
        tiers = replace(tiers, dram_bytes=0)
    if not tiers.wanted:
        return lambda space, _: PoolPins(_pinning(space), clock, tiers)

    def open_them(space: BlockSpace, info: EngineInfo) -> Tiers:
        block_bytes = info.layout.block_bytes
        if max(tiers.dram_bytes, tiers.nvme_bytes) < block_bytes:
            problem = f"tiers.dram_bytes = {tiers.dram_bytes}: a block of this model takes {block_bytes} bytes"
            raise TandemError("bad_setting", problem, param="tiers.dram_bytes")
        identity = TierIdentity(settings.worker_id, root_name(info))
        return open_tiers(tiers, space, clock, meter, _keyring(settings, entropy), identity, entropy)

    return open_them


def _pinning(space: BlockSpace) -> PinningPool:
    # Imported on use: no other engine needs what it brings along.
    from tandem.engine.vllm.stage_space import StageSpace

    assert isinstance(space, StageSpace), "of engines that are vLLM the stage is the block space"
    return space


def _keyring(settings: WorkerSettings, entropy: Entropy) -> Keyring:
    """The keys that seal what the tiers write: the service's ticket key. Without one, nothing is found again after a
    restart."""
    if settings.ticket_key_file is not None:
        return read_keyring(settings.ticket_key_file)
    return Keyring(TicketKey("own", entropy.token(32)))
