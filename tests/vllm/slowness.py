"""Steps of vLLM that take as long as a test wants: the engine process waits before it computes a step.

The file of a `Slowness` says how long: seconds per prompt or output token that the step computes, and seconds for
every step. With `holding` the wait is one call that holds Python's lock, as a long call into C code may.
"""

import json
import time
from collections import deque
from dataclasses import asdict, dataclass
from itertools import takewhile
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
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    schedule, execute = Scheduler.schedule, UniProcExecutor.execute_model
    slowness = Slowness()

    def read(scheduler: Any, *given: Any, **named: Any) -> Any:
        # Before it is told what the step is about: afterwards, reading would let the thread run that sends it.
        nonlocal slowness
        slowness = Slowness(**json.loads(path.read_text()))
        return schedule(scheduler, *given, **named)

    def slowed(executor: Any, scheduled: Any, *given: Any, **named: Any) -> Any:
        tokens = scheduled.total_num_scheduled_tokens
        _wait(slowness.per_token_s * tokens + slowness.per_step_s * (tokens > 0), holding=slowness.holding)
        return execute(executor, scheduled, *given, **named)

    Scheduler.schedule = read  # type: ignore[method-assign]
    UniProcExecutor.execute_model = slowed  # type: ignore[method-assign]


def _wait(seconds: float, *, holding: bool) -> None:
    until = time.monotonic() + seconds
    if holding:
        # No byte code runs in it, so nothing makes it let another thread run.
        deque(takewhile(until.__gt__, iter(time.monotonic, None)), maxlen=0)
    else:
        time.sleep(seconds)
