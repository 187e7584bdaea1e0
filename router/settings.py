"""Settings of the router, nested by concern. Pure values: loading and checking them is `tandem.process.settings`."""

from dataclasses import dataclass, field
from typing import Final

from tandem.core.deadlines import Deadlines
from tandem.core.errors import TandemError

STREAMS: Final = 4096
"""Requests of a router whose capacity nobody has set."""


@dataclass(frozen=True)
class PairSettings:
    """Proof that blocks travel, per pair of a prefill and a decode worker. Back-offs double from `backoff_first_s` to
    `backoff_max_s`."""

    canary: bool = True
    """Without, every pair is trusted."""
    canary_s: float = 5.0
    """A canary that has no result by then has failed."""
    canaries_max: int = 8
    """Canaries under way at one time."""
    partners_max: int = 16
    """A worker that joins is proved with this many others at once; further pairs when placement looks at them."""
    failures_max: int = 3
    """The first failed transfer asks for a canary; so many within `window_s`, each success forgiving one, open the
    pair even where that passes."""
    window_s: float = 30.0
    backoff_first_s: float = 0.5
    backoff_max_s: float = 15.0


@dataclass(frozen=True)
class FleetSettings:
    """Links to workers. Redial waits double from `redial_first_s` to `redial_max_s`."""

    redial_first_s: float = 0.05
    redial_max_s: float = 2.0
    refused_redial_s: float = 5.0
    """Wait before dialing a worker again that speaks another protocol or repeats a live worker's id."""
    names_per_slice: int = 1000
    """Index changes applied before the event loop gets its turn (about 1 ms)."""
    regroup_s: float = 1.0
    """When most workers are lost at once: how long placing waits for the others when the first are back, at most."""
    load_lag_s: float = 0.15
    """A submit younger than this may not be part of the worker's latest load figures."""
    answer_s: float = 10.0
    """How long what a shared index says of a prompt is believed."""
    guess_s: float = 300.0
    """How long a worker that tells of no KV events is taken to keep a prompt that was sent to it."""
    snapshot_again_s: float = 5.0
    """When an asked-for snapshot has not begun to arrive by then, ask again."""
    pairs: PairSettings = field(default_factory=PairSettings)


@dataclass(frozen=True)
class PlacementSettings:
    """The placement decision. `prefer` is `auto`, `disaggregated` or `local`; `policy` one of `prefix_aware`,
    `least_loaded`, `round_robin`, `power_of_two` and `consistent_hash`."""

    policy: str = "prefix_aware"
    prefer: str = "auto"
    local_uncached_tokens_max: int = 16
    """With `auto`: an uncached part of at most this many tokens is never worth a transfer."""
    sequences_per_worker_max: int = STREAMS
    """A worker with this many sequences running, waiting or on their way gets no more, nor one with as many as its
    engine computes in a step."""
    expected_output_tokens: int = 128
    """How many tokens an answer is expected to have before any of its kind has ended."""
    interference: float = 1.0
    """Cost of disturbing others: each sequence on a worker pays this share of the time of a prompt computed there. In
    one batch with it they pay all of it."""
    itl_target_ms: float = 50.0
    """For requests without an objective: streams whose steps take less than this gain little by a smaller batch; a
    first token that comes sooner is worth more to them."""
    transfer_setup_ms: float = 2.0
    """What a hand-off costs besides its bytes."""
    transfer_overlap: float = 0.8
    """The share of prefill time during which blocks already travel."""
    fetch: bool = True
    """Whether workers are told of others that hold more of a prompt, to fetch it from. Otherwise they compute what
    they do not have themselves."""
    candidates_max: int = 5
    """How many of the cheapest prefill and decode workers are paired with each other."""
    promise_s: float = 2.0
    """How long beyond its expected time a prompt that was sent to a worker counts as being there, while the worker
    has not told of its blocks."""
    promises_max: int = 50_000
    """Block names of such prompts that are remembered, and keys of caches."""
    hash_tokens: int = 1024
    """With `consistent_hash`: prompts that are equal for so many tokens go to the same worker."""
    without: tuple[str, ...] = ()
    """Parts of the price that are left out, to show what each is worth: `first token` and `stream`, the request's own
    misses of its objective; `streams beside` and `prompts behind`, others'. Empty but in benchmarks."""


@dataclass(frozen=True)
class CostPriors:
    """What is assumed before anything has been measured."""

    prefill_tokens_per_s: float = 10_000.0
    step_ms: float = 10.0
    step_ms_per_sequence: float = 0.1
    step_ms_per_1k_context: float = 0.02
    """Per thousand positions that the sequences of a batch attend to, all together."""
    transfer_bytes_per_s: float = 12.5e9
    """What moving blocks is tried at. Deliberately a fast network's, 100 Gbit/s: where it is less the first transfers
    tell, while a rate that is thought too low to fetch at is never measured."""


@dataclass(frozen=True)
class AdmissionSettings:
    """Bounds on what the router holds."""

    requests_max: int = STREAMS
    """Requests running and waiting together."""
    queued_max: int = 1024
    """Requests waiting for a worker, per model."""


@dataclass(frozen=True)
class RetrySettings:
    """How persistently a request is resubmitted.

    `share` and `burst` bound retries after typed failures and stalls, as a share of all attempts, so that a
    fault that every worker has does not multiply the load. Attempts lost with their worker are not charged:
    there are no more of them than requests on that worker.
    """

    fruitless_attempts_max: int = 4
    """Attempts in a row that brought no token."""
    attempts_max: int = 16
    share: float = 0.2
    burst: int = 32
    backoff_first_s: float = 0.05
    backoff_max_s: float = 1.0
    resume_wait_s: float = 60.0
    """How long a started request waits for any worker to come back."""
    hedge_after: float | None = None
    """A first token that takes this many times as long as expected is tried for elsewhere as well, if the budget of
    retries allows. None, with `hedge_after_s` None too, never does."""
    hedge_after_s: float | None = None
    """The same in seconds; with both, whichever is later."""

    def __post_init__(self) -> None:
        for name in ("hedge_after", "hedge_after_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise TandemError(
                    "bad_setting", f"{name} = {value}: expected a number above 0, or nothing", param=name
                )


@dataclass(frozen=True)
class MigrationSettings:
    """How streams are moved off a worker that leaves."""

    margin: float = 1.25
    """A stream moves when it would need this many times its expected time and still end too late."""
    at_once: int = 4
    """Streams that were moved and have not brought a token since; more only where the worker's bound asks for it."""
    every_s: float = 0.1


@dataclass(frozen=True)
class SplitSettings:
    """When the planner of a service of `auto` workers changes who takes prompts for others. Shares are of requests
    that hold the objective."""

    look_s: float = 5.0
    """How often it looks."""
    window_s: float = 60.0
    """The traffic of so long is replayed,"""
    requests_max: int = 1500
    """and of it at most so many requests, the latest."""
    requests_min: int = 20
    """With fewer nothing is decided."""
    ahead: float = 0.02
    """A way that is expected to be better by more than this, twice running, is taken."""
    urgent: float = 0.10
    """One that is better by more than this is taken at once."""
    settle_s: float = 60.0
    """After a change nothing that is not urgent is changed for so long, or for as long as the traffic was that it was
    decided on where that is shorter."""
    itl_shares: tuple[float, ...] = (1.0, 1.5)
    """What steps may take beside running sequences is tried at these shares of what the objective allows."""
    error_max: float = 0.15
    """Where forecasts promise more than was reached by this, twice running, they are not followed."""
    distrust_s: float = 60.0
    """For so long at first, doubled each time up to ten times that."""
    lost_prefix: float = 0.1
    """Of what lies in the memory of a worker that changes, the share that is computed again because of it."""


@dataclass(frozen=True)
class RouterSettings:
    """Everything the router's core can be told."""

    deadlines: Deadlines = field(default_factory=Deadlines)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    priors: CostPriors = field(default_factory=CostPriors)
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    retry: RetrySettings = field(default_factory=RetrySettings)
    migration: MigrationSettings = field(default_factory=MigrationSettings)
    split: SplitSettings = field(default_factory=SplitSettings)
    names_bytes_max: int = 64 << 20
    """What the names of prompts that may come again, and their tokens, may take in memory."""
    reuse_history_bytes_max: int = 32 << 20
    """What recent prompts may take in memory that are remembered to say why later ones were not found in a cache."""
    usage_wait_s: float = 0.05
    """How long the end of an answer waits for the worker's report, for `cached_tokens`."""
    claim_s: float = 2.0
    """How long workers may take to say whether they hold a resumable request; connecting to them counts."""
    report_wait_s: float = 1.0
    """How long after the end late reports are still taken, for traces and the cost model."""
