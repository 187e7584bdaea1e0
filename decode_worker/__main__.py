"""`python -m decode_worker`: a worker of role decode, unified or auto as a process."""

import sys

from decode_worker.service import decode_worker
from kv_transfer.key_file import read_keyring
from tandem.worker.process import ProcessDeps, worker_main
from tandem.worker.service import WorkerService


def make(process: ProcessDeps) -> WorkerService:
    """The service. Raises `bad_setting`."""
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
        health=process.health,
        keyring=None if settings.ticket_key_file is None else read_keyring(settings.ticket_key_file),
    )


if __name__ == "__main__":
    sys.exit(worker_main(("decode", "unified", "auto"), make))
