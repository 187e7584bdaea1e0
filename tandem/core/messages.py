"""The messages on a link between router and worker, grouped by receiver.

A link has two ordered streams. *Tokens*: `WorkerCommand`s down, `RouterMessage`s up. *State*: `StateRequest`s down,
`StateUpdate`s up. A `handle` names one attempt of one request on one link. The router never reuses a handle, so a
message for a dead attempt matches no other attempt. Prompts travel as packed uint32 (`tandem.core.kv.pack_tokens`).
"""

from typing import Final

import msgspec

from tandem.core.kv import Layout
from tandem.core.request import ChildRequest, RequestSpec
from tandem.core.spans import Span

PROTOCOL_VERSION: Final = 2
"""Services of version N and N-1 understand each other; anything else is refused with `protocol_mismatch`."""


# ---- to the worker, tokens stream ----------------------------------------------------------------------------


class RemoteKv(msgspec.Struct, frozen=True, gc=False):
    """The place from which a decode worker fetches the prompt's blocks: a prefill worker's incarnation, lease and
    ticket."""

    worker_id: str
    epoch: int
    addresses: tuple[str, ...]
    """Transport URLs of the holder, in its order of preference: `shm://…`, `tcp://host:port`, `mem://…`."""
    lease_id: str
    ticket: bytes


class Source(msgspec.Struct, frozen=True):
    """Another holder of leading blocks of a prompt, from which a worker may fetch the blocks that it lacks.

    Unlike with `RemoteKv`, these blocks are not computed for this request: what the holder does not have now will not
    come.
    """

    holder: str
    epoch: int
    addresses: tuple[str, ...]
    """Transport URLs, in order of preference."""
    lease_id: str
    """A fresh one: the holder opens it for the names it is asked for, when the ticket is good."""
    ticket: bytes
    blocks: int
    """Leading blocks of the prompt that it is expected to have."""
    kind: str = "peer"
    """`peer` or `store`."""


class Pin(msgspec.Struct, frozen=True):
    """Keep the blocks of a prompt in the worker's tiers for `ttl_s` seconds; blocks with a higher priority are given
    up later."""

    priority: int
    ttl_s: float


class Export(msgspec.Struct, frozen=True, gc=False):
    """The export that a prefill worker may make: a lease on the prompt's blocks for one decode incarnation."""

    lease_id: str
    decode_epoch: int
    lease_s: float


class Submit(RequestSpec, frozen=True, omit_defaults=True, gc=False):
    """Run one attempt of a request.

    mode `prefill`: compute prompt and forced tokens, sample the next position of every branch, export the
    blocks under `export`, and be done. mode `decode`: fetch the prompt's blocks from `remote`, learn the next
    position from there or from `ProvideFirst`, and generate from the one after. mode `local`: do all of it.
    `deadline_s` is the time left when the message was sent.
    """

    handle: int
    request_id: str
    attempt: int
    mode: str
    branches: tuple[ChildRequest, ...]
    deadline_s: float
    remote: RemoteKv | None = None
    export: Export | None = None
    traceparent: str = ""
    canary: bool = False
    """Whether the request only proves that blocks can travel. Its blocks get no public name, a worker that is not
    ready takes it too, and where a fetch fails it ends instead of computing."""
    resume: bytes = b""
    """The sealed data that another router needs to continue a resumable request (`router.dispatch.resume_token`);
    workers only keep it. Empty for other requests."""
    resume_key: bytes = b""
    """The key under which a router claims a resumable request; it cannot be named without the service's key."""
    kept: "tuple[SequenceOutput, ...]" = ()
    """The outputs of a resumable request accepted before this attempt, for a router that claims the request."""
    sources: tuple[Source, ...] = ()
    """Other holders of leading blocks of the prompt, the cheapest first."""
    pin: Pin | None = None
    """The prompt's blocks are to be kept when they have been computed."""
    images: tuple[bytes, ...] = ()
    """Files of the images that the prompt has places for; only with mode `local`, for workers whose `Hello.features`
    has `images`."""
    confirm_recompute: bool = False
    """Whether, with mode `decode`, the worker reports a failed fetch first (`Transferred`) and computes none of the
    missing blocks before `SampleFirst` comes, for a bounded time."""


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """Free everything of an attempt, or only of one of its sequences."""

    handle: int
    sequence: int | None = None


class ProvideFirst(msgspec.Struct, frozen=True, gc=False):
    """The next position of one branch, as prefill sampled it and the router accepted it."""

    handle: int
    sequence: int
    token: int


class SampleFirst(msgspec.Struct, frozen=True):
    """Prefill is lost, or its blocks did not come: compute whatever is missing and sample the next position here if
    it is not known."""

    handle: int


class RetainOutputs(msgspec.Struct, frozen=True):
    """Outputs of a resumable request that were accepted from another worker: a router that claims the request
    receives them too."""

    handle: int
    outputs: "tuple[SequenceOutput, ...]"


class ResumeAttempt(msgspec.Struct, frozen=True):
    """Hand over the resumable request that is known here under one of `keys`, whichever router it belonged to.

    The worker answers with everything reported of the request so far as `StepOutputs` under `handle`, then
    `AttemptResumed`, then its further messages; or with `ResumeNotFound`. The router that loses the request gets
    `AttemptFailed` with `taken_over`.
    """

    handle: int
    keys: tuple[bytes, ...]


class Drain(msgspec.Struct, frozen=True):
    """Refuse new work with `draining`, finish what runs within `within_s`, then leave."""

    within_s: float


class Ping(msgspec.Struct, frozen=True):
    """The router's heartbeat."""

    count: int


class Unpin(msgspec.Struct, frozen=True):
    """Stop keeping these blocks: the effect of a `Pin` on them is undone, and they may be evicted."""

    names: bytes
    """Packed, 16 bytes each."""
    tenant_salt: str = ""


ITL_TARGET: Final = "itl_target"
"""The feature of workers whose steps can be bounded while they run."""


class Tune(msgspec.Struct, frozen=True):
    """Set how long a step may take beside running sequences from now on; only for workers whose `Hello.features` has
    `itl_target`."""

    itl_target_s: float | None = None
    """The ITL target in seconds; None stands for the worker's own setting."""


class Forecast(msgspec.Struct, frozen=True, array_like=True):
    """The expected results of one way to split workers: `prefills` of them take prompts for others, and steps beside
    running sequences take `itl_target_s`."""

    prefills: int
    itl_target_s: float | None
    attainment: float
    """Share of the requests that hold the objective."""
    tokens_per_s: float
    """Output tokens per second."""
    carried: float = 0.0
    """Share of the requests that hold it in the mean of loads around the one that the best way just carries."""


class SplitRecord(msgspec.Struct, frozen=True):
    """The workers that take prompts for others among the `auto` workers of a service, as decided by one router. Of
    two records the one with the higher (term, holder) is newer."""

    term: int
    holder: str
    """The router, as it is known to this run of it alone."""
    prefills: tuple[str, ...]
    """Ids of workers."""
    itl_target_s: float | None = None
    """Seconds that the steps of these workers may take beside running sequences; None for what the service's
    objective says."""
    reason: str = ""
    age_s: float = 0.0
    """Seconds for which the split has been in force."""
    moves: int = 0
    """The number of changes in what workers take, counted per worker, since this router decides."""
    forecast_error: float | None = None
    """Mean difference of the attainment that was forecast from the one that was observed."""
    forecasts: tuple[Forecast, ...] = ()
    """The forecasts of the last look at the split, the best first."""


class PublishSplit(msgspec.Struct, frozen=True):
    """Keep this record on the worker for `lease_s` against other routers, and report it to every router. The worker
    answers the sender with `SplitPublished`, which has the record that is kept now. `lease_s` 0 releases the record
    at once."""

    record: SplitRecord
    lease_s: float


WorkerCommand = (
    Submit
    | Cancel
    | ProvideFirst
    | SampleFirst
    | RetainOutputs
    | ResumeAttempt
    | Drain
    | Ping
    | Unpin
    | Tune
    | PublishSplit
)


# ---- to the router, tokens stream ----------------------------------------------------------------------------


class TierCost(msgspec.Struct, frozen=True):
    """A tier of a worker: how many blocks it takes, and what reading one back costs."""

    name: str
    """`dram` or `nvme`."""
    blocks: int
    bytes_per_s: float
    latency_s: float


class Adapter(msgspec.Struct, frozen=True):
    """A LoRA adapter: the name clients ask for, and the content hash that all names of its blocks carry."""

    name: str
    content_hash: str


class Hello(msgspec.Struct, frozen=True):
    """The first message of a worker on the tokens stream: who it is and what it can exchange KV with."""

    protocol: int
    worker_id: str
    epoch: int
    role: str
    """`prefill`, `decode`, `unified`; `auto`, of which routers choose what each does; or `store`, which computes
    nothing and only keeps blocks."""
    model: str
    model_hash: str
    revision: str
    layout: Layout
    root: bytes
    """Root name for the empty tenant salt; two workers may exchange KV only when these are equal."""
    blocks: int
    context_tokens: int
    eos_token_ids: tuple[int, ...]
    addresses: tuple[str, ...]
    draining: bool = False
    unready: bool = False
    """Whether the worker is alive but takes nothing except canaries until it sends `Ready`."""
    canary: str = ""
    """How the worker's own KV path was proved: `self`, or empty when it was not proved."""
    problems: tuple[str, ...] = ()
    """Transports it does without, and why its KV is not exchanged where it is not: one sentence each."""
    tiers: tuple[TierCost, ...] = ()
    """The worker's tiers below its pool, the fastest first."""
    kv_events: bool = True
    """Whether the worker reports which blocks it has. Routers guess the blocks of a worker that does not, from what
    they sent to it."""
    features: tuple[str, ...] = ()
    """What the worker's engine can do beyond the functions that all engines have (`EngineInfo.features`)."""
    adapters: tuple[Adapter, ...] = ()
    """LoRA adapters it serves."""
    hardware: str = ""
    """The hardware that the worker computes on, `NVIDIA H100 80GB HBM3 x 4`: workers with the same hardware, model
    and engine are equally fast. Empty where it is unknown, as on CPUs."""
    export_blocks: int = 0
    """The number of the worker's blocks that prompts computed for other workers may take until they have been
    fetched; 0 when the worker does not report it."""
    max_sequences: int = 0
    """The most sequences that the worker's engine computes in one step; 0 when the worker does not report it."""


class Alternative(msgspec.Struct, frozen=True, array_like=True):
    """A token that could have been drawn, with the natural logarithm of its probability."""

    token: int
    logprob: float


class PromptLogprob(msgspec.Struct, frozen=True, array_like=True):
    """A prompt token's log-probability given the tokens before it, its rank in the vocabulary (1 is the likeliest),
    and the most likely alternatives."""

    logprob: float
    rank: int
    top: tuple[Alternative, ...] = ()


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """The drawn token's log-probability (before temperature and cuts) and the most likely alternatives."""

    logprob: float
    top: tuple[Alternative, ...] = ()
    prompt: tuple[PromptLogprob, ...] = ()
    """The log-probabilities of the prompt's tokens from the second on, sent with a request's first token when
    `Sampling.prompt_logprobs` asks for them."""


class SequenceOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """New tokens of one sequence: positions `position … position + len(tokens) - 1`, counted from 1.

    `text` is what these tokens add after detokenizing; characters that could still become part of a stop
    string or of an unfinished code point are held back. `offset` is where `text` starts in the sequence's text.
    """

    handle: int
    sequence: int
    position: int
    tokens: tuple[int, ...]
    text: str
    offset: int
    finish: str | None = None
    """`stop`, `length`, or None while the sequence runs."""
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


class StepOutputs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Everything one engine step produced for one router."""

    outputs: tuple[SequenceOutput, ...]


class AttemptFailed(msgspec.Struct, frozen=True):
    """The end of this attempt with an error. Its blocks are already free. `code` is a key of
    `tandem.core.errors.KINDS`; `param` is the request's parameter at fault, empty when there is none."""

    handle: int
    code: str
    message: str
    param: str = ""


class AttemptReport(msgspec.Struct, frozen=True, gc=False):
    """The figures of an attempt, sent once when it ends on this worker, whatever the reason."""

    handle: int
    tokens_computed: int
    tokens_reused: int
    tokens_pulled: int
    bytes_pulled: int
    spans: tuple[Span, ...]
    tokens_by_tier: dict[str, int] = {}
    """Prompt tokens that were not computed for this request, by where they were found: `hbm`, `dram`, `nvme`, `peer`,
    `store`. Tokens that prefill computed and decode pulled count in none of them."""
    pinned_blocks: int = 0
    """The number of leading blocks of the prompt that this worker keeps as `Submit.pin` asked."""
    prompt_tokens: int = 0
    """The number of tokens of a prompt with images once the images have taken their places; 0 for a prompt that is as
    long as it was sent."""


class AttemptResumed(msgspec.Struct, frozen=True):
    """A resumable attempt now belongs to this router; everything reported of it so far came before this message."""

    handle: int
    resume: bytes
    attempt: int
    mode: str
    left_s: float
    """Seconds until the request's deadline, by the worker's clock."""
    starts: tuple[tuple[int, int], ...]
    """(sequence, first position) of every sequence the attempt was to generate."""
    transferred: bool = False
    """Whether the attempt's fetch has ended and this was reported to an earlier router."""
    images: tuple[bytes, ...] = ()
    """The files of the request's images, as in its `Submit`."""


class ResumeNotFound(msgspec.Struct, frozen=True):
    """Nothing is known here under the keys of a `ResumeAttempt`."""

    handle: int


class SplitPublished(msgspec.Struct, frozen=True):
    """The record that the worker keeps, and for how long against other routers than its holder."""

    record: SplitRecord
    left_s: float


class Pong(msgspec.Struct, frozen=True):
    """The worker's heartbeat; `epoch` changes when the worker is a new incarnation."""

    epoch: int
    count: int


class Draining(msgspec.Struct, frozen=True):
    """The worker takes no new work."""

    within_s: float


class Ready(msgspec.Struct, frozen=True):
    """The report of a worker that introduced itself as `unready` and takes work from now on. It replaces what the
    worker reported about its KV path."""

    addresses: tuple[str, ...]
    canary: str
    problems: tuple[str, ...] = ()


class Transferred(msgspec.Struct, frozen=True, gc=False):
    """The report that a fetch of this attempt has ended, and how the blocks came from `holder`, sent at once.

    `path` is the transport tried last, empty when there was none to try. `code` is empty when every block landed,
    otherwise a key of `tandem.core.errors.KINDS`. `passed_over` says which preferred transports failed before, and
    why.
    """

    handle: int
    holder: str
    holder_epoch: int
    path: str
    seconds: float
    bytes: int
    code: str = ""
    message: str = ""
    passed_over: tuple[str, ...] = ()


class Progressed(msgspec.Struct, frozen=True, gc=False):
    """The attempts that have produced nothing lately but still make progress: their prompts, or those before them,
    are being computed, their KV is on its way, or the engine is in a step that may take its time. Sent once a
    heartbeat."""

    handles: tuple[int, ...]
    tokens: tuple[int, ...] = ()
    """Prompt tokens computed so far for each of `handles`, in the same order; empty where they are not counted."""


RouterMessage = (
    Hello
    | StepOutputs
    | AttemptFailed
    | AttemptReport
    | Pong
    | Draining
    | Ready
    | Transferred
    | AttemptResumed
    | ResumeNotFound
    | Progressed
    | SplitPublished
)


# ---- state stream --------------------------------------------------------------------------------------------


class SnapshotRequest(msgspec.Struct, frozen=True):
    """Send the whole set of block names again."""


StateRequest = SnapshotRequest


class StepSums(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The work of a worker's steps since it started, added up, and the time that they took. The difference between
    two such sums describes the steps between them."""

    steps: int = 0
    seconds: float = 0.0
    rows: float = 0.0
    """Sequences that decoded."""
    reads: float = 0.0
    """Positions that those attended to."""
    pieces: float = 0.0
    """Prompts of which some tokens were computed."""
    tokens: float = 0.0
    """Prompt tokens."""
    positions: float = 0.0
    """Positions that those attended to."""


class StepFit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The time of a worker's steps, as the worker has learned it: `base_s` per step, plus a cost for each sequence
    that decodes, each position that it attends to, each piece of a prompt, each prompt token, and each position that
    the token attends to. `prompts` are the steps that computed some of a prompt, `plain` all others; neither includes
    the first few steps."""

    base_s: float
    sequence_s: float
    read_s: float
    piece_s: float
    token_s: float
    position_s: float
    plain: StepSums = StepSums()
    prompts: StepSums = StepSums()


class Load(msgspec.Struct, frozen=True):
    """The load of a worker, sent after a step at most every 50 ms and at least every heartbeat."""

    running: int
    waiting: int
    queued_prompt_tokens: int
    blocks_free: int
    blocks_cached: int
    """Free blocks that still hold a named block."""
    blocks_exported: int
    step_s: float
    """Mean time of recent decode steps."""
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    preemptions: int
    prefill_token_s: float = 0.0
    """Seconds that one more prompt token adds to a step, and seconds that it adds per position it attends to, as
    learned from steps of many sizes. Zero when unknown."""
    prefill_position_s: float = 0.0
    longest_step_s: float = 0.0
    """Seconds that the longest step with a prompt is expected to take, or took of late. Zero when unknown."""
    overdue_s: float = 0.0
    """The age of a step that takes far longer than steps of its size do; until it is over the worker gets no new
    work. Zero when all is well."""
    fit: StepFit | None = None
    """Told with heartbeats, and to a router that has just come; None in between, and of engines that do not know."""


class KvDelta(msgspec.Struct, frozen=True):
    """Names that became or ceased to be available on this worker, packed 16 bytes each, after `count - 1`."""

    epoch: int
    count: int
    stored: bytes
    removed: bytes
    tier: str = "hbm"


class KvSnapshot(msgspec.Struct, frozen=True):
    """A piece (< 1 MiB) of the full set of names as of `count`; swapped in when `last` arrives."""

    epoch: int
    count: int
    names: bytes
    last: bool
    tier: str = "hbm"


StateUpdate = Load | KvDelta | KvSnapshot
