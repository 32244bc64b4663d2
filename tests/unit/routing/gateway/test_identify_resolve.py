import pytest

from routing.contracts.enums import WorkClass
from routing.decision.types import Reason, Refusal
from routing.gateway import identify as identify_module
from routing.gateway.identify import Callers, identify
from routing.gateway.resolve import Resolved, accepted_names, allows, find_model, resolve
from tests.stack import ACME_KEY, GLOBEX_KEY, PEPPER, api_key, make_snapshot, model, tenant

NOW_MS = 1_000_000


def who(headers: dict[bytes, bytes], **changes: object) -> object:
    return identify(headers, make_snapshot([], **changes), PEPPER.encode(), NOW_MS)


def test_both_headers_identify() -> None:
    for headers in (
        {b"authorization": f"Bearer {ACME_KEY}".encode()},
        {b"authorization": f"bearer  {ACME_KEY} ".encode()},
        {b"x-api-key": ACME_KEY.encode()},
    ):
        found = who(headers)
        assert not isinstance(found, Refusal)


@pytest.mark.parametrize(
    "headers",
    [{}, {b"authorization": b"Basic abc"}, {b"authorization": b"Bearer wrong"},
     {b"x-api-key": b"x" * 100_000}, {b"authorization": b"Bearer "}],
)  # fmt: skip
def test_everything_else_is_401(headers: dict[bytes, bytes]) -> None:
    found = who(headers)
    assert isinstance(found, Refusal)
    assert found.reason is Reason.UNAUTHORIZED


def test_expired_keys_and_suspended_tenants_are_401() -> None:
    headers = {b"x-api-key": ACME_KEY.encode()}
    for changes in (
        {"keys": dict([api_key("acme", ACME_KEY, expires_at_ms=NOW_MS)])},
        {"tenants": {"acme": tenant("acme", is_active=False)}},
        {"tenants": {}},
    ):
        assert isinstance(who(headers, **changes), Refusal)
    live = who(headers, keys=dict([api_key("acme", ACME_KEY, expires_at_ms=NOW_MS + 1)]))
    assert not isinstance(live, Refusal)


def test_remembered_caller_expires_is_suspended_and_revoked_like_any_other() -> None:
    callers, headers = Callers(PEPPER.encode()), {b"x-api-key": ACME_KEY.encode()}
    entry = dict([api_key("acme", ACME_KEY, expires_at_ms=NOW_MS + 1)])
    snapshot = make_snapshot([], keys=entry)
    first = callers.identify(headers, snapshot, NOW_MS)
    assert not isinstance(first, Refusal)
    assert callers.identify(headers, snapshot, NOW_MS) is first
    assert isinstance(callers.identify(headers, snapshot, NOW_MS + 1), Refusal)
    for changes in ({"keys": {}}, {"keys": entry, "tenants": {}}):
        fresh = make_snapshot([], **changes)
        assert isinstance(callers.identify(headers, fresh, NOW_MS), Refusal)


def test_wrong_secret_is_not_remembered_and_the_memory_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(identify_module, "MAX_REMEMBERED", 1)
    callers, snapshot = Callers(PEPPER.encode()), make_snapshot([])
    for secret in (b"wrong", ACME_KEY.encode(), GLOBEX_KEY.encode(), ACME_KEY.encode()):
        found = callers.identify({b"x-api-key": secret}, snapshot, NOW_MS)
        assert isinstance(found, Refusal) == (secret == b"wrong")
        assert len(callers._known) <= 1


@pytest.mark.parametrize(
    ("patterns", "name", "is_allowed"),
    [
        (("alpha-8b",), "alpha-8b", True),
        (("alpha-8b",), "alpha-8b ", False),
        (("alpha-8b",), "аlpha-8b", False),  # noqa: RUF001 a Cyrillic letter, on purpose
        (("alpha/*",), "alpha/m", True),
        (("alpha/*",), "alphax/m", False),
        (("alpha/*",), "alpha", False),
        ((), "alpha-8b", False),
        (("*",), "anything", True),
    ],
)
def test_lists_permit_exactly_what_they_say(
    patterns: tuple[str, ...], name: str, is_allowed: bool
) -> None:
    assert allows(patterns, name) is is_allowed


def test_permission_is_checked_on_the_model_that_answers() -> None:
    snapshot = make_snapshot(
        [], models={"alpha-8b": model("alpha-8b"), "beta-70b": model("beta-70b")},
        aliases={"fast": "beta-70b", "small": "alpha-8b"},
    )  # fmt: skip
    owner = tenant("acme")
    _, key = api_key("acme", ACME_KEY, models=("alpha-8b",))
    refusal = find_model(snapshot, owner, key, "fast")
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.MODEL_NOT_ALLOWED
    assert not isinstance(find_model(snapshot, owner, key, "small"), Refusal)
    for name in snapshot.models | snapshot.aliases | {"alpha-8b ": 1, "nope": 1}:
        is_accepted = not isinstance(find_model(snapshot, owner, key, name), Refusal)
        assert is_accepted == (name in accepted_names(snapshot, owner, key))


def resolved(granted: WorkClass | None, headers: dict[bytes, bytes], tier: str = "") -> object:
    _, key = api_key("acme", ACME_KEY, work_class=granted)
    snapshot = make_snapshot([])
    return resolve(snapshot, (tenant("acme"), key), "alpha-8b", tier, headers)


def test_a_caller_may_narrow_its_class_and_never_widen_it() -> None:
    found = resolved(WorkClass.STANDARD, {b"x-headrace-class": b"batch"})
    assert isinstance(found, Resolved)
    assert found.work_class is WorkClass.BATCH
    refusal = resolved(WorkClass.STANDARD, {b"x-headrace-class": b"interactive"})
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.CLASS_NOT_ALLOWED
    assert isinstance(resolved(None, {b"x-headrace-class": b"urgent"}), Refusal)


def test_a_service_tier_above_the_grant_is_served_as_granted() -> None:
    for tier, expected in (("priority", WorkClass.STANDARD), ("flex", WorkClass.BATCH)):
        found = resolved(WorkClass.STANDARD, {}, tier)
        assert isinstance(found, Resolved)
        assert found.work_class is expected


def test_a_stated_deadline_only_tightens() -> None:
    for stated, total_s in ((b"1500", 1.5), (b"999999", 60.0)):
        found = resolved(None, {b"x-headrace-deadline-ms": stated})
        assert isinstance(found, Resolved)
        assert found.deadlines.total_s == total_s
    assert isinstance(resolved(None, {b"x-headrace-deadline-ms": b"-1"}), Refusal)
