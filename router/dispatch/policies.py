"""The placement policies of one router: the one of its settings, and one for each service."""

import dataclasses

from router.dispatch.deps import DispatchDeps
from router.fleet.services import ServiceRegistry
from router.placement import Policy, make_policy


class Policies:
    """The placement policies in use. What a policy keeps between decisions belongs to one service; without services,
    one policy serves all models."""

    def __init__(self, services: ServiceRegistry, tools: DispatchDeps) -> None:
        self._services = services
        self._tools = tools
        self._common = make_policy(tools.settings.placement, tools.entropy)
        self._own: dict[str, tuple[str, Policy]] = {}
        """The name of each model's policy and the policy itself, by model."""

    def of(self, model: str) -> Policy:
        """The policy by which requests for a model are placed now."""
        facts = self._services.of(model)
        if facts is None:
            return self._common
        settings = self._tools.settings.placement
        wanted, known = facts.policy or settings.policy, self._own.get(model)
        if known is None or known[0] != wanted:
            self._own = {each: kept for each, kept in self._own.items() if self._services.of(each) is not None}
            made = make_policy(dataclasses.replace(settings, policy=wanted), self._tools.entropy)
            known = self._own[model] = wanted, made
        return known[1]

    def gone(self, worker_id: str) -> None:
        """A worker is lost."""
        self._common.gone(worker_id)
        for _, policy in self._own.values():
            policy.gone(worker_id)
