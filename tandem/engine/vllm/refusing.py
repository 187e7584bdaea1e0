"""Works that a vLLM engine does not take, whatever else it has to do. Pure."""

from tandem.core.errors import TandemError
from tandem.engine.protocol import EngineInfo, EngineRequest
from tandem.engine.scheduler.admission import refuse_impossible
from tandem.engine.vllm.requests import refuse_under_speculation
from tandem.engine.vllm.settings import RunnerKind


def refuse_unservable(work: EngineRequest, info: EngineInfo, runner: RunnerKind, *, staged: bool) -> None:
    """Raise the error that `Engine.submit` specifies for a request that this engine cannot serve. `staged`: whether
    the engine has a stage."""
    refuse_impossible(work, info)
    if not staged and work.mode != "local":
        raise TandemError("invalid_request", "this engine has no stage: its KV cannot be handed over", param="mode")
    if work.adapter and work.adapter not in [adapter.name for adapter in info.adapters]:
        raise TandemError("invalid_request", f"adapter {work.adapter!r} is not loaded here", param="adapter")
    if work.images and (work.mode != "local" or "images" not in info.features):
        raise TandemError("invalid_request", "this engine takes no images", param="messages")
    if runner.speculates:
        refuse_under_speculation(work, runner)
