"""Counts the outcomes of requests, per model and revision, since the router started: rollouts are judged by them.
Pure."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from router.fleet.services import ServiceFacts
from tandem.core.errors import KINDS
from tandem.core.slo import Latency, Slo

_NOT_ITS_FAULT: Final = frozenset(("draining", "slow_client"))
"""Error codes that are the fault of a router that stops, or of the client, and not of the service."""
_REVISIONS_MAX: Final = 1024
"""Upper bound on the kept revisions of all models; beyond it the oldest are forgotten."""


class EndedRequest(NamedTuple):
    """A request that is over. `outcome` is an error code or `done`; `revision` is empty if it was never placed.

    `times` are seconds to its first token and per token of a sequence after it; None where they say nothing of how
    soon its workers answered.
    """

    model: str
    revision: str
    outcome: str
    times: tuple[float, float] | None
    output_tokens: int


@dataclass
class ModelTally:
    """The counts of one model; all of these only grow. `prompt_tokens` are those that placed requests were expected
    to have computed, `output_tokens` those of requests that have ended, `unplaced` requests that the service failed
    before any worker had them."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    unplaced: int = 0


@dataclass
class Tally:
    """The counts of one revision; all of these only grow. `requests` have ended after an attempt on it, whatever
    their end. `errors` are requests that the service failed, and requests that had to leave the revision because no
    worker of it was left. `slo_misses` were answered later than the service is to answer."""

    requests: int = 0
    errors: int = 0
    slo_misses: int = 0


class Tallies:
    """Per model, and per (model, revision). At most those of a bounded number of revisions are kept."""

    def __init__(self) -> None:
        self.by_revision: dict[tuple[str, str], Tally] = {}
        self.by_model: dict[str, ModelTally] = {}
        self.incarnation = ""
        """The name of this count, set once it has been read: the count of another process began at 0."""

    def arrived(self, model: str) -> None:
        """A request for a model that is known, whether it is taken or not."""
        self._model(model).requests += 1

    def placed(self, model: str, prompt_tokens: int) -> None:
        """A request was placed for the first time; so many tokens of its prompt are to be computed."""
        self._model(model).prompt_tokens += prompt_tokens

    def ended(self, ended: EndedRequest, facts: ServiceFacts | None) -> None:
        """A request is over."""
        outcome, times = ended.outcome, ended.times
        failed = outcome in KINDS and KINDS[outcome].http >= 500 and outcome not in _NOT_ITS_FAULT
        arrivals = self._model(ended.model)
        arrivals.output_tokens += ended.output_tokens
        if not ended.revision:
            arrivals.unplaced += failed
            return
        tally = self._of(ended.model, ended.revision)
        tally.requests += 1
        tally.errors += failed
        tally.slo_misses += (
            outcome == "done" and times is not None and facts is not None and _missed(facts.slo, *times)
        )

    def left(self, model: str, revision: str) -> None:
        """A request had to leave the revision for another."""
        tally = self._of(model, revision)
        tally.requests += 1
        tally.errors += 1

    def _model(self, model: str) -> ModelTally:
        found = self.by_model.get(model)
        if found is None:
            found = self.by_model[model] = ModelTally()
        return found

    def _of(self, model: str, revision: str) -> Tally:
        tally = self.by_revision.get((model, revision))
        if tally is None:
            tally = self.by_revision[model, revision] = Tally()
            if len(self.by_revision) > _REVISIONS_MAX:
                del self.by_revision[next(iter(self.by_revision))]
        return tally


def _missed(slo: Slo, ttft_s: float, tpot_s: float) -> bool:
    return not slo.met_by(Latency(ttft_s, 0.0, tpot_s))
