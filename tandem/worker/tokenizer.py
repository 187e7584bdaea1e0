"""Real tokenizers for `tandem.worker.text`: the Rust library behind the tiny `Decoder` protocol.

Simulated workers use `tandem.worker.simple_decoder` and never load this library.
"""

from collections.abc import Sequence
from copy import copy
from pathlib import Path

import tokenizers

from tandem.core.errors import TandemError


class FileDecoder:
    """A model directory's `tokenizer.json`. `skip_special` leaves special tokens out of the text."""

    def __init__(self, directory: Path, skip_special: bool = True) -> None:
        path = directory / "tokenizer.json"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        # The library raises bare `Exception` for a missing or malformed file.
        except Exception as error:
            raise TandemError("bad_model", f"{path} cannot be used: {error}", param="tokenizer.json") from error
        self._skip_special = skip_special
        self._whole: FileDecoder | None = None

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=self._skip_special)
        return text

    def alone(self, token: int) -> None:
        """Files do not say which tokens are whole words wherever they stand."""

    def with_special(self) -> "FileDecoder":
        if self._whole is None:
            self._whole = copy(self)
            self._whole._skip_special = False
        return self._whole
