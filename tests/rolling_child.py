"""A worker that kills itself in the middle of a rollout, at a point that it is told.

Reads one point a line and forks a worker for it, so that none pays for loading Django. Answers with
the worker's end: -9 when it reached its point, 0 when the rollout ended first, `NOTHING_TO_MOVE`
when no engine had to be started or stopped.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import django

WORKS_S = 60.0
NOTHING_TO_MOVE = 3


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_before(module: Any, name: str) -> None:
    setattr(module, name, die)


def killed_after(module: Any, name: str) -> None:
    original = getattr(module, name)

    def then_die(*args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        die()
        return value

    setattr(module, name, then_die)


def worker(point: str) -> None:
    from capacity.drivers.local import LocalDriver
    from capacity.fleet.services import reconcile, reconcile_pools
    from capacity.models import ACTIVE, Rollout
    from capacity.rollouts.services import advance_rollouts, machine

    spawn = LocalDriver._spawn

    def noted(self: LocalDriver, name: str, *args: Any) -> Any:
        record = spawn(self, name, *args)
        with (self.state_dir / "spawned").open("a") as log:
            log.write(f"{name}\n")
        return record

    LocalDriver._spawn = noted  # type: ignore[method-assign]
    if point == "decided, not written":
        killed_before(machine, "_take")
    elif point == "written, not committed":
        killed_after(machine, "enter")
    elif point == "committed":
        killed_after(machine, "_take")
    elif point == "engine moved, row not":
        killed_before(reconcile, "change_replica")
        reconcile_pools()
        os._exit(NOTHING_TO_MOVE)
    end_s = time.monotonic() + WORKS_S
    while time.monotonic() < end_s:
        reconcile_pools()
        advance_rollouts()
        if not Rollout.objects.filter(state__in=ACTIVE).exists():
            os._exit(0)
        time.sleep(0.05)
    os._exit(1)


def main() -> None:
    django.setup()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            worker(line.strip())
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main()
