"""The messages between runner and engine process: length-prefixed msgpack frames over a socket pair.

Up: `ModelLoaded`, then one `StepResult` per step; `Failure` instead of either. Down: `ComputeSpec`, then `Step`s.
"""

from pathlib import Path
from typing import Final

import msgspec

from tandem.core.errors import TandemError
from tandem.engine.scheduler.plan import Step, StepResult
from tandem.engine.torch.spec import ComputeSpec

LENGTH_BYTES: Final = 4


class ModelLoaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The model is in memory."""


class Failure(msgspec.Struct, frozen=True, tag="failure"):
    """A `TandemError` on its way."""

    code: str
    message: str
    param: str | None = None

    def error(self) -> TandemError:
        return TandemError(self.code, self.message, param=self.param)


class Done(msgspec.Struct, frozen=True, tag="done"):
    """A step's result."""

    result: StepResult


Answer = ModelLoaded | Failure | Done


def _plain(value: object) -> str:
    assert isinstance(value, Path), f"cannot send {type(value)}"
    return str(value)


def _rich(kind: type, value: object) -> object:
    if kind is object:
        return value  # out of a configuration file: plain JSON already
    assert issubclass(kind, Path), f"cannot receive {kind}"
    return Path(str(value))


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_steps = msgspec.msgpack.Decoder(Step)
_specs = msgspec.msgpack.Decoder(ComputeSpec, dec_hook=_rich)


def frame(message: Answer | Step | ComputeSpec) -> bytes:
    """A message with its length in front."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def read_answer(body: bytes) -> Answer:
    return _answers.decode(body)


def read_step(body: bytes) -> Step:
    return _steps.decode(body)


def read_spec(body: bytes) -> ComputeSpec:
    return _specs.decode(body)
