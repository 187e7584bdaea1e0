"""Describes the contents of a checkpoint's safetensors files: names, shapes, places, and a hash of the content.
Torch-free.

Format: 8 bytes little-endian header length, a JSON header `{name: {dtype, shape, data_offsets}}`, the bytes.
"""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from tandem.core.errors import TandemError

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
ITEM_BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits of one number, by dtype. The sizes of tensors of other types are not checked."""
WHOLE_BYTES_MAX: Final = 64 << 20
"""Checkpoints up to this size are hashed completely; of larger ones each tensor is sampled."""
SAMPLE_BYTES: Final = 4096
_HEADER_BYTES_MAX: Final = 100 << 20


@dataclass(frozen=True)
class StoredTensor:
    """One tensor: which file, what shape, and the byte range in the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Checkpoint:
    """All tensors of a model by name, whatever the number of files."""

    files: tuple[Path, ...]
    tensors: Mapping[str, StoredTensor]

    @property
    def data_bytes(self) -> int:
        return sum(tensor.end - tensor.start for tensor in self.tensors.values())

    def content_hash(self, identity: str) -> str:
        """Hex digest of `identity` (what else decides the numbers) and of every tensor's name, dtype, shape and
        bytes.

        A checkpoint up to `WHOLE_BYTES_MAX` is read completely. Of a larger one the first, middle and last 4 KiB of
        every tensor are read. Training changes all of a tensor's values, so these few thousand small reads tell
        another training state apart; a handful of values edited by hand may go unnoticed.
        """
        hasher = blake2b(identity.encode(), digest_size=16)
        whole = self.data_bytes <= WHOLE_BYTES_MAX
        opened = {path: path.open("rb") for path in self.files}
        try:
            for name in sorted(self.tensors):
                tensor = self.tensors[name]
                hasher.update(f"\x1f{name}\x1f{tensor.dtype}\x1f{tensor.shape}\x1f".encode())
                stream = opened[tensor.file]
                for start, end in _ranges(tensor, whole):
                    stream.seek(start)
                    hasher.update(stream.read(end - start))
        finally:
            for stream in opened.values():
                stream.close()
        return hasher.hexdigest()


def _ranges(tensor: StoredTensor, whole: bool) -> tuple[tuple[int, int], ...]:
    size = tensor.end - tensor.start
    if whole or size <= 3 * SAMPLE_BYTES:
        return ((tensor.start, tensor.end),)
    starts = (tensor.start, tensor.start + (size - SAMPLE_BYTES) // 2, tensor.end - SAMPLE_BYTES)
    return tuple((start, start + SAMPLE_BYTES) for start in starts)


def open_checkpoint(directory: Path, dtypes: Collection[str] | None = None) -> Checkpoint:
    """Read the headers of a checkpoint in one file, in those of an index, or else in all there are. With `dtypes`
    all tensors must be stored as one of them. Raises `bad_model` naming file and tensor."""
    files = _files(directory)
    tensors: dict[str, StoredTensor] = {}
    for path in files:
        for name, tensor in _header(path).items():
            if name in tensors:
                raise TandemError("bad_model", f"{path.name}: tensor {name} is also in {tensors[name].file.name}")
            if dtypes is not None and tensor.dtype not in dtypes:
                known = ", ".join(dtypes)
                problem = f"{path.name}: {name} is stored as {tensor.dtype}; supported are {known}"
                raise TandemError("bad_model", problem)
            tensors[name] = tensor
    return Checkpoint(files, tensors)


def open_file(path: Path) -> Checkpoint:
    """The header of one safetensors file. Raises `bad_model`."""
    if not path.is_file():
        raise TandemError("bad_model", f"{path} is missing")
    return Checkpoint((path,), _header(path))


def _files(directory: Path) -> tuple[Path, ...]:
    index = directory / INDEX
    if index.is_file():
        weight_map = read_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise TandemError("bad_model", f"{INDEX}: weight_map must map tensor names to files")
        files = tuple(directory / file for file in sorted(set(weight_map.values())))
    elif (directory / SINGLE).is_file():
        files = (directory / SINGLE,)
    else:
        files = tuple(sorted(directory.glob("*.safetensors"))) or (directory / SINGLE,)
    for path in files:
        if path.parent != directory or not path.is_file():
            raise TandemError("bad_model", f"{directory}: {path.name} is missing; weights must be safetensors files")
    return files


def _header(path: Path) -> dict[str, StoredTensor]:
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_BYTES_MAX):
            raise TandemError("bad_model", f"{path.name}: truncated or not a safetensors file ({size} bytes)")
        raw = stream.read(length)
    try:
        header = json.loads(raw)
    except ValueError as error:
        raise TandemError("bad_model", f"{path.name}: the safetensors header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise TandemError("bad_model", f"{path.name}: the safetensors header is not an object")
    header.pop("__metadata__", None)
    return {name: _stored(path, size, 8 + length, name, entry) for name, entry in header.items()}


def _stored(path: Path, size: int, data: int, name: str, entry: object) -> StoredTensor:
    try:
        dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]  # type: ignore[index]
        elements = math.prod(shape)
        span = end - start
    except (KeyError, TypeError, ValueError) as error:
        raise TandemError("bad_model", f"{path.name}: the header entry of {name} is malformed") from error
    bits = ITEM_BITS.get(dtype)
    if start < 0 or span < 0 or (bits is not None and span != -(-elements * bits // 8)):
        raise TandemError("bad_model", f"{path.name}: {name} of shape {list(shape)} does not fit its {span} bytes")
    if data + end > size:
        raise TandemError(
            "bad_model", f"{path.name}: truncated: {name} ends at byte {data + end}, the file has {size} bytes"
        )
    return StoredTensor(path, dtype, shape, data + start, data + end)


def read_object(path: Path) -> dict[str, object]:
    """The JSON object in a file. Raises `bad_model`."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise TandemError("bad_model", f"{path.parent}: {path.name} is missing") from error
    except (OSError, ValueError) as error:
        raise TandemError("bad_model", f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise TandemError("bad_model", f"{path}: expected a JSON object")
    return value
