"""Commands of a worker link drawn from their types: sound ones with fields at their edges, and damaged bytes."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, get_args

import msgspec
from msgspec import inspect

from tandem.core.kv import pack_tokens
from tandem.core.messages import (
    Cancel,
    Drain,
    Export,
    Pin,
    Ping,
    ProvideFirst,
    PublishSplit,
    RemoteKv,
    ResumeAttempt,
    RetainOutputs,
    SampleFirst,
    SequenceOutput,
    Source,
    SplitRecord,
    Submit,
    Tune,
    Unpin,
    WorkerCommand,
)
from tandem.core.request import ChildRequest, Grammar, Sampling, Stopping
from tandem.link.messages import COMMANDS

KINDS: Final[tuple[type[msgspec.Struct], ...]] = tuple(kind for kind in get_args(WorkerCommand) if kind is not Drain)
"""All but the one that sends the worker away, as any router may."""
TOKENS_MAX: Final = 24
"""Of sound submits: works that nobody cancels are over soon."""

_INTEGERS: Final = (0, 1, -1, 2, 7, 255, 2**20, 2**31, -(2**31), 2**32, 2**63 - 1, -(2**63), 2**64 - 1)
_FLOATS: Final = (0.0, -0.0, 0.3, 1.0, -1.0, 1e308, -1e308, 5e-324, math.nan, math.inf, -math.inf)
_TEXTS: Final = (
    "", "x", "local", "tcp://", "tcp://[::1", "tcp://127.0.0.1:99999", "tcp://a..b:1", "tcp://\x00:1",
    "tcp://127.0.0.1:1", "shm:///nowhere", "\x00", "é\U0001f98a\u202e", "\n" * 40, "m" * (1 << 20),
)  # fmt: skip
_BYTES: Final = (b"", b"\x00", b"\xff" * 3, b"\xff" * 16, b"\xff" * 4 * TOKENS_MAX, bytes(64), b"b" * (1 << 20))
_LENGTHS: Final = (0, 1, 2, 3, 300)
_SHALLOW: Final = 3
_DEEP: Final = 8
"""Inside of tuples, where nothing is as long as it is alone."""


class Drawing:
    """Draws the commands of one router. `handles` are those that it has used, `strange` ones of other routers."""

    def __init__(self, seed: int, incarnation: int, strange: Sequence[int] = ()) -> None:
        self.draw = random.Random(seed)
        self.handles: list[int] = [*strange]
        self._incarnation = incarnation
        self._next = 1_000

    def fresh(self) -> int:
        """A handle that nothing was said of yet."""
        self._next += 1
        self.handles.append(self._next)
        return self._next

    def command(self) -> WorkerCommand:
        """A command with none or some of its fields at their edges."""
        kind = Submit if self.draw.random() < 0.5 else self.draw.choice(KINDS)
        message = self._sound(kind)
        for _ in range(self.draw.choice((0, 1, 1, 1, 2, 4))):
            message = self._spoiled(message, 0)
        return message  # type: ignore[no-any-return]

    def frame(self) -> bytes:
        """The messages of a frame, sometimes all of them twice."""
        data = b"".join(COMMANDS.encode(self.command()) for _ in range(self.draw.choice((1, 1, 1, 2, 4))))
        return data * 2 if self.draw.random() < 0.1 else data

    def spoiled_frame(self) -> bytes:
        """One that has been damaged: bits are turned, its end is missing, or a length is another."""
        data, draw = self.frame(), self.draw
        match draw.randrange(3):
            case 0:
                return flipped(data, draw)
            case 1:
                return data[: draw.randrange(1, len(data))]
            case _:
                return data[:1] + draw.randbytes(4) + data[5:]

    def _sound(self, kind: type[msgspec.Struct]) -> msgspec.Struct:
        draw = self.draw
        known = draw.choice(self.handles) if self.handles else 1
        made: dict[type[msgspec.Struct], Callable[[], msgspec.Struct]] = {
            Submit: self._submit,
            Cancel: lambda: Cancel(known, draw.choice((None, 0, 1, 7))),
            ProvideFirst: lambda: ProvideFirst(known, draw.choice((0, 1)), draw.randrange(256, 5000)),
            SampleFirst: lambda: SampleFirst(known),
            RetainOutputs: lambda: RetainOutputs(known, (self._output(known),)),
            ResumeAttempt: lambda: ResumeAttempt(self.fresh(), (b"key", b"other")),
            Ping: lambda: Ping(1),
            Unpin: lambda: Unpin(bytes(32)),
            Tune: lambda: Tune(draw.choice((None, 0.02, 0.05))),
            PublishSplit: lambda: PublishSplit(SplitRecord(draw.randrange(9), draw.choice("ab"), ("w",)), 1.0),
        }
        return made[kind]()

    def _submit(self) -> Submit:
        draw, handle = self.draw, self.fresh()
        mode = draw.choice(("local", "local", "prefill", "decode"))
        count = draw.choice((1, 1, 1, 2, 3))
        forced = draw.choice(((), (), (300, 301)))
        resumable = draw.random() < 0.2
        lease = draw.choice((f"lease {handle}", f"lease {handle}", "lease"))
        remote = RemoteKv("prefill-9", 7, ("tcp://127.0.0.1:1",), lease, b"rubbish") if mode == "decode" else None
        source = Source("peer-9", 7, ("tcp://127.0.0.1:1",), f"reuse {handle}", b"rubbish", 3)
        return Submit(
            handle=handle,
            request_id=f"request {handle}",
            attempt=1,
            mode=mode,
            prompt=pack_tokens([draw.randrange(256, 5000) for _ in range(draw.choice((1, 15, 16, 40, 100)))]),
            branches=tuple(ChildRequest(number, draw.randrange(1 << 60), forced) for number in range(count)),
            sampling=Sampling(logprobs=draw.choice((None, None, 2))),
            stopping=Stopping(max_tokens=draw.randrange(3, TOKENS_MAX), stop=draw.choice(((), ("ba",)))),
            deadline_s=20.0,
            tenant_salt=draw.choice(("", "one", "two/x")),
            remote=remote,
            export=Export(lease, self._incarnation, 1.0) if mode == "prefill" else None,
            traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
            resume=b"sealed" if resumable else b"",
            resume_key=b"key" if resumable else b"",
            kept=(self._output(handle),) if resumable else (),
            sources=(source,) if draw.random() < 0.2 else (),
            pin=Pin(0, 1.0) if draw.random() < 0.2 else None,
            kv_bytes_max=draw.choice((None, 1 << 20)),
            grammar=Grammar("json") if draw.random() < 0.03 else None,
            confirm_recompute=draw.random() < 0.1,
        )

    def _output(self, handle: int) -> SequenceOutput:
        return SequenceOutput(handle, 0, 1, (300, 301), " ba", 0)

    def _spoiled(self, message: msgspec.Struct, depth: int) -> msgspec.Struct:
        """The same with one field, here or further inside, at an edge of its type."""
        fields = inspect.type_info(type(message)).fields  # type: ignore[attr-defined]
        if not fields:
            return message
        field = self.draw.choice(fields)
        value = getattr(message, field.name)
        if isinstance(value, msgspec.Struct) and self.draw.random() < 0.7:
            value = self._spoiled(value, depth + 1)
        elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct) and self.draw.random() < 0.7:
            at = self.draw.randrange(len(value))
            value = (*value[:at], self._spoiled(value[at], depth + 1), *value[at + 1 :])
        elif field.name == "handle" and self.handles and self.draw.random() < 0.7:
            value = self.draw.choice(self.handles)
        elif field.name == "token_ids" or (field.name == "prompt" and self.draw.random() < 0.5):
            value = pack_tokens([self.draw.choice((0, 31_999, 32_000, 2**32 - 1))] * 20)
        else:
            value = self._value(field.type, depth + 1)
        return msgspec.structs.replace(message, **{field.name: value})

    def _value(self, kind: inspect.Type, depth: int) -> Any:
        draw = self.draw
        match kind:
            case inspect.IntType():
                return draw.choice(_INTEGERS)
            case inspect.FloatType():
                return draw.choice(_FLOATS)
            case inspect.StrType():
                return draw.choice(_TEXTS if depth < _DEEP else _TEXTS[:-1])
            case inspect.BytesType():
                return draw.choice(_BYTES if depth < _DEEP else _BYTES[:-1])
            case inspect.BoolType():
                return draw.random() < 0.5
            case inspect.UnionType():
                return self._value(draw.choice(kind.types), depth)
            case inspect.VarTupleType():
                count = draw.choice(_LENGTHS) if depth < _SHALLOW else draw.choice(_LENGTHS[:-1])
                return tuple(self._value(kind.item_type, _DEEP) for _ in range(count))
            case inspect.TupleType():
                return tuple(self._value(each, depth + 1) for each in kind.item_types)
            case inspect.StructType():
                given = {each.name: each.type for each in kind.fields if each.required or draw.random() < 0.4}
                return kind.cls(**{name: self._value(each, depth + 1) for name, each in given.items()})
            case inspect.NoneType():
                return None
        raise AssertionError(f"no values of {kind} are drawn")


def flipped(data: bytes, draw: random.Random) -> bytes:
    """The same bytes with up to four bits turned."""
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 5)):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)
