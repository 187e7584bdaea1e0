"""Reading a model's JSON settings so that nothing in them goes unnoticed.

Every key is either taken by the code that understands it, or listed as harmless, or stops the start with
`bad_model` naming file, key and value. A setting that is silently ignored is a wrong answer in the making.
"""

from collections.abc import Collection, Mapping
from typing import NoReturn

from tandem.core.errors import TandemError


class Fields:
    """The keys of one JSON object, taken one by one. `file` is what error messages call it."""

    def __init__(self, file: str, raw: Mapping[str, object], prefix: str = "") -> None:
        self._file = file
        self._raw = raw
        self._prefix = prefix
        self._taken: set[str] = set()

    def refuse(self, key: str, why: str) -> NoReturn:
        """Stop the start because of `key`."""
        value = self._raw.get(key)
        shown = "missing" if key not in self._raw else f"{value!r}"
        raise TandemError(
            "bad_model", f"{self._file}: {self._prefix}{key} = {shown}: {why}", param=self._prefix + key
        )

    def has(self, key: str) -> bool:
        """Whether the key is present with a value other than null."""
        return self._raw.get(key) is not None

    def present(self, key: str) -> bool:
        """Whether the key is written at all, null included."""
        return key in self._raw

    def raw(self, key: str) -> object:
        """The value as it stands, None when absent; the caller judges it."""
        self._taken.add(key)
        return self._raw.get(key)

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`. A key without a default must be present."""
        value = self.raw(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            self.refuse(key, f"expected a whole number of at least {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self.raw(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            self.refuse(key, "expected a positive number")
        return float(value)

    def optional_integer(self, key: str) -> int | None:
        """A whole number of at least 1, or None when absent or null."""
        return None if self.raw(key) is None else self.integer(key)

    def optional_number(self, key: str) -> float | None:
        """A positive number, or None when absent or null."""
        return None if self.raw(key) is None else self.number(key)

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self.raw(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            self.refuse(key, "expected true or false")
        return value

    def choice(self, key: str, allowed: Collection[str], default: str | None = None) -> str:
        """The value of `key`, or `default` where there is none; refuses any word that is not in `allowed`."""
        value = self.raw(key)
        value = default if value is None else value
        if not isinstance(value, str) or value not in allowed:
            self.refuse(key, f"supported are {', '.join(allowed)}")
        return value

    def within(self, key: str, raw: Mapping[str, object]) -> "Fields":
        """The keys of the object under `key`, named `key.…` in errors."""
        return Fields(self._file, raw, f"{self._prefix}{key}.")

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers, one whole number, or nothing."""
        value = self.raw(key)
        listed = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in listed):
            self.refuse(key, "expected a whole number or a list of them")
        return tuple(listed)

    def finish(self, harmless: Collection[str], fixed: Mapping[str, tuple[object, ...]]) -> None:
        """Judge every key that was not taken: harmless ones pass, fixed ones pass with a listed value."""
        for key, value in self._raw.items():
            if key in self._taken or key in harmless:
                continue
            if key not in fixed:
                self.refuse(key, "unknown setting; it could change the results, so it is not ignored")
            if value not in fixed[key]:
                self.refuse(key, f"not supported; only {' or '.join(map(repr, fixed[key]))}")
