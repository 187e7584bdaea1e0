"""Lines for whoever reads the standard output, for as long as somebody does."""

import os


def print_line(line: str) -> None:
    """Print a line at once. When its reader is gone this and everything after it is discarded: serving goes on."""
    try:
        print(line, flush=True)
    except BrokenPipeError:
        silence()


def silence() -> None:
    """Discard everything that is printed from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
