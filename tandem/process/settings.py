"""Settings: nested frozen dataclasses, loaded once from a file, the environment and flags; later ones win.

Keys are dotted field names: `link.bind` is `link: {bind: …}` in a YAML or JSON file, `TANDEM_LINK__BIND` in the
environment and `--link.bind` on the command line. An error is `bad_setting` and names key and value.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import yaml

from tandem.core.errors import TandemError

T = TypeVar("T")

PREFIX: Final = "TANDEM_"
CONFIG_FLAG: Final = "--config"

Tree = dict[str, Any]


def load_settings(kind: type[T], argv: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> T:
    """Settings of class `kind`. `--config FILE` names the file. Raises `bad_setting`."""
    flags = _flags(argv)
    path = flags.pop(CONFIG_FLAG.removeprefix("--"), None)
    tree: Tree = _file(Path(str(path))) if path is not None else {}
    known = field_keys(kind)
    for key, value in {**_environment(environ or {}, known), **flags}.items():
        _put(tree, key, value)
    return build_settings(kind, tree)


def build_settings(kind: type[T], tree: Mapping[str, Any], prefix: str = "") -> T:
    """Settings of class `kind` from nested mappings. Raises `bad_setting` for unknown keys and unfit values."""
    hints = get_type_hints(kind)
    unknown = [key for key in tree if key not in hints]
    if unknown:
        raise _bad(prefix + unknown[0], tree[unknown[0]], f"there is no such setting; known here: {', '.join(hints)}")
    values = {key: _value(hints[key], prefix + key, value) for key, value in tree.items()}
    try:
        return kind(**values)
    except TandemError as error:
        key = prefix + error.param if error.param is not None else prefix.rstrip(".")
        message = f"{key}: {error.message}" if prefix else error.message
        raise TandemError("bad_setting", message, param=key) from None
    except TypeError:
        missing = [field.name for field in dataclasses.fields(kind) if _required(field) and field.name not in values]  # type: ignore[arg-type]
        key = prefix + (missing[0] if missing else "")
        raise TandemError("bad_setting", f"{key} is not set and has no default", param=key) from None


def field_keys(kind: type[Any], prefix: str = "") -> dict[str, Any]:
    """Every dotted key of a settings class with its type."""
    keys: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        inner = _dataclass_in(hint)
        keys |= field_keys(inner, f"{prefix}{name}.") if inner is not None else {prefix + name: hint}
    return keys


def _value(hint: Any, key: str, value: Any) -> Any:
    inner = _dataclass_in(hint)
    if inner is not None and isinstance(value, Mapping):
        return build_settings(inner, value, f"{key}.")
    if _is_tuple(hint) and isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, str) and isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        value = _json(key, value)
    try:
        return msgspec.convert(value, type=hint, strict=False, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise _bad(key, value, str(error)) from None


def _json(key: str, text: str) -> Any:
    """A structure in a flag or variable."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise _bad(key, text, f"this is no JSON: {error}") from None


def _path(kind: type[Any], value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise ValueError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")


def _dataclass_in(hint: Any) -> type[Any] | None:
    """The dataclass of a field that is one, possibly optional."""
    options = get_args(hint) if get_origin(hint) is not tuple else ()
    return next(
        (option for option in (hint, *options) if isinstance(option, type) and dataclasses.is_dataclass(option)), None
    )


def _is_tuple(hint: Any) -> bool:
    return any(get_origin(option) is tuple for option in (hint, *get_args(hint)))


def _required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _flags(argv: Sequence[str]) -> Tree:
    """`--key value` and `--key=value`; a flag without a value is true."""
    flags: Tree = {}
    rest = list(argv)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--") or len(flag) == 2:
            raise _bad(flag, "", "flags look like --key value")
        key, equals, value = flag[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        flags[key.replace("-", "_")] = value
    return flags


def _environment(environ: Mapping[str, str], known: Mapping[str, Any]) -> Tree:
    """Settings among the variables. Others with our prefix belong to other programs and are left alone."""
    names = {PREFIX + key.upper().replace(".", "__"): key for key in known}
    return {names[name]: value for name, value in environ.items() if name in names}


def _file(path: Path) -> Tree:
    try:
        text = path.read_text("utf-8")
        tree = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise _bad("config", path, error.strerror or str(error)) from None
    except (ValueError, yaml.YAMLError) as error:
        raise _bad("config", path, f"the file cannot be read: {error}") from None
    if not isinstance(tree, dict | None):
        raise _bad("config", path, "the file must hold a mapping")
    return dict(tree or {})


def _put(tree: Tree, key: str, value: Any) -> None:
    *folders, name = key.split(".")
    for folder in folders:
        inner = tree.setdefault(folder, {})
        if not isinstance(inner, dict):
            raise _bad(folder, inner, "this is a group of settings")
        tree[folder] = tree = dict(inner)
    tree[name] = value


def _bad(key: str, value: object, problem: str) -> TandemError:
    return TandemError("bad_setting", f"{key} = {str(value)!r}: {problem}", param=key)
