"""A worker on vLLM leaves, whatever hangs in its threads."""

import subprocess
import sys
from typing import Final

import pytest

LEAVES_S: Final = 60.0
"""A bound; it takes a second."""
SCRIPT: Final = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from tandem.worker import process

reader = ThreadPoolExecutor(1)

def serve(*given, **named):
    # As vLLM's reader of images does when the model's own code hangs: Python waits for it before it ends.
    reader.submit(threading.Event().wait)
    return STATUS

process.serve_process = serve
sys.exit(process.worker_main(("unified",), lambda _: None))
"""


@pytest.mark.parametrize("status", [0, 1])
def test_a_vllm_worker_does_not_wait_for_a_thread_that_reads_images_for_ever(status: int) -> None:
    script = SCRIPT.replace("STATUS", str(status))
    worker = subprocess.Popen([sys.executable, "-c", script, "--engine", "vllm", "--model", "demo"])
    try:
        assert worker.wait(LEAVES_S) == status
    finally:
        worker.kill()
        worker.wait()
