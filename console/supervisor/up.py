"""`up` and `down`: one state, from nothing to ready and back to nothing."""

import contextlib
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from capacity.drivers.vllm_serve import remove_all_sockets
from console.conditions.database_probe import ask_database
from console.conditions.schema import why_not_prepare
from console.supervisor import embedded, plan, ports, proc, space
from console.supervisor.leftovers import has_leftovers, replicas_on_record, stop_leftovers
from console.supervisor.probes import PoolsProbe
from console.supervisor.processes import Supervisor
from console.supervisor.servers import EMBEDDED, Servers, servers_of
from console.supervisor.state import StartRefused, State, read_json, write_json
from console.supervisor.status import Board
from console.supervisor.watch import RESTART_SILENT_AFTER_S

READY_WAIT_S = 90.0  # every process together, on a busy machine
REAL_ENGINE_WAIT_S = 600.0  # two start at once: 70 s on two quiet cores, far more on busy ones
PREPARE_WAIT_S = 600.0
DOWN_WAIT_S = 120.0  # gateways drain, then the database writes its checkpoint
OPERATOR = {"username": "admin", "email": "admin@localhost"}


@dataclass(slots=True)
class Up:
    """One run of `up`. `say` prints a line; `on_ready` is called once, when everything is ready."""

    state: State
    options: plan.Options
    say: Callable[[str], None]
    on_ready: Callable[[], None]

    def run(self) -> None:
        """Start everything and watch it until a signal comes.

        Raises `StartRefused` with one line, after stopping what had been started;
        `KeyboardInterrupt` if asked to stop before it was ready.
        """
        started_s = time.monotonic()
        with contextlib.ExitStack() as stack:
            is_known = self.state.root.exists()
            if is_known:  # a running supervisor is the better answer than its taken ports
                self._take_over(stack)
            self._require_ports()
            if not is_known:
                self._take_over(stack)
            self._require_space(is_new=not is_known)
            board = Board(self.state, self._header())
            supervisor = Supervisor(
                logs=self.state.logs,
                changed=lambda: board.write(supervisor.children),
                say=self.say,
                mark=str(self.state.root),
                turned=lambda: board.catch_up(supervisor.children),
                kept=lambda: replicas_on_record(self.state),
                restart_silent_after_s=restart_silent_after_s(),
            )
            board.clock = supervisor.clock
            with supervisor.signals():
                try:
                    self._start(supervisor)
                    board.phase = "ready"
                    board.write(supervisor.children)
                    self._announce(time.monotonic() - started_s)
                    self.on_ready()
                    supervisor.run()
                    self.say("stopping ...")
                finally:
                    board.phase = "stopping"
                    supervisor.stop()
                    remove_all_sockets(self.state.root)
                    board.remove()
            self.say("stopped")

    def _take_over(self, stack: contextlib.ExitStack) -> None:
        """Hold the state, and end what a killed supervisor left in it."""
        self.state.create()
        stack.enter_context(self.state.hold())
        if count := stop_leftovers(self.state):
            self.say(f"ended {count} processes that a killed supervisor had left")

    def _require_space(self, *, is_new: bool) -> None:
        record = read_json(self.state.servers)
        home = Path(str(record.get("home") or self.state.root))
        is_first = not read_json(self.state.prepared)
        needed = space.FIRST_START_BYTES if is_first else space.NEXT_START_BYTES
        try:
            space.require(dict.fromkeys((self.state.root, home)), needed)
        except StartRefused:
            if is_new:
                shutil.rmtree(self.state.root, ignore_errors=True)
            raise

    def _require_ports(self) -> None:
        options = self.options
        if options.console_port == options.gateway_port:
            raise StartRefused(
                f"console and gateway cannot share port {options.console_port}: "
                "choose another with --console-port or --gateway-port"
            )
        ports.require_free(options.console_port, "--console-port")
        ports.require_free(options.gateway_port, "--gateway-port")

    def _start(self, supervisor: Supervisor) -> None:
        servers = servers_of(self.state)
        supervisor.start(servers.programs, embedded.RECOVERY_WAIT_S)
        servers.finish()
        if self.options.is_servers_only:
            self._settings(servers)
            return
        pools = plan.pools_within(servers.max_connections(), is_demo=self.options.is_demo)
        settings = self._settings(servers)
        environment = {**os.environ, **settings, "PYTHONUNBUFFERED": "1"}
        self._prepare(supervisor, servers, environment)
        programs = plan.programs(self.options, environment, pools)
        services = [program for program in programs if program.stage == plan.SERVICES]
        supervisor.start(services, READY_WAIT_S)
        if self.options.is_demo:  # traffic into pools without replicas would only be refused
            probe = PoolsProbe(servers.redis_url, plan.demo_pools(self.options))
            is_real = self.options.is_real_engine
            if is_real:
                self.say("starting a real vLLM: this takes a minute or two on two cores ...")
            limit_s = REAL_ENGINE_WAIT_S if is_real else READY_WAIT_S
            supervisor.wait_until(probe, limit_s, "demo pools")
        supervisor.start([item for item in programs if item not in services], READY_WAIT_S)

    def _settings(self, servers: Servers) -> dict[str, str]:
        """Settings of every process. Secrets are drawn once and kept with the state."""
        kept = read_json(self.state.environment)
        secret_names = ("HEADRACE_SECRET_KEY", "HEADRACE_KEY_PEPPER")
        settings = {
            name: os.environ.get(name) or kept.get(name) or secrets.token_urlsafe(48)
            for name in secret_names
        }
        settings |= servers.environment
        settings["HEADRACE_CONSOLE_PORT"] = str(self.options.console_port)
        settings["HEADRACE_GATEWAY_URL"] = self._gateway_url
        write_json(self.state.environment, settings)
        return {**settings, "HEADRACE_STATE": str(self.state.root)}

    def _prepare(
        self, supervisor: Supervisor, servers: Servers, environment: dict[str, str]
    ) -> None:
        database = EMBEDDED if servers.embedded_database else servers.database_url
        asked = {
            "is_demo": self.options.is_demo,
            "is_real_engine": self.options.is_real_engine,
        }
        key = plan.prepared_key(database, **asked)
        credentials = read_json(self.state.credentials)
        prepared = read_json(self.state.prepared)
        credentials.setdefault("operator", {**OPERATOR, "password": secrets.token_urlsafe(15)})
        credentials |= {"console_url": self._console_url, "gateway_url": self._gateway_url}
        write_json(self.state.credentials, credentials)
        facts = ask_database(servers.database_url)
        if line := why_not_prepare(facts):
            raise StartRefused(line)
        if prepared.get("key") == key and not facts.missing_migrations:
            return
        self.say("preparing the database ...")
        program = plan.prepare_program(environment, **asked)
        supervisor.run_once(program, PREPARE_WAIT_S)
        write_json(self.state.prepared, {"key": key})
        if not prepared:  # the password is shown once, after the row exists
            operator = credentials["operator"]
            self.say(f"operator {operator['username']}, password {operator['password']}")

    @property
    def _console_url(self) -> str:
        return f"http://{ports.LOOPBACK}:{self.options.console_port}"

    @property
    def _gateway_url(self) -> str:
        return f"http://{ports.LOOPBACK}:{self.options.gateway_port}"

    def _header(self) -> dict[str, object]:
        me = proc.identify(os.getpid())
        return {
            "boot": proc.boot_id(),
            "supervisor": {"pid": os.getpid(), "ticks": me.ticks if me else None},
            "console_url": self._console_url,
            "gateway_url": self._gateway_url,
            "is_demo": self.options.is_demo,
        }

    def _announce(self, took_s: float) -> None:
        self.say(f"ready in {took_s:.1f} s")
        if self.options.is_servers_only:
            self.say("only the database and the store run")
            return
        self.say(f"console  {self._console_url}/")
        self.say(f"gateway  {self._gateway_url}/v1")
        self.say(f"credentials: manage.py credentials (file {self.state.credentials})")


def down(state: State, say: Callable[[str], None]) -> None:
    """Stop what runs on a state and wait until all of it is gone.

    Raises `StartRefused` if nothing runs, or if something does not end in time.
    """
    holder = state.holder()
    if holder is not None:
        proc.send(holder, signal.SIGTERM)
        if proc.wait_gone([holder], DOWN_WAIT_S):
            raise StartRefused(f"pid {holder.pid} did not stop within {DOWN_WAIT_S:.0f} s")
        if not has_leftovers(state):  # else it was killed meanwhile, and has stopped nothing
            say("stopped")
            return
    elif not state.processes.exists():
        raise StartRefused(f"nothing runs on {state.root}")
    with state.hold():
        stop_leftovers(state)
    say("stopped what a killed supervisor had left")


def restart_silent_after_s() -> float:
    """`HEADRACE_RESTART_SILENT_S`: seconds of silence after which a process is killed; 0 is never.

    Raises `StartRefused` if it is no number.
    """
    chosen = os.environ.get("HEADRACE_RESTART_SILENT_S", "")
    if not chosen:
        return RESTART_SILENT_AFTER_S
    try:
        value_s = float(chosen)
    except ValueError:
        value_s = -1.0
    if not 0 <= value_s < float("inf"):
        raise StartRefused(f"HEADRACE_RESTART_SILENT_S is {chosen!r}: give seconds, or 0 for never")
    return value_s
