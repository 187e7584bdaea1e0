"""What placement knows of one worker."""

from collections import deque
from dataclasses import dataclass, field

from tandem.core.kv import Layout
from tandem.core.messages import Hello, Load


@dataclass(slots=True)
class WorkerView:
    """One live worker as the router sees it. Its owner, the fleet, keeps it current in place; `place` only reads.

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
    draining: bool = False
    ready: bool = True
    """Whether it takes more than canaries."""
    load: Load | None = None
    sequences_in_flight: int = 0
    prompt_tokens_in_flight: int = 0
    unseen: "deque[tuple[float, int, int]]" = field(default_factory=deque)
    """Submits the load figures may not show yet: (when, sequences, prompt tokens to compute)."""
    unseen_sequences: int = 0
    unseen_prompt_tokens: int = 0

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
        )

    @property
    def sequences(self) -> int:
        """Sequences running, waiting or on their way."""
        if self.load is None:
            return self.sequences_in_flight
        return max(self.sequences_in_flight, self.load.running + self.load.waiting + self.unseen_sequences)

    @property
    def queued_prompt_tokens(self) -> int:
        """Prompt tokens that would be computed before a new prompt."""
        if self.load is None:
            return self.prompt_tokens_in_flight
        return self.load.queued_prompt_tokens + self.unseen_prompt_tokens

    @property
    def blocks_free(self) -> int:
        """Free blocks. A worker without work has all of them but the exported ones, whatever its figures say: they
        may be from before its first step."""
        if self.load is None:
            return self.blocks
        if self.load.running == 0 and self.load.waiting == 0:
            return self.blocks - self.load.blocks_exported
        return self.load.blocks_free

    def submitted(self, now: float, sequences: int, prompt_tokens: int) -> None:
        """An attempt was sent: `prompt_tokens` of its prompt are to be computed here."""
        self.sequences_in_flight += sequences
        self.prompt_tokens_in_flight += prompt_tokens
        self.unseen.append((now, sequences, prompt_tokens))
        self.unseen_sequences += sequences
        self.unseen_prompt_tokens += prompt_tokens

    def released(self, sequences: int, prompt_tokens: int) -> None:
        """An attempt of this router ended here."""
        self.sequences_in_flight -= sequences
        self.prompt_tokens_in_flight -= prompt_tokens
        assert self.sequences_in_flight >= 0, f"{self.worker_id}: released twice"

    def loaded(self, load: Load, now: float, lag_s: float) -> None:
        """Fresh figures, which show everything submitted more than `lag_s` ago."""
        self.load = load
        while self.unseen and self.unseen[0][0] <= now - lag_s:
            _, sequences, prompt_tokens = self.unseen.popleft()
            self.unseen_sequences -= sequences
            self.unseen_prompt_tokens -= prompt_tokens
