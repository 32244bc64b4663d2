"""Run one `vllm serve` for a person: in the foreground, ended with what it started."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from types import FrameType

from capacity.drivers.local import REPLICA_VARIABLE
from capacity.drivers.processes import ProcessRecord, boot_id, end, start_ticks
from capacity.drivers.vllm_serve import Serve, private_socket_directory, remove_sockets

LOADING_STOP_S = 5.0  # beyond the shutdown time: vLLM that still loads does not heed SIGTERM


def serve_in_foreground(serve: Serve) -> int:
    """Serve until it ends; SIGTERM and SIGINT reach it as SIGTERM; a second one, or time, kills it.

    Returns its exit code, as a shell counts. Raises `DriverError`, or `OSError` if it cannot start.
    """
    private_socket_directory(serve.state_dir)
    mark = {REPLICA_VARIABLE: f"{serve.name}/{os.getpid()}"}
    process = subprocess.Popen(  # noqa: S603 - the vLLM of this installation
        serve.argv,
        stdin=subprocess.DEVNULL,
        env={**serve.environment, **mark},
        start_new_session=True,  # Ctrl-C in the terminal reaches only us
    )
    record = ProcessRecord(
        serve.name, process.pid, start_ticks(process.pid) or 0, boot_id(), "", serve.port
    )
    try:
        with _passing_on(process, serve.shutdown_timeout_s + LOADING_STOP_S):
            code = process.wait()
    finally:
        end(record, 0, mark)
        remove_sockets(serve.state_dir, serve.name)
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _passing_on(process: "subprocess.Popen[bytes]", limit_s: float) -> Iterator[None]:
    """A signal asks the process to stop; a second one, or `limit_s` after it, kills it."""
    deadline = threading.Timer(limit_s, process.kill)
    deadline.daemon = True
    is_asked = False

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        if is_asked:
            process.kill()
        else:
            process.terminate()
            deadline.start()
        is_asked = True

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, pass_on) for number in numbers]
    try:
        yield
    finally:
        deadline.cancel()
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
