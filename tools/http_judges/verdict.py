"""What a server made of the bytes of one connection, read off its answers."""

from dataclasses import dataclass
from typing import Final

from tools.http_judges.echo import SAW

REFUSED: Final = "refused"


@dataclass(frozen=True)
class Verdict:
    """`answers` in order: the method and the body the application saw, or `refused` and the class of the status.
    `closed`: the server ended the connection."""

    answers: tuple[tuple[str, bytes], ...]
    closed: bool

    @property
    def seen(self) -> tuple[tuple[str, bytes], ...]:
        """What the application saw."""
        return tuple(each for each in self.answers if each[0] != REFUSED)

    @property
    def refused(self) -> bool:
        """Whether one of the answers is a refusal of the server itself."""
        return len(self.seen) < len(self.answers)

    def __str__(self) -> str:
        shown = [f"{name} {what.decode('latin-1')!r}" for name, what in self.answers]
        return f"[{', '.join(shown)}] {'closed' if self.closed else 'open'}"


def read_answers(data: bytes, closed: bool) -> Verdict:
    """The verdict that the bytes of a server say."""
    answers: list[tuple[str, bytes]] = []
    at = 0
    while (end := data.find(b"\r\n\r\n", at)) >= 0:
        status, headers = _head(data[at:end])
        at = end + 4
        if status < 200:
            continue
        if SAW in headers:
            method, _, body = headers[SAW].partition(b"=")
            answers.append((method.decode(), bytes.fromhex(body.decode())))
            continue
        answers.append((REFUSED, b"%dxx" % (status // 100)))
        at += int(headers.get(b"content-length", b"0"))
    return Verdict(tuple(answers), closed)


def _head(data: bytes) -> tuple[int, dict[bytes, bytes]]:
    line, *rest = data.split(b"\r\n")
    headers = {}
    for each in rest:
        name, _, value = each.partition(b":")
        headers[name.lower()] = value.strip()
    return int(line.split()[1]), headers
