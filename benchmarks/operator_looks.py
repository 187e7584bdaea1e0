"""What is submitted to an operator whose price is measured, and what one look at it finds."""

from dataclasses import dataclass
from typing import Final

from tandem.kube.kinds import MODEL_SERVICE, Json

NAMESPACE: Final = "default"


@dataclass(frozen=True)
class Look:
    """`writes` changed something; `asked` were sent."""

    name: str
    seconds: float
    cpu_s: float
    writes: int
    asked: int
    rss_mb: float


def service(number: int, replicas: int) -> Json:
    """A service with a worker for prompts and `replicas` for answers."""
    pools = [{"name": "prefill", "role": "prefill", "replicas": 1}]
    pools.append({"name": "decode", "role": "decode", "replicas": replicas})
    return {
        "apiVersion": MODEL_SERVICE.api_version,
        "kind": MODEL_SERVICE.kind,
        "metadata": {"name": f"model-{number}", "namespace": NAMESPACE},
        "spec": {"engine": {"type": "simulated"}, "pools": pools},
    }
