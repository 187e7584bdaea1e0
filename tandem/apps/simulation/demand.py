"""The least time that the requests of a world need: no platform could have answered them sooner.

A request occupies blocks of one pool for as long as its prompt and its tokens take to be computed. Where pools are
small, blocks times seconds are scarce: a burst of long prompts waits even if nothing is broken.
"""

from collections.abc import Iterable

from tandem.apps.simulation.checks import Outcome
from tandem.apps.simulation.traffic import SimRequest
from tandem.engine.simulated.model import SimulatedModel

Demand = tuple[float, float, float]
"""The begin and end of a request's presence, in virtual seconds, and the seconds that it needs of all pools
together."""


def demand_of(request: SimRequest, outcome: Outcome, model: SimulatedModel, pools: int) -> Demand:
    """The minimum demand of a request. It ignores that steps are shared with other requests: each token costs an
    empty step."""
    prompt, size = len(request.prompt) // 4, model.block_tokens
    blocks = -(-(prompt + outcome.tokens) // size)
    longest = -(-outcome.tokens // request.n)
    seconds = prompt * model.token_s + longest * model.base_s
    until = outcome.asked_s + (outcome.ended_s or 0.0)
    return outcome.asked_s, until, seconds * min(1.0, blocks / model.blocks) / pools


def needed_s(demands: Iterable[Demand], since: float, until: float) -> float:
    """The least seconds that all requests present between two times need together."""
    return sum(seconds for begin, end, seconds in demands if begin < until and end > since)
