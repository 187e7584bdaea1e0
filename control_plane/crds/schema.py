"""From msgspec types to the structural OpenAPI v3 schemas of a CRD: references inlined, nothing nullable.

Everything has a bound, since the API server multiplies bounds to find what rules may cost; a type without one is a
mistake of ours and raises `TypeError`.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import inspect as types

from control_plane.crds.descriptions import of_fields, sentence
from tandem.spec.cluster_rules import CLUSTER_RULES
from tandem.spec.rules import RULES, Rule

Schema = dict[str, Any]
_INT32_MAX: Final = 2**31 - 1
_ANYTHING: Final = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"


def schema_of(type_: type[msgspec.Struct]) -> Schema:
    """Raises `TypeError` naming what cannot be said in a structural schema."""
    return _schema(types.type_info(type_), type_.__name__)


def without_defaults(schema: Schema) -> Schema:
    """Of what only the control plane writes: what it has not said is not there."""
    plain = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in plain:
        plain["properties"] = {name: without_defaults(inner) for name, inner in plain["properties"].items()}
    if "items" in plain:
        plain["items"] = without_defaults(plain["items"])
    return plain


def rules_of(type_: type) -> list[Schema]:
    """The type's rules as `x-kubernetes-validations`."""
    return [_validation(rule) for rule in (*RULES, *CLUSTER_RULES) if rule.of is type_]


def _validation(rule: Rule) -> Schema:
    where = {} if rule.field is None else {"fieldPath": f".{rule.field}"}
    return {"rule": rule.cel, "message": rule.sentence, **where}


def _schema(node: types.Type, where: str) -> Schema:
    if isinstance(node, types.Metadata):
        return {**_schema(node.type, where), **(node.extra_json_schema or {})}
    if isinstance(node, types.UnionType):
        return _union([one for one in node.types if not isinstance(one, types.NoneType)], where)
    if isinstance(node, types.StructType):
        return _struct(node, where)
    if isinstance(node, types.VarTupleType | types.ListType):
        items = {"type": "array", "items": _schema(node.item_type, f"{where}[]")}
        return {**items, **_bounds(minItems=node.min_length, maxItems=_required(where, node.max_length))}
    if isinstance(node, types.DictType):
        values = _schema(node.value_type, f"{where}.*")
        return _map(node, values, where)
    return _scalar(node, where)


def _scalar(node: types.Type, where: str) -> Schema:
    if isinstance(node, types.LiteralType):
        return {"type": "string", "enum": list(node.values)}
    if isinstance(node, types.StrType):
        bounds = _bounds(minLength=node.min_length, maxLength=_required(where, node.max_length))
        return {"type": "string", **bounds, **({} if node.pattern is None else {"pattern": node.pattern})}
    if isinstance(node, types.IntType):
        narrow = node.le is not None and node.le <= _INT32_MAX
        bounds = _bounds(minimum=node.ge, maximum=node.le)
        return {"type": "integer", "format": "int32" if narrow else "int64", **bounds}
    if isinstance(node, types.FloatType):
        return {"type": "number", **_bounds(minimum=_plain(node.ge), maximum=_plain(node.le))}
    if isinstance(node, types.BoolType):
        return {"type": "boolean"}
    if isinstance(node, types.AnyType):
        return {_ANYTHING: True}
    raise TypeError(f"{where}: a schema cannot say {type(node).__name__}")


def _plain(bound: float | None) -> float | None:
    """Without a decimal point where nothing is behind it. `typing` remembers unions by equality, so an optional
    number from 0 to 1 may have the bounds of another module's, which wrote 0.0."""
    return int(bound) if bound is not None and bound == int(bound) else bound


def _map(node: types.DictType, values: Schema, where: str) -> Schema:
    """Maps to values of several kinds are objects of any fields. Limits of keys cannot be said."""
    bounds = {"maxProperties": _required(where, node.max_length)}
    if _ANYTHING in values:
        return {"type": "object", _ANYTHING: True, **bounds}
    return {"type": "object", "additionalProperties": values, **bounds}


def _union(members: list[types.Type], where: str) -> Schema:
    """A type and None, a number or text, or scalars of several kinds, which are not checked any further."""
    if len(members) == 1:
        return _schema(members[0], where)
    kinds = {type(one) for one in members}
    if kinds == {types.StrType, types.IntType}:
        both = {key: value for one in members for key, value in _scalar(one, where).items()}
        return {_INT_OR_STRING: True, **{key: both[key] for key in both if key not in ("type", "format")}}
    if kinds <= {types.StrType, types.IntType, types.FloatType, types.BoolType}:
        return {_ANYTHING: True}
    raise TypeError(f"{where}: a schema cannot say a union of {sorted(kind.__name__ for kind in kinds)}")


def _struct(node: types.StructType, where: str) -> Schema:
    texts = of_fields(node.cls)
    properties = {
        field.encode_name: _field(field, texts.get(field.name, ""), f"{where}.{field.encode_name}")
        for field in node.fields
    }
    required = [field.encode_name for field in node.fields if field.required]
    description = sentence(node.cls.__doc__)
    schema: Schema = {"description": description} if description else {}
    schema |= {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    if rules := rules_of(node.cls):
        schema["x-kubernetes-validations"] = rules
    return schema


def _field(field: types.Field, text: str, where: str) -> Schema:
    schema = _schema(field.type, where)
    if text:
        schema = {**schema, "description": text}
    default = _default(field)
    return schema if default is None else {**schema, "default": default}


def _default(field: types.Field) -> Any:
    """What the API server fills in: rules can rely on it. Nothing for what is empty or absent."""
    default = field.default
    if default is msgspec.NODEFAULT or default is None or default == ():
        return None
    return _written_out(msgspec.to_builtins(default))


def _written_out(value: Any) -> Any:
    """A default with the defaults inside it, since the API server holds it against the rules as it stands."""
    if not isinstance(value, dict):
        return value
    return {key: _written_out(inner) for key, inner in value.items() if inner not in (None, (), [], {})}


def _required(where: str, bound: int | None) -> int:
    if bound is None:
        raise TypeError(f"{where} has no bound")
    return bound


def _bounds(**bounds: float | None) -> Mapping[str, float]:
    return {key: bound for key, bound in bounds.items() if bound is not None}
