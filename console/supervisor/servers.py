"""The database and the store of one state: embedded, or the ones that the environment names."""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg

from console.supervisor import embedded, ports
from console.supervisor.processes import Supervisor
from console.supervisor.program import Program
from console.supervisor.state import TRAVERSABLE, StartRefused, State, read_json, write_json

EMBEDDED, EXTERNAL = "embedded", "external"
BROKER = "CELERY_BROKER_URL"


@dataclass(frozen=True, slots=True)
class Servers:
    """What to start (nothing for external servers) and how everybody reaches it."""

    programs: tuple[Program, ...]
    database_url: str
    redis_url: str
    embedded_database: tuple[int, str] | None  # port and password
    home: Path | None

    @property
    def environment(self) -> dict[str, str]:
        """The two URLs as settings, and Celery's own where one is set (the store is a cluster)."""
        broker = os.environ.get(BROKER, "")
        urls = {"DATABASE_URL": self.database_url, "REDIS_URL": self.redis_url}
        return urls | ({BROKER: broker} if broker else {})

    def finish(self) -> None:
        """What can only be done once the servers answer."""
        if self.embedded_database is not None:
            embedded.create_database(*self.embedded_database)

    def max_connections(self) -> int:
        """Connections that the running database leaves to ordinary users.

        Raises `StartRefused` if it does not answer.
        """
        query = (
            "SELECT current_setting('max_connections')::int"
            " - current_setting('superuser_reserved_connections')::int"
        )
        try:
            with psycopg.connect(self.database_url, connect_timeout=5) as connection:
                row = connection.execute(query).fetchone()
        except psycopg.Error as error:
            said = str(error).strip().rpartition("\n")[2]
            raise StartRefused(f"the database does not let us in: {said}") from error
        return int(row[0]) if row else 0


def servers_of(state: State, *, is_durable: bool = True) -> Servers:
    """Servers of a state, initialised on first use and recorded in it.

    Raises `StartRefused` if the state's data live elsewhere than the environment says now, or if an
    embedded server cannot be set up.
    """
    record = read_json(state.servers)
    database_url = os.environ.get("DATABASE_URL", "")
    redis_url = os.environ.get("REDIS_URL", "")
    kinds = {
        "database": EXTERNAL if database_url else EMBEDDED,
        "store": EXTERNAL if redis_url else EMBEDDED,
    }
    for (kind, now), name in zip(kinds.items(), ("DATABASE_URL", "REDIS_URL"), strict=True):
        before = record.get(kind, now)
        if before != now:
            change = "set it again" if before == EXTERNAL else "unset it"
            raise StartRefused(
                f"this state's {kind} was {before} before: {change} ({name}), "
                "or use another --state"
            )
    needs_place = EMBEDDED in kinds.values()
    place = embedded.choose_place(state, str(record.get("home", ""))) if needs_place else None
    record = {
        "postgres_password": secrets.token_urlsafe(24),
        "valkey_password": secrets.token_urlsafe(24),
        **record,
        **kinds,
        **({"home": str(place.home)} if place else {}),
    }
    record["postgres_port"] = ports.choose(int(record.get("postgres_port", 0)))
    record["valkey_port"] = ports.choose(
        int(record.get("valkey_port", 0)), avoid=(record["postgres_port"],)
    )
    write_json(state.servers, record)
    programs: list[Program] = []
    login: tuple[int, str] | None = None
    if place is not None and not database_url:
        login = (record["postgres_port"], record["postgres_password"])
        binaries = embedded.postgres_binaries(place.account)
        embedded.init_postgres(place, binaries, login[1])
        embedded.clear_stale_postmaster(place)
        programs.append(embedded.postgres_program(place, binaries, *login, is_durable=is_durable))
        database_url = embedded.database_url(*login)
    if place is not None and not redis_url:
        store = (record["valkey_port"], record["valkey_password"])
        binary = embedded.valkey_binary(place.account)
        programs.append(embedded.valkey_program(place, binary, *store, is_durable=is_durable))
        redis_url = embedded.store_url(*store)
    return Servers(
        programs=tuple(programs),
        database_url=database_url,
        redis_url=redis_url,
        embedded_database=login,
        home=place.home if place else None,
    )


@contextlib.contextmanager
def private_servers() -> Iterator[tuple[Supervisor, State, dict[str, str]]]:
    """Embedded servers in a temporary state, for tests and benchmarks; gone without a trace after.

    Gives the supervisor that watches them, the state, and a complete environment. Servers named in
    the environment are not used: nothing of a real installation may be touched.
    """
    for name in ("DATABASE_URL", "REDIS_URL"):
        os.environ.pop(name, None)
    state = State(Path(tempfile.mkdtemp(prefix="headrace-")))
    state.root.chmod(TRAVERSABLE)
    state.create()
    supervisor = Supervisor(logs=state.logs, changed=lambda: None, say=lambda line: None)
    servers: Servers | None = None
    try:
        with supervisor.signals():
            try:
                servers = servers_of(state, is_durable=False)
                supervisor.start(servers.programs, embedded.RECOVERY_WAIT_S)
                servers.finish()
                yield (
                    supervisor,
                    state,
                    {
                        **servers.environment,
                        "HEADRACE_STATE": str(state.root),
                        "HEADRACE_SECRET_KEY": secrets.token_urlsafe(32),
                        "HEADRACE_KEY_PEPPER": secrets.token_urlsafe(32),
                    },
                )
            finally:
                supervisor.stop()
    finally:
        if servers is not None and servers.home is not None:
            shutil.rmtree(servers.home, ignore_errors=True)
        shutil.rmtree(state.root, ignore_errors=True)
