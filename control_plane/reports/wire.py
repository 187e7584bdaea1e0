"""The answers of a router to `GET /v1/workers` and `GET /v1/revisions`, as far as the control plane reads them.

Fields that are missing count as nothing and unknown ones are skipped: routers may be older or newer.
"""

import msgspec

from tandem.core.errors import TandemError


class WorkerLoad(msgspec.Struct, frozen=True):
    """A worker's report of its own load; speeds are 0 while it has none."""

    running: int = 0
    waiting: int = 0
    queued_prompt_tokens: int = 0
    kv_used: float = 0.0
    """0 to 1."""
    step_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    prefill_token_s: float = 0.0
    prefill_position_s: float = 0.0


class WorkerReport(msgspec.Struct, frozen=True):
    """One worker as one router sees it."""

    id: str
    role: str = ""
    state: str = ""
    model: str = ""
    revision: str = ""
    epoch: str = ""
    service: str = ""
    pool: str = ""
    load: WorkerLoad | None = None
    ready_for_s: float | None = None
    takes_prompts: bool = False
    """Whether the worker computes prompts for others: as its role says, or as routers choose for role `auto`."""
    kv_path: str = ""
    """What carries its KV, and over what if that is known, such as `nixl/ucx-rdma`."""
    problems: tuple[str, ...] = ()
    """Transports it does without or that are slow, one sentence each."""

    @property
    def prefills(self) -> bool:
        """Whether what it runs are prompts whose answers others decode."""
        return self.takes_prompts or self.role == "prefill"


class WorkersAnswer(msgspec.Struct, frozen=True):
    data: tuple[WorkerReport, ...] = ()


class RevisionCounts(msgspec.Struct, frozen=True):
    """Counters since the router began: requests that have ended, and of them the bad ones."""

    service: str = ""
    namespace: str = ""
    revision: str = ""
    requests: int = 0
    errors: int = 0
    slo_misses: int = 0
    weight: int | None = None
    """The revision's weight in the split of new requests; None while the router does not know it."""


class ServiceCounts(msgspec.Struct, frozen=True):
    """Requests and tokens of one service that a router holds now, followed by counters since the router began."""

    service: str = ""
    namespace: str = ""
    queued_requests: int = 0
    queued_prompt_tokens: int = 0
    in_flight_requests: int = 0
    in_flight_prompt_tokens: int = 0
    requests: int = 0
    """Requests that have arrived."""
    prompt_tokens: int = 0
    """Prompt tokens that placed requests had computed."""
    output_tokens: int = 0
    """Output tokens of requests that have ended."""
    unplaced: int = 0
    """Requests that failed before they were placed."""


class RevisionsAnswer(msgspec.Struct, frozen=True):
    incarnation: str = ""
    """Drawn by every router process: a new one's counters begin at 0."""
    data: tuple[RevisionCounts, ...] = ()
    services: tuple[ServiceCounts, ...] = ()


class RouterReport(msgspec.Struct, frozen=True):
    """Both answers of one router, requested at the same time."""

    workers: tuple[WorkerReport, ...]
    revisions: RevisionsAnswer


def full_name(namespace: str, service: str) -> str:
    """`namespace/name` of a service, also for a router that reports the two separately."""
    return service if "/" in service or not namespace else f"{namespace}/{service}"


def read_report(workers: bytes, revisions: bytes) -> RouterReport:
    """Raises `protocol_mismatch` for what is not such an answer."""
    try:
        listed = msgspec.json.decode(workers, type=WorkersAnswer)
        return RouterReport(listed.data, msgspec.json.decode(revisions, type=RevisionsAnswer))
    except msgspec.DecodeError as error:
        raise TandemError("protocol_mismatch", f"a router's report cannot be read: {error}") from None
