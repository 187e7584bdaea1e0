"""The engine process of torch, with steps that compute for as long as a file says before what they are to compute."""

import os
import sys
import time
from pathlib import Path

from tandem.engine.scheduler.plan import Step, StepResult
from tandem.engine.torch.child import main
from tandem.engine.torch.executor import ModelExecutor

VARIABLE = "TANDEM_TEST_STEP_SECONDS"
_execute = ModelExecutor.execute


def execute(computer: ModelExecutor, step: Step) -> StepResult:
    """Use processor time, as a long step does, then run the step. Another number in the file counts at once."""
    began, seconds = time.process_time(), Path(os.environ[VARIABLE])
    while time.process_time() - began < float(seconds.read_text() or 0):
        pass
    return _execute(computer, step)


if __name__ == "__main__":
    setattr(ModelExecutor, "execute", execute)  # noqa: B010  (mypy takes a function for a method)
    main(int(sys.argv[1]), int(sys.argv[2]))
