"""Document and catalogue to snapshot."""

from dataclasses import replace

from routing.contracts.enums import WorkClass
from routing.contracts.snapshot import Fallback, PoolEntry, Price, TenantEntry, encode_snapshot
from routing.policies.rules.compile import ModelFacts, Sources, compile_snapshot, content_digest
from routing.policies.rules.document import Document, digest_of, from_plain
from routing.policies.rules.reader import Reader
from routing.policies.rules.schema import SCHEMA
from routing.policies.rules.validate import Surroundings, check

POOLS = {
    name: PoolEntry(
        id=name,
        served_model="llama-8b",
        region="eu",
        failure_domain="eu/a",
        hardware="sim",
        kv_capacity_tokens=1000,
        block_size_tokens=16,
    )
    for name in ("p-a", "p-b")
}
SOURCES = Sources(
    tenants=[
        TenantEntry(id="1", slug="acme", bucket=3, timezone="UTC", cache_salt="s", models=("*",))
    ],
    keys={},
    models={"llama-8b": ModelFacts(16_384, 4096, 3.0)},
    pools=POOLS,
    prices={"llama-8b": (Price(1, 1, 1, 1),)},
)


def document(**fields: object) -> Document:
    plain = {
        "name": "main",
        "models": {
            "llama-8b": {"aliases": ["chat"], "targets": [{"pool": "p-a"}, {"pool": "p-b"}]}
        },
        **fields,
    }
    around = Surroundings(
        frozenset({"llama-8b"}), dict.fromkeys(POOLS, "llama-8b"), frozenset({"llama-8b"})
    )
    found = check(plain, around).document
    assert found is not None
    return found


def compiled(of: Document, sources: Sources = SOURCES):
    return compile_snapshot(of, version=3, digest=digest_of(of), sources=sources)


def test_equal_sources_give_equal_bytes_in_any_order():
    reordered = replace(SOURCES, pools=dict(reversed(POOLS.items())), tenants=list(SOURCES.tenants))
    first, second = compiled(document()), compiled(document(), reordered)
    assert encode_snapshot(first) == encode_snapshot(second)
    assert content_digest(first) == content_digest(second)


def test_every_source_is_part_of_the_content():
    digests = {
        content_digest(compiled(document(), sources))
        for sources in (
            SOURCES,
            replace(SOURCES, tenants=[]),
            replace(SOURCES, pools={"p-a": POOLS["p-a"]}),
            replace(SOURCES, models={"llama-8b": ModelFacts(16_384, 4096, 3.5)}),
            replace(SOURCES, prices={"llama-8b": (Price(2, 1, 1, 1),)}),
        )
    }
    digests.add(content_digest(compiled(document(routing={"stale_after_s": 9}))))
    assert len(digests) == 6


def test_bounds_are_the_tightest_of_policy_and_model():
    model = compiled(document(admission={"caps": {"output_tokens": 100}})).models["llama-8b"]
    assert (model.context_tokens, model.output_cap_tokens) == (16_384, 100)
    wide = compiled(document(admission={"caps": {"output_tokens": 100_000}})).models["llama-8b"]
    assert wide.output_cap_tokens == 4096
    assert wide.bytes_per_token == 3.0
    said = document(admission={"estimate": {"bytes_per_token": 2}})
    assert compiled(said).models["llama-8b"].bytes_per_token == 2.0


def test_a_model_without_price_is_left_out_with_its_aliases():
    snapshot = compiled(document(), replace(SOURCES, prices={}))
    assert snapshot.models == {}
    assert snapshot.aliases == {}


def test_a_pool_that_is_gone_is_no_target():
    snapshot = compiled(document(), replace(SOURCES, pools={"p-b": POOLS["p-b"]}))
    assert [target.pool for target in snapshot.models["llama-8b"].targets] == ["p-b"]


def test_every_class_has_its_deadlines():
    policy = compiled(document(classes={"batch": {"caps": {"output_tokens": 7}}})).policy
    assert set(policy.classes) == {item.value for item in WorkClass}
    assert policy.classes["batch"].output_cap_tokens == 7
    assert policy.classes["batch"].reserve_ratio == 0.0


def test_shares_of_a_class_reach_the_gateways():
    rules = {"interactive": {"reserve_ratio": 0.5, "floor_ratio": 0.1}}
    policy = compiled(document(classes=rules)).policy
    shares = {name: (one.reserve_ratio, one.floor_ratio) for name, one in policy.classes.items()}
    assert shares == {"interactive": (0.5, 0.1), "standard": (0.0, 0.05), "batch": (0.0, 0.05)}
    assert policy.label == "main@3"


def test_a_fallback_lasts_as_long_as_its_evaluation_stands():
    one = {"model": "llama-70b", "evaluation": "ev-1", "headroom_ratio": 0.1}
    two = one | {"evaluation": "ev-2", "when": ["no_capacity"]}
    targets = [{"pool": "p-a"}]
    for rule, wanted in ((one, ()), (two, (Fallback("llama-70b", ("no_capacity",), 0.1),))):
        models = {"llama-8b": {"targets": targets, "fallbacks": [rule]}}
        reader = Reader()
        read = reader.read(SCHEMA, {"name": "main", "models": models}, "")
        assert reader.findings == []
        stands = frozenset({("ev-2", "llama-8b", "llama-70b"), ("ev-1", "other", "llama-70b")})
        snapshot = compiled(from_plain(read), replace(SOURCES, evaluations=stands))
        assert snapshot.models["llama-8b"].fallbacks == wanted


def test_waits_between_tries_reach_the_gateways():
    failures = compiled(document(failures={"backoff": {"base_s": 0.2}})).policy.failures
    assert (failures.backoff_base_s, failures.backoff_max_s) == (0.2, 2.0)
