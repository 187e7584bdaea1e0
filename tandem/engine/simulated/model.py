"""The settings of a simulated model: its size, its speed and its speech."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from tandem.core.errors import TandemError
from tandem.core.kv import Layout
from tandem.core.messages import ITL_TARGET
from tandem.core.simple_tokenizer import BYTE_IDS, VOCAB_SIZE
from tandem.engine.digest import DIGEST
from tandem.engine.protocol import EngineInfo
from tandem.engine.scheduler.step_budget import StepLoad

_CONTENT_VERSION: Final = "1"


@dataclass(frozen=True)
class SimulatedModel:
    """A model that exists as a formula. Two workers with equal `name`, `seed`, `vocab` and `block_tokens` agree
    on every token. Raises `bad_setting` naming the field.

    A step takes `base_s + sequence_s * decoding sequences + read_s * positions they attend to + token_s * prompt
    tokens + context_s * positions those attend to` seconds. `eos_rate` is the chance of the end token at each
    position. Ids are words of the simple tokenizer: bytes are only read, never drawn.
    """

    name: str = "simulated"
    seed: int = 0
    vocab: int = VOCAB_SIZE
    eos_token_id: int = 0
    eos_rate: float = 0.0
    context_tokens: int = 8192
    block_tokens: int = 16
    blocks: int = 4096
    base_s: float = 0.004
    sequence_s: float = 0.00005
    token_s: float = 0.00002
    context_s: float = 2e-9
    read_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("context_tokens", "block_tokens", "blocks"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("base_s", "sequence_s", "token_s", "context_s", "read_s"):
            self._require(name, getattr(self, name) >= 0, "at least 0")
        self._require("vocab", BYTE_IDS + 2 <= self.vocab < 1 << 32, f"between {BYTE_IDS + 2} and 2**32")
        self._require("eos_token_id", 0 <= self.eos_token_id < BYTE_IDS, f"below {BYTE_IDS}")
        self._require("eos_rate", 0 <= self.eos_rate < 1, "in [0, 1)")

    def _require(self, name: str, holds: bool, what: str) -> None:
        if not holds:
            raise TandemError("bad_setting", f"{name} must be {what}, got {getattr(self, name)}", param=name)

    @property
    def layout(self) -> Layout:
        """One 64-bit word per position for K and one for V."""
        return Layout(
            engine="simulated",
            packing="plain",
            dtype="u64",
            item_bytes=8,
            layers=1,
            block_tokens=self.block_tokens,
            kv_heads=1,
            head_dim=1,
            digest=DIGEST,
        )

    def info(self) -> EngineInfo:
        text = f"{_CONTENT_VERSION}/{self.name}/{self.seed}/{self.vocab}/{self.eos_token_id}/{self.eos_rate}"
        return EngineInfo(
            model=self.name,
            model_hash=blake2b(text.encode(), digest_size=16).hexdigest(),
            vocab_size=self.vocab,
            context_tokens=self.context_tokens,
            eos_token_ids=(self.eos_token_id,),
            blocks=self.blocks,
            layout=self.layout,
            features=(ITL_TARGET,),
            columns=True,
        )

    def step_s(self, load: StepLoad) -> float:
        """Seconds that a step with this load takes."""
        decode = load.decode_rows * self.sequence_s + load.decode_context * self.read_s
        return self.base_s + decode + load.prefill_tokens * self.token_s + load.prefill_context * self.context_s
