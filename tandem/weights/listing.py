"""The files that a model consists of, and whether it can be served: pure checks on names, sizes and checksums."""

import hashlib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from typing import Final

import msgspec

from tandem.core.errors import TandemError

SUMS: Final = "SHA256SUMS"
"""Name of the file with the checksums of files whose origin knows none, in the format of `sha256sum`."""
INDEX: Final = "model.safetensors.index.json"
_WANTED: Final = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
_TEXTS: Final = ("*.json", "*.jinja")
_TOKENIZER: Final = "tokenizer.json"
TEXT_BYTES_MAX: Final = 64 << 20
"""Size limit, in bytes, of one file that does not hold weights."""
_PICKLES: Final = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class File(msgspec.Struct, frozen=True):
    """One file of a model. `sha256` is empty where its origin does not know it."""

    name: str
    size: int
    sha256: str = ""


def wanted(files: Iterable[File], source: str) -> tuple[File, ...]:
    """The files that a model is served from, by name. Excludes sub-folders and files that run code when they are
    read.

    Raises `bad_model` when there are no weights that can be used.
    """
    files = tuple(files)
    found = sorted((each for each in files if _is_wanted(each.name)), key=lambda each: each.name)
    if not any(each.name.endswith(".safetensors") for each in found):
        pickles = [each.name for each in files if any(fnmatch(each.name, pattern) for pattern in _PICKLES)]
        why = f"only {', '.join(pickles[:3])}, which run code when they are read" if pickles else "no weights at all"
        raise TandemError("bad_model", f"{source}: weights must be *.safetensors; it has {why}")
    if not any(each.name == "config.json" for each in found):
        raise TandemError("bad_model", f"{source}: it has no config.json")
    return tuple(found)


def texts(files: Iterable[File], source: str) -> tuple[File, ...]:
    """The files of a model that turn text into tokens and back, its configuration included: no weights.

    Raises `bad_model` when one of them is larger than any such file is, or there is no tokenizer.
    """
    found = tuple(each for each in files if each.name != INDEX and _matches(each.name, _TEXTS))
    for each in found:
        if each.size > TEXT_BYTES_MAX:
            raise TandemError(
                "bad_model", f"{source}: {each.name} has {each.size:,} bytes; at most {TEXT_BYTES_MAX:,} are read"
            )
    if not any(each.name == _TOKENIZER for each in found):
        raise TandemError("bad_model", f"{source}: it has no {_TOKENIZER}")
    return found


def missing_shards(index: bytes, files: Iterable[File]) -> tuple[str, ...]:
    """Files that the index of a sharded model names and that are not there. Raises `bad_model` for a broken index."""
    try:
        names = set(msgspec.json.decode(index, type=_Index).weight_map.values())
    except msgspec.DecodeError as error:
        raise TandemError("bad_model", f"{INDEX} cannot be read: {error}") from error
    return tuple(sorted(names - {each.name for each in files}))


def parse_sums(text: str) -> Mapping[str, str]:
    """Checksums by name. Raises `bad_model` naming the line."""
    sums = dict[str, str]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        checksum, _, name = line.partition(" ")
        if len(checksum) != 64 or not name.strip(" *"):
            raise TandemError("bad_model", f"{SUMS}, line {number}: no checksum and name as sha256sum writes them")
        sums[name.strip(" *").removeprefix("./")] = checksum.lower()
    return sums


def digest_of(files: Iterable[File]) -> str:
    """`sha256:…` of the lines that `sha256sum` writes for these files, sorted by name: what `model.digest` means."""
    lines = "".join(f"{each.sha256}  {each.name}\n" for each in sorted(files, key=lambda each: each.name))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def header_problem(name: str, head: bytes, size: int) -> str | None:
    """The problem with a safetensors file of `size` bytes that begins with `head`, or None. The header says where
    each tensor ends, so a file that was cut off is detected without any checksum."""
    if len(head) < 8:
        return f"{name}: {size} bytes are no safetensors file"
    length = int.from_bytes(head[:8], "little")
    if 8 + length > size or length > len(head) - 8:
        return f"{name}: its header of {length} bytes does not fit into its {size} bytes"
    try:
        header = msgspec.json.decode(head[8 : 8 + length], type=dict[str, msgspec.Raw])
        tensors = [raw for key, raw in header.items() if not key.startswith("__")]
        ends = [msgspec.json.decode(raw, type=_Tensor).data_offsets[1] for raw in tensors]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"{name}: its header cannot be read: {error}"
    end = 8 + length + max(ends, default=0)
    return None if end == size else f"{name}: it has {size:,} bytes where its header says {end:,}"


def header_bytes(head: bytes) -> int:
    """The number of leading bytes of a file that `header_problem` needs, from the file's first eight."""
    return 8 + int.from_bytes(head[:8], "little")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class _Tensor(msgspec.Struct):
    data_offsets: tuple[int, int]


def _is_wanted(name: str) -> bool:
    return "/" not in name and not name.startswith(".") and _matches(name, _WANTED)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)
