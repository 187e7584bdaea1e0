"""Whether a value keeps the rules, and where it does not."""

from collections.abc import Iterable, Iterator

import msgspec

from tandem.spec.rules import RULES, Rule
from tandem.spec.text import camel


def broken(value: msgspec.Struct, path: str = "", rules: Iterable[Rule] = RULES) -> Iterator[str]:
    """Sentences, each with its path, about the rules that a value does not keep; outer values come first."""
    for rule in rules:
        if isinstance(value, rule.of) and not rule.transition and not rule.holds(value):
            yield _sentence(path, rule)
    for key, inner in _parts(value):
        yield from broken(inner, f"{path}.{key}" if path else key, rules)


def changed(new: msgspec.Struct, old: msgspec.Struct, path: str = "") -> Iterator[str]:
    """The same about rules of updates. Pools are compared with those of the same name."""
    for rule in RULES:
        if isinstance(new, rule.of) and rule.transition and not rule.holds(new, old):
            yield _sentence(path, rule)
    before = _by_identity(old)
    for key, (inner, where) in _by_identity(new).items():
        if key in before:
            yield from changed(inner, before[key][0], f"{path}.{where}" if path else where)


def repeated(value: msgspec.Struct, path: str = "") -> Iterator[str]:
    """Sentences about lists in which a name or a text occurs twice."""
    for field in value.__struct_fields__:
        yield from _twice(getattr(value, field), f"{path}.{camel(field)}" if path else camel(field))
    seen: set[str] = set()
    for key, inner in _parts(value):
        where = f"{path}.{key}" if path else key
        name = getattr(inner, "name", None)
        if key.endswith("]") and isinstance(name, str):
            if name in seen:
                yield f"{where}.name {name!r} is taken"
            seen.add(name)
        yield from repeated(inner, where)


def _twice(texts: object, path: str) -> Iterator[str]:
    if isinstance(texts, tuple) and all(isinstance(text, str) for text in texts):
        yield from (f"{path} has {text!r} twice" for index, text in enumerate(texts) if text in texts[:index])


def _sentence(path: str, rule: Rule) -> str:
    where = ".".join(part for part in (path, rule.field) if part)
    return f"{where}: {rule.sentence}" if where else rule.sentence


def _parts(value: msgspec.Struct) -> Iterator[tuple[str, msgspec.Struct]]:
    """The structs directly inside, with their places."""
    for field in value.__struct_fields__:
        inner = getattr(value, field)
        if isinstance(inner, msgspec.Struct):
            yield camel(field), inner
        elif isinstance(inner, tuple):
            places = (place for place in enumerate(inner) if isinstance(place[1], msgspec.Struct))
            yield from ((f"{camel(field)}[{index}]", one) for index, one in places)


def _by_identity(value: msgspec.Struct) -> dict[str, tuple[msgspec.Struct, str]]:
    """The structs directly inside and their places; those of lists by their names, as the API server pairs them."""
    found: dict[str, tuple[msgspec.Struct, str]] = {}
    for where, inner in _parts(value):
        name = getattr(inner, "name", None)
        key = f"{where.partition('[')[0]}/{name}" if where.endswith("]") else where
        found[key] = (inner, where)
    return found
