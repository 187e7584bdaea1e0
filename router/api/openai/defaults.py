"""Values for the parameters that a request leaves out: neutral ones, or those of the model's generation_config.json.

`auto` reads the file as vLLM's `--generation-config auto` does: whatever it states of these parameters counts, even
where it says `do_sample: false`. The file's end tokens are not here: workers know them as the model's own.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from tandem.core.errors import TandemError
from tandem.core.request import Sampling

AUTO: Final = "auto"
NEUTRAL_VALUES: Final = "vllm"
SETTINGS: Final = (AUTO, NEUTRAL_VALUES)
"""Values of the setting, named as in vLLM's argument of that name. vLLM's third choice, a directory of its own, is
not available."""

TOP_P_MIN: Final = 1e-6
"""Value that stands for `top_p: 0`: only the likeliest token is left."""

_FILE: Final = "generation_config.json"


class Defaults(msgspec.Struct, frozen=True):
    """Defaults for requests. `unseeded` and `seeded` are the sampling of a request that says nothing else;
    `max_tokens` None means the rest of the context."""

    unseeded: Sampling = Sampling(seeded=False)
    seeded: Sampling = Sampling(seeded=True)
    max_tokens: int | None = None

    def stated(self) -> dict[str, float | int]:
        """The defaults that are not neutral, by the names of request parameters."""
        found: dict[str, float | int] = {}
        for name in _RANGES:
            if name != "max_new_tokens" and getattr(self.unseeded, name) != getattr(NEUTRAL.unseeded, name):
                found[name] = getattr(self.unseeded, name)
        return found if self.max_tokens is None else {**found, "max_tokens": self.max_tokens}


NEUTRAL: Final = Defaults()


def check_setting(name: str, value: str) -> None:
    """Raise `bad_setting` for what is not one of `SETTINGS`."""
    if value not in SETTINGS:
        raise TandemError("bad_setting", f"{name} = {value!r}: expected one of {', '.join(SETTINGS)}", param=name)


def defaults_of(generation: Mapping[str, Any], setting: str = AUTO) -> Defaults:
    """The defaults from the object in a model's generation_config.json. Raises `bad_model` for a value that no
    request may have."""
    stated = {} if setting == NEUTRAL_VALUES else {key: generation.get(key) for key in _RANGES}
    values = {key: _number(key, value) for key, value in stated.items() if value is not None}
    if not values:
        return NEUTRAL
    most = values.pop("max_new_tokens", None)
    if "top_k" in values:
        values["top_k"] = max(int(values["top_k"]), 0)
    if "top_p" in values:
        values["top_p"] = max(values["top_p"], TOP_P_MIN)
    unseeded = msgspec.structs.replace(NEUTRAL.unseeded, **values)
    seeded = msgspec.structs.replace(NEUTRAL.seeded, **values)
    return Defaults(unseeded, seeded, None if most is None else int(most))


def _number(key: str, value: Any) -> float | int:
    expected, fits = _RANGES[key]
    whole = key in _WHOLE
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not right or not math.isfinite(value) or not fits(value):
        problem = f"{_FILE}: {key} = {value!r}: expected {expected}; generationConfig: vllm leaves the file out"
        raise TandemError("bad_model", problem, param=key)
    return int(value) if whole else float(value)


_WHOLE: Final = ("top_k", "max_new_tokens")
_RANGES: Final[Mapping[str, tuple[str, Callable[[float], bool]]]] = MappingProxyType(
    {
        "temperature": ("a number that is not negative", lambda value: value >= 0),
        "top_p": ("a number from 0 to 1", lambda value: 0 <= value <= 1),
        "top_k": ("a whole number, -1 or 0 for no cut", lambda value: value >= -1),
        "min_p": ("a number from 0 to 1", lambda value: 0 <= value <= 1),
        "presence_penalty": ("a number from -2 to 2", lambda value: -2 <= value <= 2),
        "frequency_penalty": ("a number from -2 to 2", lambda value: -2 <= value <= 2),
        "repetition_penalty": ("a number above 0", lambda value: value > 0),
        "max_new_tokens": ("a whole number of at least 1", lambda value: value >= 1),
    }
)
"""The keys that count, with what of them can be meant."""
