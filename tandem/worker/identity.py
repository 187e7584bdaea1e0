"""The identity of a worker: what its first message on every link says."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tandem.core.kv import RootIdentity
from tandem.core.messages import PROTOCOL_VERSION, Hello, TierCost
from tandem.engine.protocol import EngineInfo

MODES: Final = MappingProxyType(
    {
        "prefill": ("prefill", "local"),
        "decode": ("decode", "local", "prefill"),
        "unified": ("decode", "local", "prefill"),
        "auto": ("decode", "local", "prefill"),
    }
)
"""The modes of `Submit` that each role accepts. A worker that decodes takes mode `prefill` to hand over the blocks it
has; one of role `auto` takes it also to compute prompts for other workers, when routers say so."""


def root_name(info: EngineInfo) -> bytes:
    """The root of all block names for the empty tenant salt; equal on workers whose bytes are interchangeable."""
    return RootIdentity(info.model_hash, info.layout.dtype, info.layout.block_tokens).name()


@dataclass(frozen=True)
class Identity:
    """The parts of `Hello` that stay the same for the life of a worker process once its canary is over: with it
    come `canary`, the `addresses` that passed and the `problems` of those that did not, after that of an engine whose
    KV is not exchanged at all."""

    worker_id: str
    role: str
    info: EngineInfo
    revision: str = ""
    addresses: tuple[str, ...] = ()
    canary: str = ""
    problems: tuple[str, ...] = ()
    kv_events: bool = True
    """Whether this worker reports which blocks it has."""
    hardware: str = ""

    def hello(self, epoch: int, draining: bool, unready: bool = False, tiers: tuple[TierCost, ...] = ()) -> Hello:
        info = self.info
        return Hello(
            protocol=PROTOCOL_VERSION,
            worker_id=self.worker_id,
            epoch=epoch,
            role=self.role,
            model=info.model,
            model_hash=info.model_hash,
            revision=self.revision,
            layout=info.layout,
            root=root_name(info),
            blocks=info.blocks,
            context_tokens=info.context_tokens,
            eos_token_ids=info.eos_token_ids,
            addresses=self.addresses,
            draining=draining,
            unready=unready,
            canary=self.canary,
            problems=self.problems,
            tiers=tiers,
            features=info.features,
            adapters=info.adapters,
            kv_events=self.kv_events,
            hardware=self.hardware,
            export_blocks=info.export_blocks,
            max_sequences=info.max_sequences,
        )
