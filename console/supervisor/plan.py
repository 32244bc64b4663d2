"""What `up` runs: each process, its command, its readiness and its share of the connections."""

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from console.demo.pools import POOLS, REAL_POOL
from console.supervisor import ports
from console.supervisor.bootstrap import LOCK, PACKAGES, ROOT
from console.supervisor.liveness import Beats, HeartbeatAnswers, HttpAnswers
from console.supervisor.probes import GatewayProbe, HeartbeatProbe, HttpProbe
from console.supervisor.program import Program
from console.supervisor.state import StartRefused

SERVICES, TRAFFIC = 1, 2  # stages after the servers (0)

# Connections that one process of each kind may hold. The console serves people and the API; the
# worker runs four jobs at a time and its poller; the ledger writer must never wait for either.
POOL_MAX = {"console": 12, "worker": 8, "beat": 2, "ledger": 4, "traffic": 1}
# Left for commands in a shell, migrations and a person with psql.
CONNECTIONS_KEPT_FREE = 12

GATEWAY_DRAIN_S = 30.0  # streams in flight may end


@dataclass(frozen=True, slots=True)
class Options:
    """What `up` was asked for."""

    console_port: int
    gateway_port: int
    gateways: int
    is_demo: bool
    is_real_engine: bool = False
    is_servers_only: bool = False


def pools_within(max_connections: int, *, is_demo: bool) -> dict[str, int]:
    """Pool size of each process. Raises `StartRefused` if they do not fit below the server's limit.

    A pool that cannot be filled would show as a hang under load; it is refused at the start.
    """
    pools = {name: size for name, size in POOL_MAX.items() if is_demo or name != "traffic"}
    needed = sum(pools.values()) + CONNECTIONS_KEPT_FREE
    if needed > max_connections:
        raise StartRefused(
            f"the database allows {max_connections} connections, Headrace needs {needed}: "
            "raise max_connections"
        )
    return pools


def programs(
    options: Options, environment: Mapping[str, str], pools: Mapping[str, int]
) -> list[Program]:
    """Everything after the servers, in the order of the architecture's process table."""
    redis_url = environment["REDIS_URL"]
    beats = Beats(redis_url)
    python = sys.executable
    manage = (python, str(ROOT / "manage.py"))
    celery = (python, "-m", "celery", "-A", "console.project.celery")

    def program(name: str, argv: tuple[str, ...], stage: int = SERVICES) -> Program:
        return Program(
            name=name,
            argv=argv,
            environment={
                **environment,
                "HEADRACE_DB_POOL_MAX": str(pools.get(name, 1)),
                # `prepare` ran them, and they import every page: a third of a worker's start.
                "CELERY_SKIP_CHECKS": "1",
            },
            probe=HeartbeatProbe(redis_url, name),
            is_alive=HeartbeatAnswers(beats, name),
            restarts_silent=stage == SERVICES,
            stage=stage,
            directory=ROOT,
        )

    found = [_console(options, environment, pools["console"])]
    found += gateways(options, environment)
    found += [
        program(
            "worker",
            (*celery, "worker", "--pool", "threads", "--concurrency", "4", "--loglevel", "INFO"),
        ),
        program("beat", (*celery, "beat", "--loglevel", "INFO")),
        program("collector", (python, "-m", "telemetry.collector")),
        program("ledger", (*manage, "ledger")),
    ]
    if options.is_demo:
        found.append(program("traffic", (*manage, "replay", "--demo"), TRAFFIC))
    return found


def _console(options: Options, environment: Mapping[str, str], pool_max: int) -> Program:
    port = options.console_port
    return Program(
        name="console",
        argv=(
            *(sys.executable, "-m", "uvicorn", "console.project.server:application"),
            *("--host", ports.LOOPBACK, "--port", str(port), "--no-access-log"),
            *("--timeout-graceful-shutdown", "5"),  # open live sockets do not hold up a stop
        ),
        environment={**environment, "HEADRACE_DB_POOL_MAX": str(pool_max)},
        probe=HttpProbe(ports.LOOPBACK, port, is_own=True),
        is_alive=HttpAnswers(ports.LOOPBACK, port),
        restarts_silent=True,
        stage=SERVICES,
        port=port,
        ports=(port,),
        directory=ROOT,
    )


def gateways(options: Options, environment: Mapping[str, str]) -> list[Program]:
    """N processes on one port: the kernel spreads connections over them (SO_REUSEPORT)."""
    found = []
    taken = [options.console_port, options.gateway_port]
    for index in range(options.gateways):
        admin_port = ports.choose(options.gateway_port + 100 + index, avoid=taken)
        taken.append(admin_port)
        gateway_id = f"g{index}"
        found.append(
            Program(
                name=f"gateway-{gateway_id}",
                argv=(sys.executable, "-m", "routing.gateway"),
                environment={
                    **environment,
                    **gateway_environment(gateway_id, options.gateway_port, admin_port),
                },
                probe=GatewayProbe(ports.LOOPBACK, admin_port, environment["REDIS_URL"]),
                is_alive=HttpAnswers(ports.LOOPBACK, admin_port),
                restarts_silent=True,
                stage=SERVICES,
                port=options.gateway_port,
                ports=(options.gateway_port, admin_port),
                stop_wait_s=GATEWAY_DRAIN_S,
                directory=ROOT,
            )
        )
    return found


def gateway_environment(gateway_id: str, port: int, admin_port: int) -> dict[str, str]:
    """Settings of one gateway process."""
    return {
        "HEADRACE_GATEWAY_ID": gateway_id,
        "HEADRACE_GATEWAY_HOST": ports.LOOPBACK,
        "HEADRACE_GATEWAY_PORT": str(port),
        "HEADRACE_GATEWAY_ADMIN_PORT": str(admin_port),
    }


def demo_pools(options: Options) -> frozenset[str]:
    """Pools that must answer before a demo is ready."""
    simulated = frozenset(name for name, *_rest in POOLS)
    return simulated | {REAL_POOL} if options.is_real_engine else simulated


def prepare_program(
    environment: Mapping[str, str], *, is_demo: bool, is_real_engine: bool = False
) -> Program:
    """Schema, first operator and demo rows, in one process that ends."""
    flags = {"--demo": is_demo, "--real-engine": is_real_engine}
    return Program(
        name="prepare",
        argv=(
            *(sys.executable, "-m", "console.supervisor.prepare"),
            *(flag for flag, is_set in flags.items() if is_set),
        ),
        environment={
            **environment,
            "HEADRACE_DB_POOL_MAX": "2",
            "HEADRACE_DB_STATEMENT_TIMEOUT_MS": "0",  # a migration takes as long as it takes
        },
        probe=lambda pid: "",
        stage=SERVICES,
        directory=ROOT,
    )


def prepared_key(database: str, *, is_demo: bool, is_real_engine: bool = False) -> str:
    """Digest of what `prepare` depends on; unchanged means nothing to do.

    Schema, schedule, catalogue and demo are all code: any changed file counts.
    """
    digest = hashlib.sha256(f"{database}\0{is_demo}\0{is_real_engine}".encode())
    files = [ROOT / LOCK]
    for package in PACKAGES:
        files += sorted((ROOT / package).rglob("*.py"))
    for path in files:
        digest.update(os.fsencode(path.relative_to(ROOT)) + b"\0" + path.read_bytes())
    return digest.hexdigest()
