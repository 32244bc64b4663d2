"""What `up` runs adds up: connections below the server's limit, work redone only when needed."""

import pytest

from console.supervisor import plan
from console.supervisor.embedded import MAX_CONNECTIONS
from console.supervisor.state import StartRefused

SUPERUSER_RESERVED = 3


def test_all_pools_fit_below_the_embedded_servers_limit() -> None:
    pools = plan.pools_within(MAX_CONNECTIONS - SUPERUSER_RESERVED, is_demo=True)
    assert sum(pools.values()) + plan.CONNECTIONS_KEPT_FREE <= MAX_CONNECTIONS - SUPERUSER_RESERVED


def test_too_small_a_server_is_refused_with_both_numbers() -> None:
    needed = sum(plan.POOL_MAX.values()) + plan.CONNECTIONS_KEPT_FREE
    with pytest.raises(StartRefused, match=rf"allows {needed - 1} connections.* needs {needed}"):
        plan.pools_within(needed - 1, is_demo=True)


def test_every_database_process_gets_its_share() -> None:
    options = plan.Options(console_port=1, gateway_port=2, gateways=2, is_demo=True)
    pools = plan.pools_within(MAX_CONNECTIONS, is_demo=True)
    made = plan.programs(options, {"REDIS_URL": "redis://127.0.0.1:1/0"}, pools)
    shares = {item.name: item.environment.get("HEADRACE_DB_POOL_MAX") for item in made}
    assert {name: shares[name] for name in pools} == {k: str(v) for k, v in pools.items()}
    assert [item.name for item in made if item.name.startswith("gateway")] == [
        "gateway-g0",
        "gateway-g1",
    ]


def test_gateways_share_one_port_and_have_admin_ports_of_their_own() -> None:
    options = plan.Options(console_port=1, gateway_port=2, gateways=3, is_demo=False)
    made = plan.gateways(options, {"REDIS_URL": "redis://127.0.0.1:1/0"})
    assert {item.environment["HEADRACE_GATEWAY_PORT"] for item in made} == {"2"}
    assert len({item.environment["HEADRACE_GATEWAY_ADMIN_PORT"] for item in made}) == 3


def test_preparation_is_due_again_when_database_or_demo_changes() -> None:
    keys = {
        plan.prepared_key(database, is_demo=is_demo)
        for database in ("embedded", "postgresql://h/d")
        for is_demo in (True, False)
    }
    assert len(keys) == 4
    assert plan.prepared_key("embedded", is_demo=True) in keys


def test_a_real_engine_is_waited_for_and_prepared_only_when_asked_for() -> None:
    options = {"console_port": 1, "gateway_port": 2, "gateways": 1, "is_demo": True}
    plain = plan.Options(**options)
    real = plan.Options(**options, is_real_engine=True)
    assert plan.demo_pools(real) - plan.demo_pools(plain) == {"vllm-cpu"}
    asked = {"is_demo": True, "is_real_engine": True}
    assert plan.prepare_program({}, **asked).argv[-2:] == ("--demo", "--real-engine")
    assert "--real-engine" not in plan.prepare_program({}, is_demo=True).argv
    assert plan.prepared_key("d", **asked) != plan.prepared_key("d", is_demo=True)
