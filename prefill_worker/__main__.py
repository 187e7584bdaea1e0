"""`python -m prefill_worker`: a prefill worker as a process."""

import sys
from pathlib import Path

from kv_transfer.key_file import read_keyring
from prefill_worker.service import prefill_worker
from tandem.worker.process import ProcessDeps, worker_main
from tandem.worker.service import WorkerService


def make(process: ProcessDeps) -> WorkerService:
    """The service. Raises `bad_setting`."""
    settings = process.settings
    return prefill_worker(
        process.parts,
        settings.worker_id,
        process.links,
        process.transports,
        read_keyring(settings.ticket_key_file or Path()),
        process.begin_epoch,
        revision=settings.revision,
        events=process.events,
        health=process.health,
    )


if __name__ == "__main__":
    sys.exit(worker_main(("prefill",), make))
