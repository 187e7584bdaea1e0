"""The closed list of metrics, and the seam through which code reports them.

`tandem.process.metrics` renders them for Prometheus. A name that is not listed here is a programmer error.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol


@dataclass(frozen=True)
class Metric:
    """`kind` is `counter`, `gauge` or `histogram`; `unit` is part of the name, as Prometheus asks."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_MS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_TOKENS: Final = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)
_DRAFTED: Final = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0)

_METRICS: Final = (
    Metric("tandem_requests_total", "counter", "Requests by how they ended.", ("model", "outcome")),
    Metric("tandem_refusals_total", "counter", "Requests refused before any work, by error code.", ("code",)),
    Metric("tandem_resumes_total", "counter", "Clients that came back, by what they found.", ("outcome",)),
    Metric("tandem_requests_running", "gauge", "Requests between admission and their end."),
    Metric(
        "tandem_loop_held_seconds",
        "histogram",
        "How late the router's event loop gets to a timer, every 10 ms, by wall clock and as its thread computes.",
        ("clock",),
        _MS,
    ),
    Metric("tandem_connections_refused_total", "counter", "HTTP connections over the router's bound, turned away."),
    Metric("tandem_ttft_seconds", "histogram", "Arrival to first token.", ("model",), _MS),
    Metric("tandem_itl_seconds", "histogram", "Gap between tokens of a stream; sampled.", ("model",), _MS),
    Metric("tandem_tpot_seconds", "histogram", "Mean time per output token after the first.", ("model",), _MS),
    Metric("tandem_e2e_seconds", "histogram", "Arrival to last token.", ("model",), _MS),
    Metric("tandem_stage_seconds", "histogram", "Time in a stage of the request path.", ("stage",), _MS),
    Metric("tandem_prompt_tokens_total", "counter", "Prompt tokens received.", ("model",)),
    Metric(
        "tandem_prompt_characters_total",
        "counter",
        "Characters of conversations that may go on: known from an earlier turn, or tokenized.",
        ("how",),
    ),
    Metric("tandem_output_tokens_total", "counter", "Tokens delivered.", ("model",)),
    Metric(
        "tandem_cached_tokens_total",
        "counter",
        "Prompt tokens served from cache, by tier (tandem.core.tiers).",
        ("tier",),
    ),
    Metric("tandem_goodput_requests_total", "counter", "Requests that met the SLO.", ("model",)),
    Metric("tandem_attempts_total", "counter", "Attempts by outcome.", ("outcome",)),
    Metric(
        "tandem_tokens_computed_twice_total",
        "counter",
        "Prompt tokens that a prefill worker had computed when it was given up; decode computes them again.",
    ),
    Metric(
        "tandem_starved_prompts_total",
        "counter",
        "Prompts that left a prefill worker before a token of them was computed, by what became of them (moved or"
        " refused).",
        ("lot",),
    ),
    Metric("tandem_placements_total", "counter", "Placements by mode (disaggregated or local).", ("mode",)),
    Metric("tandem_workers", "gauge", "Workers by role and state.", ("role", "state")),
    Metric("tandem_split_prefill_workers", "gauge", "Workers of role auto that take prompts for others.", ("model",)),
    Metric(
        "tandem_split_decides", "gauge", "1 while this router decides the split of a model's workers.", ("model",)
    ),
    Metric("tandem_split_moves_total", "counter", "Workers that changed what they take, decided here.", ("model",)),
    Metric(
        "tandem_split_forecast_error_ratio",
        "gauge",
        "Mean difference of the share of requests in their objective that was forecast from the one observed.",
        ("model",),
    ),
    Metric(
        "tandem_split_planner_seconds_total",
        "counter",
        "Seconds of the event loop that the planner of splits takes.",
        ("model",),
    ),
    Metric("tandem_discovery_lost", "gauge", "1 while the API server that tells of workers does not answer."),
    Metric("tandem_discovery_age_seconds", "gauge", "Time since the API server that tells of workers said anything."),
    Metric("tandem_health", "gauge", "1 for the state this service is in, 0 for the others.", ("state",)),
    Metric(
        "tandem_canaries_total",
        "counter",
        "Canaries by scope (self or pair), path, outcome.",
        ("scope", "path", "outcome"),
    ),
    Metric("tandem_pairs", "gauge", "Pairs of a prefill and a decode worker by state.", ("state",)),
    Metric("tandem_pair_changes_total", "counter", "Pairs that entered a state.", ("state",)),
    Metric(
        "tandem_certificate_expiry_timestamp_seconds",
        "gauge",
        "When a certificate that this process shows ends, in seconds since the epoch, by its file.",
        ("certificate",),
    ),
    Metric(
        "tandem_start_stage_seconds",
        "gauge",
        "How long a stage of this worker's start took: load (a first request included), canary.",
        ("stage",),
    ),
    Metric("tandem_step_seconds", "histogram", "Engine step time.", ("role",), _MS),
    Metric("tandem_batch_sequences", "histogram", "Sequences in a step.", ("role",), _TOKENS),
    Metric(
        "tandem_kv_blocks",
        "gauge",
        "KV blocks by state: free (cached ones included), cached, used (not free; in quarantine too), exported.",
        ("state",),
    ),
    Metric("tandem_sequences", "gauge", "Sequences on a worker by state: running, waiting.", ("state",)),
    Metric("tandem_preemptions_total", "counter", "Sequences preempted for lack of blocks."),
    Metric(
        "tandem_speculation_tokens_total",
        "counter",
        "Tokens drafted ahead, by what became of them: accepted, or wasted.",
        ("outcome",),
    ),
    Metric(
        "tandem_speculation_accepted_tokens",
        "histogram",
        "Drafted tokens accepted of one sequence in one step.",
        (),
        _DRAFTED,
    ),
    Metric(
        "tandem_speculation_acceptance_ratio", "gauge", "Share of drafted tokens accepted since the worker started."
    ),
    Metric(
        "tandem_expert_imbalance_ratio",
        "gauge",
        "Tokens of the busiest over the mean, of a model's experts, or of the ranks these are dealt out over.",
        ("over",),
    ),
    Metric("tandem_kv_transfer_bytes_total", "counter", "KV bytes pulled, by the path that carried them.", ("path",)),
    Metric("tandem_kv_transfer_seconds", "histogram", "Pull time.", ("path",), _MS),
    Metric(
        "tandem_kv_transport_usable", "gauge", "1 where a transport has passed this worker's own canary.", ("path",)
    ),
    Metric("tandem_kv_rdma", "gauge", "1 where a worker with nixl is to move KV by RDMA, 0 where UCX uses TCP."),
    Metric("tandem_kv_lockable_bytes", "gauge", "Of kv.lock_probe, the bytes that a worker could lock at its start."),
    Metric(
        "tandem_kv_fallbacks_total",
        "counter",
        "Fetches not carried by the holder's preferred transport.",
        ("preferred", "path"),
    ),
    Metric(
        "tandem_kv_blocks_brought_total",
        "counter",
        "Blocks fetched instead of being computed, by where they were found (tandem.core.tiers).",
        ("tier",),
    ),
    Metric("tandem_kv_blocks_refused_total", "counter", "Pulled blocks not used, by reason.", ("reason",)),
    Metric(
        "tandem_kv_tls_refused_total",
        "counter",
        "KV connections that did not come to be encrypted, by the end that refused and why.",
        ("end", "reason"),
    ),
    Metric("tandem_redis_look_ups_total", "counter", "Prompts looked up in Redis, by outcome.", ("outcome",)),
    Metric("tandem_redis_lost", "gauge", "1 while the Redis that is set cannot be used."),
    Metric("tandem_redis_queue_names", "gauge", "Names whose changes wait to be written to Redis."),
    Metric("tandem_tier_blocks", "gauge", "Blocks kept below the engine's pool, by tier.", ("tier",)),
    Metric("tandem_tier_usable", "gauge", "1 while a tier takes blocks.", ("tier",)),
    Metric("tandem_tier_bytes_total", "counter", "Bytes read from and written to a tier.", ("tier", "direction")),
    Metric("tandem_tier_read_seconds", "histogram", "Time of one restore from a tier.", ("tier",), _MS),
    Metric("tandem_tier_misses_total", "counter", "Copies that could not be used, by reason.", ("tier", "reason")),
    Metric("tandem_tier_dropped_total", "counter", "Blocks a tier did not take, by reason.", ("tier", "reason")),
    Metric("tandem_tier_removed_total", "counter", "Blocks a tier gave up, by reason.", ("tier", "reason")),
    Metric("tandem_tier_found_total", "counter", "What was found on NVMe at the start, by outcome.", ("outcome",)),
    Metric("tandem_tier_scan_ratio", "gauge", "Share of what was on NVMe at the start that has been looked at."),
    Metric("tandem_operator_leads", "gauge", "1 while this operator holds the Lease."),
    Metric("tandem_operator_services", "gauge", "ModelServices that are looked after."),
    Metric("tandem_operator_queue", "gauge", "ModelServices that wait to be looked at."),
    Metric(
        "tandem_operator_condition",
        "gauge",
        "Conditions of ModelServices and, by pool, EnginePools: Ready and Available of each, others while they hold.",
        ("service", "pool", "condition"),
    ),
    Metric(
        "tandem_operator_start_seconds",
        "gauge",
        "Stages of the start of a pool's newest ready worker: schedule (until it had a node), fetch (the model's"
        " files), start (its container, until it was ready).",
        ("service", "pool", "stage"),
    ),
    Metric("tandem_operator_reconciles_total", "counter", "Looks at a ModelService, by their end.", ("outcome",)),
    Metric("tandem_operator_reconcile_seconds", "histogram", "How long a look takes, writes included.", (), _MS),
    Metric("tandem_operator_writes_total", "counter", "Writes to the API server, Events not counted."),
)

METRICS: Final = MappingProxyType({metric.name: metric for metric in _METRICS})


def check_metric(name: str, kind: str, labels: tuple[str, ...]) -> None:
    """A programmer error when the name is not listed, is of another kind, or the labels do not fit."""
    metric = METRICS[name]
    assert metric.kind == kind, f"{name} is a {metric.kind}, not a {kind}"
    assert len(labels) == len(metric.labels), f"{name} takes labels {metric.labels}, got {labels}"


class Meter(Protocol):
    """The destination of metrics. Label values are given in the order of `Metric.labels`."""

    def add(self, name: str, value: float = 1.0, *labels: str) -> None:
        """Increase a counter."""
        ...

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge."""
        ...

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Add an observation to a histogram."""
        ...


class NullMeter:
    """Drops everything, but still refuses unknown names."""

    def add(self, name: str, value: float = 1.0, *labels: str) -> None:
        check_metric(name, "counter", labels)

    def set(self, name: str, value: float, *labels: str) -> None:
        check_metric(name, "gauge", labels)

    def observe(self, name: str, value: float, *labels: str) -> None:
        check_metric(name, "histogram", labels)
