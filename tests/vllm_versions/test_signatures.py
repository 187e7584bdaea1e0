"""What Tandem calls takes what it is given, and what Tandem overrides takes what vLLM gives."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from tandem.engine.vllm import internals
from tandem.engine.vllm.connector.vllm import TandemConnector
from tandem.engine.vllm.drawing import PositionDraws
from tandem.engine.vllm.forcing import ForcedTokens

OVERRIDING = (
    (TandemConnector, "KVConnectorBase_V1"),
    (ForcedTokens, "LogitsProcessor"),
    (PositionDraws, "LogitsProcessor"),
)


def _overridden() -> list[tuple[type, type, str]]:
    found = list[tuple[type, type, str]]()
    for ours, name in OVERRIDING:
        base = getattr(internals, name)
        found += [(ours, base, each) for each in vars(ours) if callable(getattr(base, each, None))]
    return [each for each in found if each[2] in ("__init__",) or not each[2].startswith("__")]


@pytest.mark.parametrize(("ours", "base", "method"), _overridden())
def test_an_overriding_method_takes_what_vllm_gives(ours: type, base: type, method: str) -> None:
    """By position, and by name where vLLM may do that."""
    theirs = inspect.signature(getattr(base, method)).parameters.values()
    given = [each for each in theirs if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    named = {each.name: None for each in theirs if each.kind is each.KEYWORD_ONLY}
    signature = inspect.signature(getattr(ours, method))
    signature.bind(*([None] * len(given)), **named)
    signature.bind(None, **{each.name: None for each in given[1:]}, **named)


@pytest.mark.parametrize(("ours", "name"), OVERRIDING)
def test_nothing_abstract_is_left_open(ours: Any, name: str) -> None:
    assert issubclass(ours, getattr(internals, name))
    assert not ours.__abstractmethods__


def test_a_method_that_takes_more_is_noticed() -> None:
    class Base:
        def save(self, layer: str, more: int) -> None: ...

    class Ours(Base):
        def save(self, layer: str) -> None: ...  # type: ignore[override]

    with pytest.raises(TypeError):
        test_an_overriding_method_takes_what_vllm_gives(Ours, Base, "save")


CALLS: tuple[tuple[str, str, int, tuple[str, ...]], ...] = (
    # Module, what is called, positional arguments (self included), names of further ones.
    ("vllm.v1.engine.async_llm", "AsyncLLM.from_engine_args", 1, ()),
    ("vllm.v1.engine.async_llm", "AsyncLLM.shutdown", 2, ()),
    ("vllm.v1.engine.core_client", "AsyncMPClient.get_supported_tasks_async", 1, ()),
    ("vllm.v1.engine.core_client", "AsyncMPClient.add_request_async", 2, ()),
    ("vllm.v1.engine.core_client", "AsyncMPClient.abort_requests_async", 2, ()),
    ("vllm.v1.engine.core_client", "AsyncMPClient.get_output_async", 1, ()),
    ("vllm.v1.engine.input_processor", "InputProcessor.process_inputs", 5, ("lora_request", "priority")),
    ("vllm.engine.arg_utils", "AsyncEngineArgs.create_engine_config", 1, ("headless",)),
    ("vllm.v1.executor.multiproc_executor", "MultiprocExecutor", 1, ("monitor_workers",)),
    ("vllm.v1.executor.multiproc_executor", "MultiprocExecutor.shutdown", 1, ()),
    ("vllm.v1.sample.logits_processor.builtin", "process_dict_updates", 3, ()),
    ("vllm.lora.model_manager", "from_layer", 5, ()),
    ("vllm.lora.model_manager", "from_layer_logits_processor", 5, ()),
    ("vllm.lora.request", "LoRARequest", 3, ()),
    ("vllm.distributed.utils", "get_pp_indices", 3, ()),
    ("vllm.model_executor.layers.fused_moe.router.base_router", "BaseRouter.set_capture_fn", 2, ()),
)  # fmt: skip


def _found(module: str, path: str) -> Any:
    found = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize(("module", "path", "count", "names"), CALLS)
def test_a_call_is_taken(module: str, path: str, count: int, names: tuple[str, ...]) -> None:
    called: Callable[..., object] = _found(module, path)
    inspect.signature(called).bind(*([None] * count), **dict.fromkeys(names))


def test_adapter_slots_are_counted_where_we_change_them() -> None:
    """One slot more is asked for by position (`adapter_slots`)."""
    module = internals.PATCHED["model_manager"]
    for name, at in (("from_layer", 1), ("from_layer_logits_processor", 2)):
        assert list(inspect.signature(_found(module, name)).parameters)[at] == "max_loras"
