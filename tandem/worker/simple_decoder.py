"""The `Decoder` of models without files: `tandem.core.simple_tokenizer` as an object."""

from tandem.core import simple_tokenizer


class SimpleDecoder:
    """Text of the simulated engine's ids."""

    decode = staticmethod(simple_tokenizer.decode)
