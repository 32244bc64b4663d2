"""The job that evaluates playbooks: every five seconds, one at a time."""

from capacity.playbooks.services import evaluate_playbooks
from console.jobs.registry import JobHandle, handler


@handler("evaluate_playbooks")
def evaluate(job: JobHandle) -> None:
    """One pass over every playbook that is not off."""
    evaluate_playbooks(is_cancelled=job.is_cancelled)
