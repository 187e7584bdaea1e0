"""A model as `/v1/models` lists it. Pure."""

from typing import Any

from router.api.openai.defaults import Defaults
from router.generation import ServedModel


def model_object(name: str, model: ServedModel, defaults: Defaults) -> dict[str, Any]:
    """As it is listed under one of its names. `root` says which model an alias stands for, `generation_defaults` what
    requests that leave it out are given, where that is not neutral, `slo` what answers are to hold by its service.
    """
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
