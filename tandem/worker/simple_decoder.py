"""The `Decoder` of models without files: `tandem.core.simple_tokenizer` as an object."""

from collections.abc import Sequence

from tandem.core import simple_tokenizer


class SimpleDecoder:
    """Text of the simulated engine's ids."""

    def decode(self, ids: Sequence[int]) -> str:
        return simple_tokenizer.decode(tuple(ids))
