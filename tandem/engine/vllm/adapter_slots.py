"""One adapter slot more in vLLM's weights than it hands out, on a CPU.

There vLLM 0.32 computes a token without an adapter with the weights of slot -1, the last one. Where that is never
filled the token is right, and adapters can come and go in the others. Everywhere else vLLM skips such tokens.
"""

from typing import Any


def keep_last_slot_empty() -> None:
    """Change how vLLM makes its layers' weights in this process; once. Does nothing where there is a GPU."""
    from tandem.engine.vllm.internals import current_platform, model_manager

    if not current_platform.is_cpu() or getattr(model_manager, "_tandem_slot", False):
        return
    from_layer, from_logits = model_manager.from_layer, model_manager.from_layer_logits_processor

    def layer_with_one_more(layer: Any, slots: int, *rest: Any) -> Any:
        return from_layer(layer, slots + 1, *rest)

    def logits_with_one_more(layer: Any, head: Any, slots: int, *rest: Any) -> Any:
        return from_logits(layer, head, slots + 1, *rest)

    model_manager.from_layer = layer_with_one_more
    model_manager.from_layer_logits_processor = logits_with_one_more
    model_manager._tandem_slot = True
