"""The spans of one attempt on this worker, from the engine's figures and the fetch's report."""

from dataclasses import dataclass

from kv_transfer.fetch_progress import FetchReport, OriginReport
from tandem.core.entropy import Entropy
from tandem.core.messages import AttemptReport
from tandem.core.spans import Attribute, Span, parse_traceparent
from tandem.engine.protocol import RequestStats
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
    """Makes spans of one service. `worker` identifies the worker of that service."""

    service: str
    worker: str
    entropy: Entropy

    def report(self, attempt: Attempt, stats: RequestStats, stamp: Stamp) -> AttemptReport:
        """The attempt's figures with its spans, oldest first. No spans without a valid `traceparent`."""
        fetched = attempt.brought
        stages = _stages(attempt, stats, stamp.now)
        brought = _brought_tokens(fetched, stats.tokens_pulled)
        found = {"hbm": stats.tokens_reused, **brought}
        return AttemptReport(
            handle=attempt.submit.handle,
            tokens_computed=stats.tokens_computed,
            tokens_reused=stats.tokens_reused,
            tokens_pulled=stats.tokens_pulled - sum(brought.values()),
            bytes_pulled=fetched.bytes if fetched is not None else 0,
            spans=self._spans(attempt, stages, stamp),
            tokens_by_tier={tier: tokens for tier, tokens in found.items() if tokens},
            pinned_blocks=attempt.pinned,
            prompt_tokens=stats.prompt_tokens,
        )

    def _spans(self, attempt: Attempt, stages: "list[DraftSpan]", stamp: Stamp) -> tuple[Span, ...]:
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
class DraftSpan:
    """A span before it has identifiers; times are on the worker's clock."""

    name: str
    start: float
    end: float
    attributes: dict[str, Attribute]


def _brought_tokens(fetched: FetchReport | None, pulled: int) -> dict[str, int]:
    """Tokens by where they came from, besides a hand-off; of `pulled` altogether, so that the last token of a prompt
    that was found whole, which is computed all the same, is in none."""
    found: dict[str, int] = {}
    for brought in fetched.brought if fetched is not None else ():
        count = min(brought.tokens, pulled)
        found[brought.origin] = found.get(brought.origin, 0) + count
        pulled -= count
    return found


def _stages(attempt: Attempt, stats: RequestStats, now: float) -> list[DraftSpan]:
    end = stats.finished if stats.finished is not None else now
    admitted = stats.admitted
    stages = [DraftSpan("queue", attempt.submitted, admitted if admitted is not None else end, {})]
    stages += [DraftSpan("kv.wait", begin, over, {}) for begin, over in stats.kv_waits]
    if admitted is not None and (stats.tokens_computed or attempt.submit.mode != "decode"):
        stages.append(_prefill(attempt, stats, _computing_from(attempt, admitted), end))
    if (fetched := attempt.brought) is not None:
        stages += [_brought(brought) for brought in fetched.brought]
        if fetched.handed_over:
            stages.append(_pull(fetched))
    if attempt.submit.mode != "prefill" and stats.first_token is not None:
        known = sum(len(branch.forced) for branch in attempt.submit.branches)
        produced = sum(output.position - 1 for output in attempt.outputs.values()) - known
        stages.append(
            DraftSpan("decode", stats.first_token, end, {"tokens": produced, "preemptions": stats.preemptions})
        )
    return stages


def _computing_from(attempt: Attempt, admitted: float) -> float:
    """The time from which a prompt can be computed whose leading blocks were brought first."""
    fetch = attempt.brought
    if fetch is None or fetch.handed_over:
        return admitted
    return max(admitted, fetch.ended)


def _prefill(attempt: Attempt, stats: RequestStats, began: float, end: float) -> DraftSpan:
    attributes: dict[str, Attribute] = {
        "tokens_computed": stats.tokens_computed,
        "tokens_reused": stats.tokens_reused,
        "chunks": stats.chunks,
    }
    if stats.reasons:
        attributes["reasons"] = "; ".join(stats.reasons)
    if attempt.reuse:
        attributes["reuse"] = attempt.reuse
    prefilled = stats.prefilled if stats.prefilled is not None else end
    return DraftSpan("prefill", min(began, prefilled), prefilled, attributes)


def _brought(brought: OriginReport) -> DraftSpan:
    attributes: dict[str, Attribute] = {
        "kind": brought.origin,
        "bytes": brought.bytes,
        "blocks": brought.blocks,
        "path": brought.path,
        "gb_per_s": round(brought.gb_per_s, 4),
    }
    if brought.holder:
        attributes["holder"] = brought.holder
    if brought.reason is not None:
        attributes["failed"] = brought.reason
    return DraftSpan("kv.pull", brought.started, brought.started + brought.seconds, attributes)


def _pull(fetch: FetchReport) -> DraftSpan:
    attributes: dict[str, Attribute] = {
        "bytes": fetch.bytes,
        "blocks": fetch.blocks,
        "path": fetch.path,
        "gb_per_s": round(fetch.gb_per_s, 4),
        "exposed_ms": round(fetch.exposed_s * 1e3, 3),
    }
    if fetch.reason is not None:
        attributes["failed"] = fetch.reason
    return DraftSpan("kv.pull", fetch.started, fetch.started + fetch.seconds, attributes)
