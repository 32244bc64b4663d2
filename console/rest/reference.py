"""The OpenAPI document as flat tables that a page can show: operations, their fields, answers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

METHODS = ("get", "post", "put", "patch", "delete")
MAX_DEPTH = 4  # of fields inside fields; the deepest answer has three
_TENANT_ACTS = frozenset({"suspend", "restore"})
_REF_PREFIX = "#/components/schemas/"

Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, or a field of a body; inner fields are named `outer.inner`, of lists `[]`."""

    name: str
    kind: str
    is_required: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one status means; `fields` are those of its body."""

    status: str
    note: str
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one address."""

    id: str
    method: str
    path: str
    summary: str
    note: str
    parameters: tuple[Field, ...]
    body: tuple[Field, ...]
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """Operations on one kind of object."""

    name: str
    operations: tuple[Operation, ...]


def topics(document: Node) -> tuple[Topic, ...]:
    """Every operation of the document, grouped by the kind of object that it is about."""
    schemas: Node = document.get("components", {}).get("schemas", {})
    grouped: dict[str, list[Operation]] = {}
    for path, item in document.get("paths", {}).items():
        found = [_operation(path, name, item[name], schemas) for name in METHODS if name in item]
        grouped.setdefault(_topic_of(path), []).extend(found)
    return tuple(Topic(name, tuple(found)) for name, found in sorted(grouped.items()))


def _topic_of(path: str) -> str:
    words = [word for word in path.strip("/").split("/")[2:] if not word.startswith("{")]
    if words[:1] == ["tenants"] and len(words) > 1 and words[1] not in _TENANT_ACTS:
        return words[1]  # what belongs to a tenant is a topic of its own
    return words[0] if words else path.strip("/").split("/")[-1]


def _operation(path: str, method: str, node: Node, schemas: Node) -> Operation:
    return Operation(
        id=str(node["operationId"]),
        method=method.upper(),
        path=path,
        summary=str(node.get("summary", "")),
        note=str(node.get("description", "")),
        parameters=tuple(
            Field(
                str(one["name"]),
                _kind(one.get("schema", {}), schemas),
                bool(one.get("required")),
                _note(one.get("schema", {}), str(one.get("description", "")), str(one["in"])),
            )
            for one in node.get("parameters", ())
        ),
        body=_content(node.get("requestBody", {}), schemas),
        answers=tuple(
            Answer(str(status), str(one.get("description", "")), _content(one, schemas))
            for status, one in sorted(node.get("responses", {}).items())
        ),
    )


def _content(node: Node, schemas: Node) -> tuple[Field, ...]:
    content = node.get("content", {}).get("application/json", {})
    return tuple(_fields(content.get("schema", {}), schemas, "", MAX_DEPTH))


def _fields(node: Node, schemas: Node, prefix: str, depth: int) -> Iterator[Field]:
    node = _resolved(node, schemas)
    if node.get("type") == "array":
        yield from _fields(node.get("items", {}), schemas, f"{prefix}[]", depth)
        return
    required = node.get("required", ())
    for name, inner in node.get("properties", {}).items():
        full = f"{prefix}.{name}" if prefix else name
        yield Field(full, _kind(inner, schemas), name in required, _note(inner))
        if depth > 1:
            yield from _fields(inner, schemas, full, depth - 1)


def _resolved(node: Node, schemas: Node) -> Node:
    for _ in range(MAX_DEPTH):
        several = node.get("allOf") or node.get("oneOf")
        if "$ref" in node:
            node = schemas.get(str(node["$ref"]).removeprefix(_REF_PREFIX), {})
        elif several:
            node = several[0]
        else:
            break
    return node


def _kind(node: Node, schemas: Node) -> str:
    found = _resolved(node, schemas)
    if found.get("type") == "array":
        return f"list of {_kind(found.get('items', {}), schemas)}"
    base = str(found.get("format") or found.get("type") or "any JSON")
    return f"{base} or null" if node.get("nullable") or found.get("nullable") else base


def _note(node: Node, *words: str) -> str:
    bounds = [
        said.format(node[name])
        for name, said in (
            ("default", "default {}"),
            ("minimum", "from {}"),
            ("maximum", "to {}"),
            ("maxLength", "at most {} characters"),
        )
        if node.get(name) not in (None, "")
    ]
    parts = [*words, str(node.get("description", "")), *bounds]
    if "enum" in node:
        parts.append("one of " + ", ".join(str(value) for value in node["enum"]))
    return "; ".join(part for part in parts if part)
