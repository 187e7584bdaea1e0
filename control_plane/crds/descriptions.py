"""What the source of a type says of its fields: the string below each of them."""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import cache


def sentence(text: str | None) -> str:
    """A docstring as one line; Markdown's backquotes stay."""
    return "" if text is None else " ".join(text.split())


@cache
def of_fields(type_: type) -> Mapping[str, str]:
    """Descriptions by the names of attributes, those of base classes included. Needs the type's source."""
    found: dict[str, str] = {}
    for one in reversed(type_.__mro__[:-1]):
        if one.__module__.partition(".")[0] == "tandem":
            found |= _own(one)
    return found


def _own(type_: type) -> Mapping[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(type_))).body[0]
    assert isinstance(tree, ast.ClassDef)
    pairs = zip(tree.body, tree.body[1:], strict=False)
    return {
        field.target.id: sentence(below.value.value)
        for field, below in pairs
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
