"""The state of one worker, as placement knows it."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from router.placement.decision import Work
from router.placement.learning.prefill_costs import PrefillTerms
from router.placement.learning.step_costs import StepTerms
from tandem.core.kv import Layout
from tandem.core.messages import Hello, Load, TierCost

_STEPS_HELD: Final = "itl_target"
"""The feature of engines that chunk prompts so that steps with running sequences keep a target."""
_STEPS_SHARE: Final = 0.05
"""Weight of one report in what steps have taken lately: about a second of them counts."""
SEQUENCES_MAX: Final = 256
"""Sequences assumed for a worker that does not report how many its engine computes in one step."""
_ADAPTERS_MAX: Final = 16
"""Adapters sent to a worker, counted from the latest, that are taken to be loaded there."""


class Times(msgspec.Struct, frozen=True, gc=False):
    """Milliseconds that follow from a worker's figures alone, and what they were worked out with."""

    prefill: PrefillTerms
    step: StepTerms
    takes_prompts: bool
    queued_ms: float
    """Prompts before a new one."""
    step_ms: float
    """Milliseconds that a step that computes a piece of a prompt takes without that piece."""
    streaming_ms: float
    """A token of the streams there."""


@dataclass(slots=True)
class WorkerView:
    """One live worker as the router sees it. Its owner, the fleet, keeps it current in place; policies only read.

    `pairing` is a small number: workers of equal pairing have the same revision, root name and layout, so they
    may exchange KV. In-flight figures count this router's own attempts; the load figures, everybody's.
    """

    worker_id: str
    epoch: int
    role: str
    model: str
    revision: str
    pairing: int
    root: bytes
    layout: Layout
    blocks: int
    context_tokens: int
    """The longest sequence it takes."""
    draining: bool = False
    ready: bool = True
    """Whether it takes more than canaries."""
    overdue: bool = False
    """Whether the worker's engine is in a step that takes far longer than it may."""
    load: Load | None = None
    sequences_in_flight: int = 0
    prompt_tokens_in_flight: int = 0
    """Tokens to compute of prompts whose first token has not come yet; likewise `prompt_ms_in_flight`."""
    streams_in_flight: int = 0
    """Sequences in flight that generate on this worker; the others are prompts that another worker answers."""
    unseen: "deque[tuple[float, int, int]]" = field(default_factory=deque)
    """Submits the load figures may not show yet: (when, sequences, prompt tokens to compute)."""
    unseen_sequences: int = 0
    unseen_prompt_tokens: int = 0
    tiers: tuple[TierCost, ...] = ()
    """The tiers that the worker keeps below its pool, the fastest first."""
    prompt_ms_in_flight: float = 0.0
    attended_in_flight: int = 0
    """Positions that the sequences in flight attend to, all together."""
    prompt_tokens_computed: int = 0
    """Tokens computed of all prompts whose first token has come."""
    prompts: int = 0
    """Prompts ever submitted for computing, to see whether one had the worker to itself."""
    features: tuple[str, ...] = ()
    """Abilities of the worker's engine beyond those that every engine has."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Content hashes of the LoRA adapters it serves, by name."""
    warm: "OrderedDict[str, None]" = field(default_factory=OrderedDict)
    """Adapters that were in use there, the latest last."""
    hardware: str = ""
    export_blocks: int = 0
    """Blocks of the worker's pool that prompts computed for others may take; 0 where the worker does not report
    it."""
    sequences_max: int = SEQUENCES_MAX
    """Sequences that the worker's engine computes in one step, at most."""
    ready_at: float | None = None
    """When the worker began to take work, in seconds of the owner's clock, as far as its owner has seen it come."""
    takes_prompts: bool = False
    """Whether the worker computes prompts that other workers answer: a prefill worker always does, one of role `auto`
    while the split in force says so."""
    kind: tuple[str, ...] = field(init=False)
    """Workers of one kind are as fast."""
    block_tokens: int = field(init=False)
    block_bytes: int = field(init=False)
    capacity_tokens: int = field(init=False)
    """Tokens that the worker's blocks hold."""
    sequences: int = field(init=False, default=0)
    """Sequences running, waiting or on their way."""
    queued_prompt_tokens: int = field(init=False, default=0)
    """Prompt tokens that would be computed before a new prompt."""
    blocks_free: int = field(init=False, default=0)
    """Free blocks. A worker without work has all of them but the exported ones, whatever its figures say: they may
    be from before its first step."""
    attended_tokens: int = field(init=False, default=0)
    """Positions attended by a decode step over `sequences`: known of this router's own, of others by proportion."""
    decoding: int = field(init=False, default=0)
    """Sequences of the worker whose prompt has been computed."""
    steps_ms: float = field(init=False, default=0.0)
    """Recent time of steps with running sequences, in ms, prompts beside them included; 0 where nothing runs."""
    prompts_in_flight: int = field(init=False, default=0)
    """Attempts whose prompt is to be computed here and has not been."""
    steps_held: bool = field(init=False, default=False)
    """Whether it keeps its steps within what its service is to hold, whatever prompts there are."""
    times: Times | None = field(init=False, default=None)
    """Times that follow from the load figures, as last computed; None since the figures changed."""

    def __post_init__(self) -> None:
        self.block_tokens, self.block_bytes = self.layout.block_tokens, self.layout.block_bytes
        self.kind = self.hardware, self.model, self.revision, self.layout.engine
        self.capacity_tokens = self.blocks * self.block_tokens
        self.steps_held = _STEPS_HELD in self.features
        self.takes_prompts = self.takes_prompts or self.role == "prefill"
        self._renew()

    @classmethod
    def of(cls, hello: Hello, pairing: int) -> "WorkerView":
        return cls(
            worker_id=hello.worker_id,
            epoch=hello.epoch,
            role=hello.role,
            model=hello.model,
            revision=hello.revision,
            pairing=pairing,
            root=hello.root,
            layout=hello.layout,
            blocks=hello.blocks,
            context_tokens=hello.context_tokens,
            draining=hello.draining,
            ready=not hello.unready,
            tiers=hello.tiers,
            features=hello.features,
            hardware=hello.hardware,
            export_blocks=hello.export_blocks,
            sequences_max=hello.max_sequences or SEQUENCES_MAX,
            adapters={each.name: each.content_hash for each in hello.adapters},
        )

    def take_prompts(self, takes: bool) -> None:
        """Set whether the worker computes prompts that other workers answer from now on."""
        self.takes_prompts = takes
        self._renew()

    def used(self, adapter: str) -> None:
        """A request with this adapter was sent to it."""
        self.warm[adapter] = None
        self.warm.move_to_end(adapter)
        if len(self.warm) > _ADAPTERS_MAX:
            self.warm.popitem(last=False)

    def submitted(self, now: float, work: Work) -> None:
        """An attempt was sent."""
        self.sequences_in_flight += work.sequences
        self.prompt_tokens_in_flight += work.prompt_tokens
        self.prompt_ms_in_flight += work.prompt_ms
        self.attended_in_flight += work.context_tokens
        self.streams_in_flight += work.sequences if work.context_tokens else 0
        self.prompts += work.prompt_tokens > 0
        self.prompts_in_flight += work.prompt_tokens > 0
        self.unseen.append((now, work.sequences, work.prompt_tokens))
        self.unseen_sequences += work.sequences
        self.unseen_prompt_tokens += work.prompt_tokens
        self._renew()

    def computed(self, work: Work) -> Work:
        """Record that the first token of this work has come; returns what is left of the work."""
        self.prompt_tokens_computed += work.prompt_tokens
        self._prompt_done(work)
        self._renew()
        return Work(work.sequences, context_tokens=work.context_tokens)

    def released(self, work: Work) -> None:
        """An attempt of this router ended here: `work` is what was left of it."""
        self.sequences_in_flight -= work.sequences
        self.attended_in_flight -= work.context_tokens
        self.streams_in_flight -= work.sequences if work.context_tokens else 0
        self._prompt_done(work)
        self._renew()
        assert self.sequences_in_flight >= 0, f"{self.worker_id}: released twice"

    def loaded(self, load: Load, now: float, lag_s: float) -> None:
        """Fresh figures, which show everything submitted more than `lag_s` ago."""
        self.load = load
        self.overdue = load.overdue_s > 0
        # Of a batch that is gone the times say nothing.
        self.steps_ms += _STEPS_SHARE * (load.step_s * 1e3 - self.steps_ms) if load.running else -self.steps_ms
        while self.unseen and self.unseen[0][0] <= now - lag_s:
            _, sequences, prompt_tokens = self.unseen.popleft()
            self.unseen_sequences -= sequences
            self.unseen_prompt_tokens -= prompt_tokens
        self._renew()

    def _prompt_done(self, work: Work) -> None:
        self.prompt_tokens_in_flight -= work.prompt_tokens
        self.prompts_in_flight -= work.prompt_tokens > 0
        # Sums of floats do not cancel exactly.
        left_ms = self.prompt_ms_in_flight - work.prompt_ms
        self.prompt_ms_in_flight = max(0.0, left_ms) if self.prompt_tokens_in_flight > 0 else 0.0

    def _renew(self) -> None:
        """Derive what follows from the load figures, once per change instead of once per look."""
        self.times = None
        load = self.load
        if load is None:
            self.sequences = self.sequences_in_flight
            self.queued_prompt_tokens = self.prompt_tokens_in_flight
            self.blocks_free = self.blocks
        else:
            self.sequences = max(self.sequences_in_flight, load.running + load.waiting + self.unseen_sequences)
            self.queued_prompt_tokens = load.queued_prompt_tokens + self.unseen_prompt_tokens
            idle = load.running == 0 and load.waiting == 0
            self.blocks_free = self.blocks - load.blocks_exported if idle else load.blocks_free
        self.attended_tokens = self._attended()
        waiting = 0 if load is None else load.waiting
        self.decoding = max(0, self.sequences - max(waiting, self.prompts_in_flight))
        if self.takes_prompts:
            # Late figures count prompts that are over; streams of other routers are taken to be in proportion.
            share = self.streams_in_flight / self.sequences_in_flight if self.streams_in_flight else 0.0
            self.decoding = min(self.decoding, round(share * self.sequences))

    def _attended(self) -> int:
        if self.sequences_in_flight > 0:
            return self.attended_in_flight * self.sequences // self.sequences_in_flight
        return (self.blocks - self.blocks_free) * self.block_tokens if self.sequences else 0
