"""What the router can serve now: which models there are, whether a worker has room, whether the router is of use."""

from router.fleet.fleet import Fleet
from router.placement.filters.workers import sequences_max
from router.settings import PlacementSettings
from tandem.core.errors import TandemError


class Serving:
    """Looks at the fleet for the dispatcher."""

    def __init__(self, fleet: Fleet, settings: PlacementSettings) -> None:
        self._fleet = fleet
        self._settings = settings
        self._proved = False
        """Whether it has once been decided if prompts can be handed off."""
        self._served = False
        """Whether a router with watched services was ready once; it then stays ready."""

    def check_model(self, model: str) -> None:
        """Raise `no_workers` or `model_not_found` for a model that has never been served."""
        if self._fleet.services.knows(model):
            return
        if self._fleet.problems() or not self._fleet.peers():
            raise TandemError("no_workers", f"no worker that serves {model!r} is connected", retry_after_s=1.0)
        raise TandemError("model_not_found", f"the model {model!r} does not exist here", param="model")

    def has_room(self, model: str) -> bool:
        """Whether a worker could begin to generate for one more request."""
        views = [view for view in self._fleet.views(model) if view.ready and not view.draining]
        generating = [view for view in views if view.role not in ("prefill", "store")]
        # As placement sorts them: where there is nobody else those that take prompts for others, then those whose
        # step is overdue.
        timely = [view for view in generating if not view.overdue]
        asked = [view for view in timely if not view.takes_prompts] or timely or generating
        return any(view.sequences < sequences_max(view, self._settings) for view in asked)

    def problem(self) -> str | None:
        """Why the router could take no request now, in one sentence, or None.

        Where services are watched, the router is of use as soon as it knows them: requests for services that sleep
        have to get through for these to be woken. Only at first does it wait for workers that are reported ready.
        """
        services = self._fleet.services
        if not services.watched:
            return self._without_workers()
        if not services.told:
            return "nobody has told yet which services and workers there are"
        problem = None if self._served or not services.awaited else self._without_workers()
        self._served = problem is None
        return problem

    def _without_workers(self) -> str | None:
        if any(self.has_room(model) for model in self._fleet.services.known):
            # Only at first: later, pairs that break leave a router that serves, and must not take it out of use.
            unproven = None if self._proved else self._fleet.unproven()
            self._proved = unproven is None
            return unproven
        problems = "; ".join(f"{address}: {reason}" for address, reason in list(self._fleet.problems().items())[:3])
        return f"no decode or unified worker can take a request{f' ({problems})' if problems else ''}"
