"""What a router is measured against: `streams` sends the same bytes in a bare loop, `tokenize` only tokenizes.

    python -m benchmarks.router_bare streams --bytes 210 --steps-per-s 50
    python -m benchmarks.router_bare tokenize --model demo

`streams` keeps the pace of the router's load, so that waking up costs both the same. Prints a port, or `ready`.
"""

import argparse
import contextlib
import json
import socket
import sys
import time

from tokenizers import Tokenizer

from tandem.core.kv import pack_tokens
from tandem.model.directory import open_model

_GROUPS = 2


def streams(size: int, steps_per_s: float) -> None:
    """Send `size` bytes to every connection, `steps_per_s` times a second, in two groups like two workers' steps."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        listener.setblocking(False)
        _say(str(listener.getsockname()[1]))
        groups: list[list[socket.socket]] = [[] for _ in range(_GROUPS)]
        due = time.monotonic()
        while True:
            for number in range(_GROUPS):
                with contextlib.suppress(BlockingIOError):
                    while True:
                        groups[_smallest(groups)].append(_accepted(listener))
                due = max(due + 1 / (steps_per_s * _GROUPS), time.monotonic())
                time.sleep(max(0.0, due - time.monotonic()))
                groups[number] = _send_all(groups[number], b"x" * size)


def _send_all(connections: list[socket.socket], data: bytes) -> list[socket.socket]:
    gone = []
    for connection in connections:
        try:
            connection.send(data)
        except OSError:
            gone.append(connection)
    return [connection for connection in connections if connection not in gone] if gone else connections


def _accepted(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _smallest(groups: list[list[socket.socket]]) -> int:
    return min(range(_GROUPS), key=lambda number: len(groups[number]))


def tokenize(model: str) -> None:
    """Tokenize with the library's `encode`: a list of texts per line of standard input, each answered with the CPU
    seconds per text."""
    tokenizer = Tokenizer.from_file(str(open_model(model).tokenizer_path))
    _say("ready")
    for line in sys.stdin:
        texts = json.loads(line)
        began = time.process_time()
        for text in texts:
            pack_tokens(tokenizer.encode(text).ids)
        _say(str((time.process_time() - began) / len(texts)))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("streams", "tokenize"))
    parser.add_argument("--bytes", type=int, default=210)
    parser.add_argument("--steps-per-s", type=float, default=50.0)
    parser.add_argument("--model", default="demo")
    arguments = parser.parse_args()
    if arguments.what == "streams":
        streams(arguments.bytes, arguments.steps_per_s)
    else:
        tokenize(arguments.model)


if __name__ == "__main__":
    main()
