"""Tells whether routers can choose which workers of an `auto` pool compute prompts for others, as far as the
specification and the model say. Where they cannot, all of its workers serve whole requests, and the pool's status
says why. Pure."""

from typing import Final

from control_plane.objects.scheduling import nodes_of
from control_plane.observe.observed import ModelFacts
from control_plane.reconcile.conditions import ConditionUpdate, condition_update
from tandem.core.config_facts import cannot_exchange
from tandem.spec.pool import Pool, engine_of
from tandem.spec.service import ModelService
from tandem.spec.vllm import kinds_served

CONDITION: Final = "SplitFollowsLoad"


def split_condition(service: ModelService, pool: Pool, model: ModelFacts | None) -> ConditionUpdate:
    """The condition of a pool of role `auto`."""
    engine, whole = engine_of(service.spec.engine, pool), "its workers serve whole requests."
    if nodes_of(service, pool) > 1:
        why = "Workers span nodes, and ranks on other nodes cannot hand their KV over"
        return condition_update(CONDITION, False, "SpansNodes", f"{why}: {whole}")
    if engine.type != "vllm":
        said = "Routers choose which of its workers compute prompts for the others: `tandem explain fleet` tells."
        return condition_update(CONDITION, True, "RoutersChoose", said)
    if model is not None and (alone := cannot_exchange(kinds_served(model.config, engine))):
        return condition_update(CONDITION, False, "CannotHandOver", f"KV cannot be handed over, {alone}: {whole}")
    why = "What a step of engine vllm may take cannot be changed while it runs"
    return condition_update(CONDITION, False, "StepsFixed", f"{why}: {whole}")
