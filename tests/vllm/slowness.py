"""Steps of vLLM that take as long as a test wants: the engine process waits before it computes a step.

The file of a `Slowness` says how long: seconds per prompt or output token that the step computes, and seconds for
every step. With `holding` a good part of the wait holds Python's lock, as a long call into C code may.
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

VARIABLE = "TANDEM_TEST_SLOW_STEPS"
_FOLDER = Path(__file__).parent / "slow"


@dataclass(frozen=True)
class Slowness:
    """What steps take besides computing."""

    per_token_s: float = 0.0
    per_step_s: float = 0.0
    holding: bool = False

    def write(self, path: Path) -> None:
        """From the next step on."""
        path.with_suffix(".new").write_text(json.dumps(asdict(self)))
        path.with_suffix(".new").rename(path)


def environment(path: Path, python_path: str) -> dict[str, str]:
    """With which engine processes heed the file; `python_path` is what they would have otherwise."""
    Slowness().write(path)
    return {VARIABLE: str(path), "PYTHONPATH": f"{_FOLDER}:{python_path}"}


def slow_down(path: Path) -> None:
    """In an engine process, before its engine begins."""
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    execute = UniProcExecutor.execute_model

    def slowed(executor: Any, scheduled: Any, *given: Any, **named: Any) -> Any:
        slowness = Slowness(**json.loads(path.read_text()))
        tokens = scheduled.total_num_scheduled_tokens
        _wait(slowness.per_token_s * tokens + slowness.per_step_s * (tokens > 0), holding=slowness.holding)
        return execute(executor, scheduled, *given, **named)

    UniProcExecutor.execute_model = slowed  # type: ignore[method-assign]


def _wait(seconds: float, *, holding: bool) -> None:
    until = time.monotonic() + seconds
    if holding and seconds:
        # One call that lets no other thread run: several seconds.
        pow(7, 1 << 22)
    time.sleep(max(0.0, until - time.monotonic()))
