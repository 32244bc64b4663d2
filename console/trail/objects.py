"""What an audit event was about, in words: `limit: spend per day of acme`, `key demo of acme`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from console.audit.selectors import AuditLine
from console.models import User
from console.trail.links import page_of
from routing.contracts.enums import Dimension, WindowKind
from tenants.directory.selectors import slugs_of
from tenants.keys.labels import labels_of
from tenants.quotas.words import NAMES

_WINDOWS = {
    WindowKind.MINUTE.value: " per minute",
    WindowKind.DAY.value: " per day",
    WindowKind.WEEK.value: " per week",
    WindowKind.MONTH.value: " per month",
}
NAME_CHARS = 80
_OF_USERS = ("user", "member")


@dataclass(frozen=True, slots=True)
class Described:
    """An event, its object in words, and the address that shows it (empty: none does)."""

    line: AuditLine
    object: str
    url: str


@dataclass(frozen=True, slots=True)
class Names:
    """Names by id, of what still exists."""

    tenants: Mapping[int, str]
    keys: Mapping[int, str]
    users: Mapping[int, str]


def described(lines: Sequence[AuditLine]) -> list[Described]:
    """The events with names for ids: at most three queries, however many lines."""
    ids = [(line.object_type, int(line.object_id)) for line in lines if _is_number(line.object_id)]
    keys = {number for kind, number in ids if kind == "key"}
    keys |= {key for line in lines if (key := _fact(line, "key_id")) and isinstance(key, int)}
    tenants = {line.tenant_id for line in lines if line.tenant_id is not None}
    tenants |= {number for kind, number in ids if kind == "tenant"}
    names = Names(
        tenants=slugs_of(tenants),
        keys={key: name for key, (_, name, _) in labels_of(keys).items()},
        users=_usernames(number for kind, number in ids if kind in _OF_USERS),
    )
    return [Described(line, words_of(line, names), _page_of(line, names)) for line in lines]


def act_words(line: AuditLine) -> str:
    """The act in words: `policy publish`."""
    return line.act.replace("_", " ").replace(".", " ")


def words_of(line: AuditLine, names: Names) -> str:
    """The object in words; an id stands where nothing else is known."""
    number = int(line.object_id) if _is_number(line.object_id) else 0
    kind, name = line.object_type, line.object_id
    if kind == "tenant":
        return f"tenant {names.tenants.get(number, name)}"
    if kind == "limit":
        name = _limit(line, names)
        kind = "limit:"
    elif kind == "key":
        name = names.keys.get(number, name)
    elif kind in _OF_USERS:
        name = names.users.get(number, name)
    elif kind == "price" and (model := _fact(line, "model")):
        kind, name = "price of", str(model)
    elif kind == "usage":
        kind = "request"
    elif named := _fact(line, "slug") or _fact(line, "name") or _fact(line, "person"):
        name = str(named)[:NAME_CHARS]
    kind = kind.replace("_", " ")
    slug = names.tenants.get(line.tenant_id or 0, "")
    return f"{kind} {name} of {slug}" if slug else f"{kind} {name}"


def _page_of(line: AuditLine, names: Names) -> str:
    number = int(line.object_id) if _is_number(line.object_id) else 0
    tenant_id = number if line.object_type == "tenant" else line.tenant_id or 0
    facts = {**_facts_of(line.before), **_facts_of(line.after)}
    slug = names.tenants.get(tenant_id, "")
    return page_of(line.object_type, line.object_id, slug=slug, facts=facts)


def _facts_of(values: object) -> dict[str, Any]:
    return values if isinstance(values, dict) else {}


def _limit(line: AuditLine, names: Names) -> str:
    dimension, window = _fact(line, "dimension"), str(_fact(line, "window"))
    if dimension not in set(Dimension):
        return line.object_id
    words = NAMES[Dimension(str(dimension))] + _WINDOWS.get(window, "")
    key_id, model = _fact(line, "key_id"), _fact(line, "model")
    if isinstance(key_id, int):
        return f"{words} of key {names.keys.get(key_id, key_id)}"
    if model:
        return f"{words} of model {model}"
    work_class = _fact(line, "work_class")
    return f"{words} of class {work_class}" if work_class else words


def _fact(line: AuditLine, name: str) -> Any:
    for values in (line.after, line.before):
        if isinstance(values, dict) and name in values:
            return values[name]
    return None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _usernames(ids: Iterable[int]) -> dict[int, str]:
    return dict(User.objects.filter(pk__in=set(ids)).values_list("pk", "username"))
