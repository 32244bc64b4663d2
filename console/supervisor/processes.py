"""Start programs in order, wait until each is ready, restart what dies, stop all of it.

One thread, one loop: it sleeps in `select` until a child ends, a signal comes or the next probe is
due. What is run stands in `plan.py`; this module knows programs only as argument lists.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from console.supervisor import ports, proc, watch
from console.supervisor.logs import last_line, open_log, rotate_large
from console.supervisor.program import (
    SERVERS,
    STEADY_AFTER_S,
    Child,
    Phase,
    Program,
    ended_how,
    restart_delay_s,
)
from console.supervisor.state import StartRefused

START_ATTEMPTS = 3  # deaths before the first readiness after which `up` gives up
PROBE_EVERY_S = 0.2
IDLE_WAIT_S = 5.0  # upper bound of one sleep: log sizes are looked at this often
SHORTEST_WAIT_S = 0.01
PROGRESS_EVERY_S = 5.0
KILL_WAIT_S = 5.0
ORPHAN_WAIT_S = 5.0


@dataclass
class Supervisor:
    """Runs programs until `stop_requested`. `changed` is called after each change of a phase.

    `turned` is called after each round. `mark` (the state) is found again in the environment of all
    that it started, see `proc.carrying`. `kept` names the adopted processes that may outlive their
    parent: replicas on record. `restart_silent_after_s` 0 restarts nothing that is silent.
    """

    logs: Path
    changed: Callable[[], None]
    say: Callable[[str], None]
    mark: str = ""
    turned: Callable[[], None] = lambda: None
    kept: Callable[[], Container[proc.Identity]] = frozenset
    restart_silent_after_s: float = watch.RESTART_SILENT_AFTER_S
    clock: watch.ClockSteps = field(default_factory=watch.ClockSteps)
    children: list[Child] = field(default_factory=list)
    stop_requested: bool = False
    _kill_now: bool = False
    _stopped_by: int | None = None
    _is_stopping: bool = False
    _is_waiting: bool = False
    _once: subprocess.Popen[bytes] | None = None
    _wake: tuple[int, int] = (-1, -1)
    _strays: watch.Strays = field(default_factory=watch.Strays)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Take over signals and orphans for the time of the block."""
        proc.become_subreaper()
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before_fd = signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        stopping = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {signum: signal.signal(signum, self._on_stop) for signum in stopping}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before_fd)
            for signum, handler in before.items():
                signal.signal(signum, handler)
            for handle in self._wake:
                os.close(handle)

    def _on_stop(self, signum: int, frame: FrameType | None) -> None:
        self._kill_now = self.stop_requested  # asked twice: no more waiting
        self.stop_requested = True
        self._stopped_by = signum

    def start(self, programs: Iterable[Program], timeout_s: float) -> None:
        """Start programs stage by stage; each stage is ready before the next begins.

        Raises `StartRefused` naming the program that does not come up, and `KeyboardInterrupt` if
        asked to stop meanwhile.
        """
        fresh = [Child(program) for program in programs]
        self.children.extend(fresh)
        for stage in sorted({child.program.stage for child in fresh}):
            members = [child for child in fresh if child.program.stage == stage]
            for child in members:
                self._spawn(child)
            self._await_ready(members, timeout_s)

    def _await_ready(self, members: list[Child], timeout_s: float) -> None:
        started_s = told_s = time.monotonic()
        while unready := [child for child in members if child.phase is not Phase.READY]:
            self._turn()
            if self.stop_requested:
                raise KeyboardInterrupt
            now_s = time.monotonic()
            for child in unready:
                if not child.was_ready and child.deaths_in_a_row >= START_ATTEMPTS:
                    raise StartRefused(f"{child.program.name} does not start: {child.last_reason}")
            if now_s - started_s > timeout_s:
                child = unready[0]
                raise StartRefused(
                    f"{child.program.name} is not ready after {timeout_s:.0f} s: "
                    f"{child.waiting_for or child.last_reason}; log: {self.log_of(child)}"
                )
            awaited = [f"{c.program.name} ({c.waiting_for})" for c in members if c.waiting_for]
            if awaited and now_s - told_s > PROGRESS_EVERY_S:
                told_s = now_s
                self.say(f"waiting for {', '.join(awaited)}")

    def wait_until(self, probe: Callable[[int], str], timeout_s: float, what: str) -> None:
        """Wait for a condition that is no process of ours, while these are watched.

        Raises `StartRefused` with the probe's reason when the time is over.
        """
        deadline_s = time.monotonic() + timeout_s
        self._is_waiting = True
        try:
            while reason := probe(os.getpid()):
                self._turn()
                if self.stop_requested:
                    raise KeyboardInterrupt
                if time.monotonic() > deadline_s:
                    raise StartRefused(f"{what} not ready after {timeout_s:.0f} s: {reason}")
        finally:
            self._is_waiting = False

    def run_once(self, program: Program, timeout_s: float) -> None:
        """Run a program to its end while the others are watched.

        Raises `StartRefused` if it fails or takes too long.
        """
        child = Child(program)
        process = self._spawn(child)
        self._once = process
        deadline_s = time.monotonic() + timeout_s
        try:
            while process.poll() is None:
                self._turn()
                if self.stop_requested:
                    raise KeyboardInterrupt
                if time.monotonic() > deadline_s:
                    raise StartRefused(f"{program.name} takes longer than {timeout_s:.0f} s")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            self._once = None
        if process.returncode != 0:
            log = self.log_of(child)
            said = last_line(log) if process.returncode > 0 else ended_how(process.returncode)
            raise StartRefused(f"{program.name} failed: {said}; log: {log}")

    def run_in_foreground(self, argv: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a command on this terminal while the others are watched; its exit code.

        A Ctrl-C reaches the command too, which decides when to end; any other request to stop is
        passed on as one.
        """
        process = subprocess.Popen(argv, env=dict(environment))  # noqa: S603 - our own lists
        self._once = process
        while process.poll() is None:
            self._turn()
            if self._stopped_by not in (None, signal.SIGINT):
                process.send_signal(signal.SIGINT)
                self._stopped_by = None
        self._once = None
        code = process.returncode
        return code if code >= 0 else 128 - code

    def run(self) -> None:
        """Watch until asked to stop."""
        while not self.stop_requested:
            self._turn()

    def log_of(self, child: Child) -> Path:
        """Where its output goes."""
        return self.logs / f"{child.program.name}.log"

    def _spawn(self, child: Child) -> subprocess.Popen[bytes]:
        program = child.program
        account = program.account
        with open_log(self.log_of(child)) as log:
            try:
                process = subprocess.Popen(  # noqa: S603 - our own argument lists
                    program.argv,
                    cwd=program.directory,
                    env={**program.environment, **({proc.MARK: self.mark} if self.mark else {})},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # a Ctrl-C in the terminal reaches only the supervisor
                    user=account.uid if account else None,
                    group=account.gid if account else None,
                    extra_groups=[] if account else None,
                )
            except OSError as error:
                raise StartRefused(f"cannot start {program.name}: {error}") from error
        child.process = process
        child.identity = proc.identify(process.pid)
        child.started_at = time.time()
        child.started_s = child.next_s = time.monotonic()
        child.waiting_for = "starting"
        child.silent_since_s, child.silent_count, child.killed_for = None, 0, ""
        self._enter(child, Phase.STARTING)
        return process

    def _enter(self, child: Child, phase: Phase) -> None:
        child.phase = phase
        self.changed()

    def _turn(self) -> None:
        """One round: sleep until something is due, then see to ended, due and unready children."""
        self._sleep()
        self._reap()
        now_s = time.monotonic()
        for child in self.children:
            if child.next_s > now_s or self.stop_requested:
                continue
            if child.phase is Phase.BACKING_OFF:
                self._respawn(child, now_s)
            elif child.phase is Phase.STARTING:
                self._probe(child)
            elif child.phase in (Phase.READY, Phase.SILENT):
                self._ask(child)
        self._end_strays()
        self._look_at_clock()
        rotate_large(self.logs)
        self.turned()

    def _look_at_clock(self) -> None:
        if self.clock.note(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)):
            self._tell(f"the machine's clock was set by {self.clock.by_s:+.1f} s")
            self.changed()

    def _respawn(self, child: Child, now_s: float) -> None:
        child.restarts += 1
        try:
            self._spawn(child)
        except StartRefused as error:  # no more processes or memory: try again later
            child.last_reason = error.message
            child.deaths_in_a_row += 1
            child.next_s = now_s + restart_delay_s(child.deaths_in_a_row)
            self.changed()

    def _sleep(self) -> None:
        due = [
            child.next_s
            for child in self.children
            if child.phase in (Phase.STARTING, Phase.BACKING_OFF)
            or (child.phase in (Phase.READY, Phase.SILENT) and child.program.is_alive)
        ]
        is_urgent = self._is_stopping or self._is_waiting or self._once is not None
        idle_s = PROBE_EVERY_S if is_urgent else IDLE_WAIT_S
        wait_s = min([idle_s, *(at_s - time.monotonic() for at_s in due)])
        select.select([self._wake[0]], [], [], max(SHORTEST_WAIT_S, wait_s))
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake[0], 512)

    def _reap(self) -> None:
        """Collect every ended child, ours and adopted."""
        by_pid = {child.process.pid: child for child in self.children if child.process}
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            child = by_pid.get(ended.si_pid)
            if child is not None and child.process is not None:
                child.process.poll()
                self._died(child, child.process)
            elif self._once is not None and self._once.pid == ended.si_pid:
                self._once.poll()
            else:
                os.waitpid(ended.si_pid, 0)  # an adopted orphan

    def _died(self, child: Child, process: subprocess.Popen[bytes]) -> None:
        """Note why, and when it starts again."""
        child.process = child.identity = None
        if self._is_stopping:
            self._enter(child, Phase.STOPPED)
            return
        now_s = time.monotonic()
        if now_s - child.started_s >= STEADY_AFTER_S:
            child.deaths_in_a_row = 0
        child.deaths_in_a_row += 1
        child.last_reason = child.killed_for or ended_how(process.returncode)
        if process.returncode > 0:
            child.last_reason += self._why(child) + self._mended(child)
        delay_s = restart_delay_s(child.deaths_in_a_row)
        child.next_s = now_s + delay_s
        if child.was_ready:  # before that, the failed start says it
            self._tell(f"{child.program.name} {child.last_reason}; starts again in {delay_s:g} s")
        self._enter(child, Phase.BACKING_OFF)

    def _mended(self, child: Child) -> str:
        mend = child.program.mend
        done = mend(last_line(self.log_of(child))) if mend is not None else ""
        if not done:
            return ""
        child.deaths_in_a_row = 1  # with what ended it out of the way it need not wait
        return f"; {done}"

    def _why(self, child: Child) -> str:
        """A taken port with its holder, else the last words of its log."""
        ours = {other.process.pid for other in self.children if other.process}
        for port in child.program.ports:
            if not ports.is_free(port) and (held := ports.holder(port, besides=ours)):
                return f": port {port} is taken{held}"
        said = last_line(self.log_of(child))
        return f": {said}" if said else ""

    def _tell(self, line: str) -> None:
        self.say(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {line}")

    def _probe(self, child: Child) -> None:
        assert child.process is not None  # noqa: S101 - STARTING implies it
        child.waiting_for = child.program.probe(child.process.pid)
        child.next_s = time.monotonic() + PROBE_EVERY_S
        if not child.waiting_for:
            child.was_ready = True
            self._enter(child, Phase.READY)
        elif watch.hangs_at_start(child, time.monotonic()) and self._is_mute(child):
            self._kill(child, f"hung at its start ({child.waiting_for}): killed")

    def _is_mute(self, child: Child) -> bool:
        ask = child.program.is_alive
        return ask is not None and child.process is not None and ask(child.process.pid) is False

    def _kill(self, child: Child, why: str) -> None:
        """End a child that does not answer; its death is then seen as any other."""
        child.killed_for = why
        if child.identity is not None:
            proc.send(child.identity, signal.SIGKILL)  # a stopped process takes no other signal

    def _ask(self, child: Child) -> None:
        """Does a ready child still answer? One that stays silent is killed, and so starts again."""
        if child.process is None or child.program.is_alive is None:
            return
        answer = child.program.is_alive(child.process.pid)
        now_s = time.monotonic()
        child.next_s = now_s + watch.LIVE_EVERY_S
        watch.note_answer(child, answer, now_s)
        phase = Phase.SILENT if watch.is_silent(child) else Phase.READY
        if phase is not child.phase:
            answers = "answers again" if phase is Phase.READY else "does not answer"
            self._tell(f"{child.program.name} {answers}")
            self._enter(child, phase)
        silent_s = watch.silent_too_long_s(child, now_s, self.restart_silent_after_s)
        if silent_s is not None:
            self._kill(child, f"did not answer for {silent_s:.0f} s: killed")

    def _end_strays(self) -> None:
        """Only a supervisor with a state of its own does: one without (tests, benchmarks) adopts
        whole installations that were started detached below it."""
        now_s = time.monotonic()
        if not self.mark or now_s < self._strays.next_s or self._is_stopping:
            return
        for stray in self._strays.over(self._adopted(), self.kept(), now_s):
            self._tell(f"ending pid {stray.pid}: its parent died and no record names it")
            proc.send(stray, signal.SIGKILL)

    def stop(self) -> None:
        """End everything: programs in reverse order, replicas that workers left, then servers."""
        self._is_stopping = True
        stages = sorted({child.program.stage for child in self.children}, reverse=True)
        for stage in stages:
            if stage == SERVERS:
                self._end_orphans()
            self._end([child for child in self.children if child.program.stage == stage])
        self._end_orphans()

    def _end(self, members: list[Child]) -> None:
        for child in members:
            if child.identity is not None:
                proc.send(child.identity, child.program.stop_signal)
            else:
                self._enter(child, Phase.STOPPED)
        deadline_s = time.monotonic() + max((c.program.stop_wait_s for c in members), default=0)
        while running := [child for child in members if child.process is not None]:
            if self._kill_now or time.monotonic() > deadline_s:
                for child in running:
                    self._tell(f"{child.program.name} does not stop: killed")
                    if child.identity is not None:
                        proc.send(child.identity, signal.SIGKILL)
                deadline_s = time.monotonic() + KILL_WAIT_S
            self._sleep()
            self._reap()

    def _end_orphans(self) -> None:
        """End adopted grandchildren. A direct child's pid cannot pass to another process."""
        proc.end(self._adopted(), wait_s=0 if self._kill_now else ORPHAN_WAIT_S)

    def _adopted(self) -> list[proc.Identity]:
        """Children that we did not start."""
        ours = {child.process.pid for child in self.children if child.process}
        if self._once is not None:
            ours.add(self._once.pid)
        others = [pid for pid in proc.children_of(os.getpid()) if pid not in ours]
        return [identity for pid in others if (identity := proc.identify(pid)) is not None]
