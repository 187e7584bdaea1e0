"""The plugin that runs in every process of vLLM (an entry point of `vllm.general_plugins`). It acts only in processes
that Tandem has started."""

import logging
import multiprocessing
import multiprocessing.connection
import os
import threading
from pathlib import Path
from typing import Any

from tandem.engine.vllm.adapter_slots import keep_last_slot_empty
from tandem.engine.vllm.arguments import REPORT_VARIABLE
from tandem.engine.vllm.heartbeat import Heartbeat, heartbeats_beside
from tandem.engine.vllm.process_reports import ReportHandler, shard_progress
from tandem.engine.vllm.step_reports import report_steps


def register() -> None:
    """Called by vLLM before it builds anything, possibly more than once."""
    path, parent = os.environ.get(REPORT_VARIABLE), multiprocessing.parent_process()
    if path is None or parent is None:
        return
    logger = logging.getLogger("vllm")
    if any(isinstance(handler, ReportHandler) for handler in logger.handlers):
        return
    teller = ReportHandler(Path(path))
    _pass_on_progress(logger)
    logger.addHandler(teller)
    threading.Thread(target=_end_with, args=(parent.sentinel,), name="tandem-parent", daemon=True).start()
    _count_files(teller)
    keep_last_slot_empty()
    beats = heartbeats_beside(Path(path))
    beats.mkdir(exist_ok=True)
    report_steps(Heartbeat(beats))


def _pass_on_progress(logger: logging.Logger) -> None:
    """Let lines of progress through a logger that was set to be quieter; what the logger prints stays as quiet."""
    level = logger.getEffectiveLevel()
    if level > logging.INFO:
        for handler in logger.handlers:
            handler.setLevel(max(handler.level, level))
        logger.setLevel(logging.INFO)


def _end_with(sentinel: int) -> None:
    """End this process as soon as its parent has ended, however that was. For ranks that is the engine process, which
    `parent_watch` looks after earlier."""
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def _count_files(teller: ReportHandler) -> None:
    """Make vLLM's progress bar over the files of a checkpoint report to the worker too."""
    from tandem.engine.vllm.internals import weight_utils

    class Counting(weight_utils.tqdm):
        """The progress bar, which also reports every file to the worker."""

        def update(self, n: float | None = 1) -> Any:
            shown = super().update(n)
            if self.total:
                teller.tell(shard_progress(int(self.n), int(self.total)))
            return shown

    weight_utils.tqdm = Counting
