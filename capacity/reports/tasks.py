"""Reports by the clock: find what is due every minute, issue each as a job of its own."""

from capacity.reports.services import JOB_KIND, issue, issue_due
from console.jobs.registry import JobHandle, handler


@handler("issue_due_reports")
def issue_due_reports(_job: JobHandle) -> None:
    """Make rows and jobs of what is due; repeating it makes none twice."""
    issue_due()


@handler(JOB_KIND)
def issue_report(job: JobHandle) -> None:
    """One report, on from where an earlier worker stopped."""
    report_id = int(str(job.args["report_id"]))
    issue(report_id, lambda done: job.checkpoint({"report_id": report_id}, done))
