"""`python -m decode_worker`: a decode or unified worker as a process."""

import sys

from decode_worker.service import decode_worker
from tandem.worker.process import Process, worker_main
from tandem.worker.service import WorkerService


def make(process: Process) -> WorkerService:
    """The service."""
    settings = process.settings
    return decode_worker(
        process.parts,
        settings.worker_id,
        process.links,
        process.transports,
        process.begin_epoch,
        role=settings.role,
        revision=settings.revision,
        events=process.events,
    )


if __name__ == "__main__":
    sys.exit(worker_main(("decode", "unified"), make))
