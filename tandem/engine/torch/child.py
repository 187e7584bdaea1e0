"""The engine process: `python -m tandem.engine.torch.child SOCKET_FD MEMORY_FD`. Ends when its parent does."""

import signal
import socket
import sys

from tandem.core.errors import TandemError
from tandem.engine.memory import HostMemory
from tandem.engine.torch.executor import ModelExecutor
from tandem.engine.torch.frames import LENGTH_BYTES, Done, Failure, ModelLoaded, frame, read_spec, read_step


def serve(connection: socket.socket, memory_fd: int) -> None:
    """Load the model that the first frame specifies, then answer steps until the parent closes its end."""
    first = _receive(connection)
    if first is None:
        return
    spec = read_spec(first)
    try:
        computer = ModelExecutor(spec, HostMemory(spec.layout.block_bytes, spec.blocks, fd=memory_fd))
    except TandemError as error:
        connection.sendall(frame(_failure(error)))
        return
    connection.sendall(frame(ModelLoaded()))
    while (body := _receive(connection)) is not None:
        try:
            answer: Done | Failure = Done(computer.execute(read_step(body)))
        except TandemError as error:
            answer = _failure(error)
        connection.sendall(frame(answer))


def _failure(error: TandemError) -> Failure:
    return Failure(error.code, error.message, error.param)


def _receive(connection: socket.socket) -> bytes | None:
    """The next frame's body; None at the end."""
    head = _exactly(connection, LENGTH_BYTES)
    return None if head is None else _exactly(connection, int.from_bytes(head, "little"))


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def main(socket_fd: int, memory_fd: int) -> None:
    """A Ctrl-C on the terminal reaches the whole group; only the parent decides when this process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=socket_fd) as connection:
        try:
            serve(connection, memory_fd)
        except (BrokenPipeError, ConnectionResetError):
            sys.exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
