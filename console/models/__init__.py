"""The console app's models."""

from console.models.answers import KeptAnswer
from console.models.audit import AuditEvent
from console.models.jobs import Job, JobState
from console.models.users import ApiToken, Grant, Role, User

__all__ = ["ApiToken", "AuditEvent", "Grant", "Job", "JobState", "KeptAnswer", "Role", "User"]
