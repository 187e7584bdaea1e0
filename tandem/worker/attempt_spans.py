"""The spans of one attempt on this worker, from the engine's figures and the fetch's report (DESIGN §9)."""

from dataclasses import dataclass

from kv_transfer.fetch_progress import FetchReport
from tandem.core.entropy import Entropy
from tandem.core.messages import AttemptReport
from tandem.core.spans import Attribute, Span, parse_traceparent
from tandem.engine.protocol import WorkStats
from tandem.worker.attempts import Attempt


@dataclass(frozen=True)
class Stamp:
    """One instant on both clocks, to turn monotonic times into wall-clock ones."""

    now: float
    wall: float

    def at(self, monotonic: float) -> float:
        return self.wall - (self.now - monotonic)


@dataclass(frozen=True)
class SpanMaker:
    """Makes spans of one service. `worker` tells which of its workers it was."""

    service: str
    worker: str
    entropy: Entropy

    def report(self, attempt: Attempt, stats: WorkStats, stamp: Stamp) -> AttemptReport:
        """The attempt's figures with its spans, oldest first. No spans without a valid `traceparent`."""
        fetched = attempt.fetch
        stages = _stages(attempt, stats, stamp.now)
        return AttemptReport(
            handle=attempt.submit.handle,
            tokens_computed=stats.tokens_computed,
            tokens_reused=stats.tokens_reused,
            tokens_pulled=stats.tokens_pulled,
            bytes_pulled=fetched.bytes if fetched is not None else 0,
            spans=self._spans(attempt, stages, stamp),
        )

    def _spans(self, attempt: Attempt, stages: "list[Stage]", stamp: Stamp) -> tuple[Span, ...]:
        parent = parse_traceparent(attempt.submit.traceparent)
        if parent is None:
            return ()
        common: dict[str, Attribute] = {"worker": self.worker, "attempt": attempt.submit.attempt}
        return tuple(
            Span(
                trace_id=parent.trace_id,
                span_id=self.entropy.token(8).hex(),
                parent_id=parent.span_id,
                name=stage.name,
                service=self.service,
                start_s=stamp.at(stage.start),
                end_s=stamp.at(stage.end),
                attributes=common | stage.attributes,
            )
            for stage in sorted(stages, key=lambda stage: stage.start)
        )


@dataclass(frozen=True)
class Stage:
    """A span before it has identifiers; times are on the worker's clock."""

    name: str
    start: float
    end: float
    attributes: dict[str, Attribute]


def _stages(attempt: Attempt, stats: WorkStats, now: float) -> list[Stage]:
    end = stats.finished if stats.finished is not None else now
    admitted = stats.admitted
    stages = [Stage("queue", attempt.submitted, admitted if admitted is not None else end, {})]
    if admitted is not None and (stats.tokens_computed or attempt.submit.mode != "decode"):
        stages.append(_prefill(stats, admitted, end))
    if attempt.fetch is not None and attempt.fetch_started is not None:
        stages.append(_pull(attempt.fetch, attempt.fetch_started))
    if attempt.submit.mode != "prefill" and stats.first_token is not None:
        known = sum(len(branch.forced) for branch in attempt.submit.branches)
        produced = sum(output.position - 1 for output in attempt.outputs.values()) - known
        stages.append(Stage("decode", stats.first_token, end, {"tokens": produced, "preemptions": stats.preemptions}))
    return stages


def _prefill(stats: WorkStats, admitted: float, end: float) -> Stage:
    attributes: dict[str, Attribute] = {
        "tokens_computed": stats.tokens_computed,
        "tokens_reused": stats.tokens_reused,
        "chunks": stats.chunks,
    }
    if stats.reasons:
        attributes["reasons"] = "; ".join(stats.reasons)
    return Stage("prefill", admitted, stats.prefilled if stats.prefilled is not None else end, attributes)


def _pull(fetch: FetchReport, started: float) -> Stage:
    attributes: dict[str, Attribute] = {
        "bytes": fetch.bytes,
        "blocks": fetch.blocks,
        "path": fetch.path,
        "gb_per_s": round(fetch.gb_per_s, 4),
        "exposed_ms": round(fetch.exposed_s * 1e3, 3),
    }
    if fetch.reason is not None:
        attributes["failed"] = fetch.reason
    return Stage("kv.pull", started, started + fetch.seconds, attributes)
