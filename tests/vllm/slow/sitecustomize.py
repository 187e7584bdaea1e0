"""On `PYTHONPATH`, makes the steps of vLLM's engine processes take as long as a file says; see `tests.vllm.slowness`.

Python imports a module of this name whenever it starts, and so in processes that vLLM spawns.
"""

import os
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_VARIABLE = "TANDEM_TEST_SLOW_STEPS"


def _slow_down(path: Path) -> None:
    from tests.vllm.slowness import slow_down

    slow_down(path)


def _watch(path: Path) -> None:
    run: Any = BaseProcess.run

    def slowed(process: BaseProcess) -> None:
        if "vllm.v1.engine.core" in sys.modules:
            _slow_down(path)
        run(process)

    BaseProcess.run = slowed  # type: ignore[method-assign]


if _VARIABLE in os.environ:
    _watch(Path(os.environ[_VARIABLE]))
