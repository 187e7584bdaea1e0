"""A worker whose engine has failed leaves, whatever hangs in its threads."""

import subprocess
import sys
from typing import Final

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
    return 1

process.serve_process = serve
sys.exit(process.worker_main(("unified",), lambda _: None))
"""


def test_a_vllm_worker_that_has_failed_does_not_wait_for_a_thread_that_reads_images_for_ever() -> None:
    worker = subprocess.Popen([sys.executable, "-c", SCRIPT, "--engine", "vllm", "--model", "demo"])
    try:
        assert worker.wait(LEAVES_S) == 1
    finally:
        worker.kill()
        worker.wait()
