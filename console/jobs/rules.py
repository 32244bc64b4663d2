"""When a job is tried again, given up, or taken from a silent worker. Times in seconds."""

RUN_TASK = "console.jobs.run"
POLL_TASK = "console.jobs.poll"
ENQUEUE_TASK = "console.jobs.enqueue"

HEARTBEAT_EVERY_S = 3.0
STALE_AFTER_S = 30.0  # ten missed heartbeats: a paused machine is not yet a dead one
FIRST_RETRY_S = 2.0
LONGEST_RETRY_S = 300.0
MAX_ERROR_CHARS = 2000  # an error text is for a person, not an archive


def retry_delay_s(attempts: int) -> float:
    """Wait before the next attempt after `attempts` failed ones: doubling, bounded."""
    return min(FIRST_RETRY_S * 2.0 ** max(attempts - 1, 0), LONGEST_RETRY_S)


def may_retry(attempts: int, max_attempts: int) -> bool:
    """Whether a job that ran `attempts` times may run again."""
    return attempts < max_attempts


def error_text(error: BaseException) -> str:
    """Type and message of an error, bounded."""
    return f"{type(error).__name__}: {error}".replace("\x00", "")[:MAX_ERROR_CHARS]
