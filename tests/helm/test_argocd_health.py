"""The health that Argo CD shows of ModelServices and EnginePools, by the script in the chart."""

from typing import Any

import lupa
import pytest
import yaml

from tests.helm.charts import CHART, Json
from tools.chart_values import PAGE

SCRIPT = (CHART / "files" / "argocd-health.lua").read_text("utf-8")
BEGIN = "resource.customizations.health.tandem.dev_"


def health(obj: Json) -> tuple[str, str]:
    """As Argo CD asks: the object is the global `obj`, what the script returns is a table."""
    runtime = lupa.LuaRuntime(unpack_returned_tuples=True)

    def table(value: Any) -> Any:
        if isinstance(value, dict):
            return runtime.table_from({key: table(each) for key, each in value.items()})
        return runtime.table_from([table(each) for each in value]) if isinstance(value, list) else value

    runtime.globals().obj = table(obj)
    found = runtime.execute(SCRIPT)
    return found["status"], found["message"]


def condition(type_: str, status: str, reason: str, message: str = "") -> Json:
    found = {"type": type_, "status": status, "reason": reason, "lastTransitionTime": "2026-11-28T10:00:00Z"}
    return {**found, "message": message} if message else found


def service(*conditions: Json, generation: int = 2, observed: int = 2) -> Json:
    status = {"conditions": list(conditions), "observedGeneration": observed}
    return {"kind": "ModelService", "metadata": {"name": "m", "generation": generation}, "status": status}


GOING = condition("Stalled", "False", "Going")


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        ({"metadata": {"name": "m", "generation": 1}}, "Progressing"),
        ({"metadata": {"name": "m", "generation": 1}, "status": {}}, "Progressing"),
        (service(condition("Ready", "True", "Complete"), GOING), "Healthy"),
        # Ready says nothing of a specification that has not been looked at.
        (service(condition("Ready", "True", "Complete"), GOING, generation=3), "Progressing"),
        (service(condition("Ready", "False", "Progressing", "1 of 2 pods"), GOING), "Progressing"),
        (service(condition("Ready", "Unknown", "RoutersNotReached"), GOING), "Progressing"),
        (service(condition("Ready", "False", "Paused"), GOING), "Suspended"),
        (service(condition("Ready", "False", "DoesNotFit"), condition("Stalled", "True", "DoesNotFit")), "Degraded"),
        # Rolled back: the old revision is ready, and the new specification will not come.
        (service(condition("Ready", "True", "Complete"), condition("Stalled", "True", "RolledBack")), "Degraded"),
        (
            service(condition("Ready", "False", "Waiting"), GOING, condition("Available", "False", "ScaledToZero")),
            "Healthy",
        ),
    ],
)  # fmt: skip
def test_the_script_says_what_conditions_say(obj: Json, expected: str) -> None:
    assert health(obj)[0] == expected


def test_the_message_is_that_of_the_condition() -> None:
    stalled = service(condition("Ready", "False", "x", "a"), condition("Stalled", "True", "RolledBack", "b"))
    assert health(stalled)[1] == "b"
    assert health(service(condition("Ready", "False", "x", "a"), GOING))[1] == "a"
    assert health(service(condition("Ready", "False", "x"), GOING))[1] == "x"


def test_the_documentation_has_the_script_as_it_is() -> None:
    page = PAGE.read_text("utf-8")
    (block,) = (each for each in page.split("```yaml\n")[1:] if BEGIN in each)
    data = yaml.safe_load(block.partition("```")[0])["data"]
    assert data.keys() == {f"{BEGIN}{kind}" for kind in ("ModelService", "EnginePool")}
    assert {text.strip() for text in data.values()} == {SCRIPT.strip()}
