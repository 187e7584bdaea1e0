"""Small faults in a Python file: mutmut's operators, and those of ours that take something away.

Left out is what no user meets or what other gates find: texts, logs, metrics, errors' words, assertions, annotations,
and values that become None, which the type checker refuses.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

_FEW: Final = 10
_LOGS: Final = ("event", "log_event", "span", "cast")
_TOLD: Final = ("_log", "_meter", "meter", "notes", "_notes", "warnings", "_LOG")


class Planted(NamedTuple):
    """A fault: `text` is the whole file with it, `was` and `becomes` the first line that differs. In the good file it
    stands in lines `first` to `last`, and in a function of lines `around`."""

    file: str
    first: int
    last: int
    around: range
    was: str
    becomes: str
    text: str


def _other_number(node: cst.BaseNumber) -> Iterator[cst.BaseExpression]:
    """One more of a few; twice as much of what is larger, as a little more of it is a matter of taste."""
    if isinstance(node, cst.Integer | cst.Float):
        value = node.evaluated_value
        yield cst.parse_expression(repr(value + 1 if value < _FEW else 2 * value))


def _without_call(node: cst.Expr) -> Iterator[cst.BaseSmallStatement]:
    """A call for its effect is left out."""
    value = node.value.expression if isinstance(node.value, cst.Await) else node.value
    if isinstance(value, cst.Call):
        yield cst.Pass()


def _without_assignment(node: cst.Assign) -> Iterator[cst.BaseSmallStatement]:
    """State is not changed."""
    if all(isinstance(target.target, cst.Attribute | cst.Subscript) for target in node.targets):
        yield cst.Pass()


def _other_bound(node: cst.Call) -> Iterator[cst.Call]:
    """The smaller for the larger."""
    other = {"min": "max", "max": "min"}.get(node.func.value if isinstance(node.func, cst.Name) else "")
    if other is not None:
        yield node.with_changes(func=cst.Name(other))


def _one_condition(node: cst.BooleanOperation) -> Iterator[cst.BaseExpression]:
    """One of two conditions is not looked at."""
    for side in (node.left, node.right):
        yield side.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


OPERATORS: Final[Sequence[tuple[type, Callable[[Any], Iterable[cst.CSTNode]]]]] = (
    (cst.BaseNumber, _other_number),
    (cst.Name, mutators.operator_name),
    (cst.AugAssign, mutators.operator_augmented_assignment),
    (cst.UnaryOperation, mutators.operator_remove_unary_ops),
    (cst.CSTNode, mutators.operator_keywords),
    (cst.CSTNode, mutators.operator_swap_op),
    (cst.Match, mutators.operator_match),
    (cst.IfExp, mutators.operator_if_exp),
    (cst.Expr, _without_call),
    (cst.Assign, _without_assignment),
    (cst.Call, _other_bound),
    (cst.BooleanOperation, _one_condition),
)


class _Finder(cst.CSTVisitor):
    """Notes every node with what it may become."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        self.found: list[tuple[cst.CSTNode, cst.CSTNode, int, int, range]] = []
        self._lines = (1, 1)
        self._functions: list[range] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if _is_text(node):
            return False
        if isinstance(node, cst.FunctionDef):
            place = self.get_metadata(PositionProvider, node)
            self._functions.append(range(place.start.line + 1, place.end.line + 1))
        if isinstance(node, cst.BaseSmallStatement | cst.BaseExpression | cst.ComparisonTarget):
            position = self.get_metadata(PositionProvider, node, None)
            if position is not None:
                self._lines = position.start.line, position.end.line
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                around = self._functions[-1] if self._functions else range(0)
                self.found += [(node, changed, *self._lines, around) for changed in operator(node)]
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.FunctionDef):
            self._functions.pop()


def _is_text(node: cst.CSTNode) -> bool:
    """Whether nothing inside is to be changed."""
    if isinstance(node, cst.Annotation | cst.Decorator | cst.Assert | cst.Raise | cst.FormattedString | cst.Import):
        return True
    if isinstance(node, cst.ImportFrom | cst.SimpleString | cst.ConcatenatedString | cst.TypeAlias):
        return True
    call = node.value if isinstance(node, cst.Expr) else node
    call = call.expression if isinstance(call, cst.Await) else call
    if not isinstance(call, cst.Call):
        return False
    if m.matches(call.func, m.Name()):
        return cst.ensure_type(call.func, cst.Name).value in _LOGS
    names = {name.value for name in m.findall(call.func, m.Name()) if isinstance(name, cst.Name)}
    return bool(names & {*_TOLD, "TypeVar", "getLogger"})


def faults_of(file: str, text: str) -> list[Callable[[], Planted]]:
    """All faults of a file, each to be made when it is wanted."""
    wrapper = MetadataWrapper(cst.parse_module(text))
    finder = _Finder()
    wrapper.visit(finder)
    return [_later(file, text, wrapper.module, *each) for each in finder.found]


def _later(
    file: str,
    text: str,
    module: cst.Module,
    node: cst.CSTNode,
    changed: cst.CSTNode,
    first: int,
    last: int,
    around: range,
) -> Callable[[], Planted]:
    def plant() -> Planted:
        after = cst.ensure_type(module.deep_replace(node, changed), cst.Module).code
        was, becomes = _first_difference(text, after)
        return Planted(file, first, last, around, was, becomes, after)

    return plant


def _first_difference(before: str, after: str) -> tuple[str, str]:
    for one, other in zip(before.splitlines(), after.splitlines(), strict=False):
        if one != other:
            return one.strip(), other.strip()
    return "", ""
