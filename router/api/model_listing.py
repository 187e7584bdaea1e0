"""A model as `/v1/models` lists it. Pure."""

from typing import Any

from router.api.openai.defaults import Defaults
from router.generation import ServedModel


def model_object(name: str, model: ServedModel, defaults: Defaults) -> dict[str, Any]:
    """The listing of a model under one of its names. `root` names the model that an alias stands for.
    `generation_defaults` has the values for requests that leave them out, where these are not neutral. `slo` has the
    bounds that the model's service sets for answers."""
    stated = defaults.stated()
    slo = {f"{name}_ms": round(bound * 1e3, 3) for name, bound in model.slo.bounds.items()}
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "tandem",
        "max_model_len": model.context_tokens,
        **({"parent": model.parent} if model.parent else {}),
        **({"root": model.name} if name != model.name else {}),
        **({"generation_defaults": stated} if stated else {}),
        **({"slo": slo} if slo else {}),
    }
