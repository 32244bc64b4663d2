"""Beat's scheduler, made steady against a clock that is set back.

The library waits until the clock has passed an entry's last run, and looks only at the entry whose
time comes first. Set back by an hour, it would start nothing for an hour.
"""

import time
from datetime import datetime, timedelta

from django_celery_beat.schedulers import DatabaseScheduler, ModelEntry

from console.jobs.watch import beat_loop

SLACK_S = 5.0  # the clocks of two beats that take turns may differ by so much


class SteadyEntry(ModelEntry):  # type: ignore[misc]
    """One entry; a last run in the future counts as now."""

    def is_due(self) -> tuple[bool, float]:
        """Whether it is to run, and when to look again (seconds)."""
        now: datetime = self._default_now()
        last: datetime | None = getattr(self, "last_run_at", None)
        if last is not None and last > now + timedelta(seconds=SLACK_S):
            self.last_run_at = now
        due: tuple[bool, float] = super().is_due()
        return due


class SteadyScheduler(DatabaseScheduler):  # type: ignore[misc]
    """Looks at every entry again when the clock was set back."""

    Entry = SteadyEntry
    _offset_s = 0.0  # wall clock minus monotonic clock, at its highest

    def tick(self, *args: object, **kwargs: object) -> float:
        """Run what is due; seconds until the next look."""
        beat_loop.turned()
        offset_s = time.time() - time.monotonic()
        if offset_s < self._offset_s - SLACK_S:
            self._heap = None  # made anew from all entries
        if offset_s < self._offset_s - SLACK_S or offset_s > self._offset_s:
            self._offset_s = offset_s
        wait_s: float = super().tick(*args, **kwargs)
        return wait_s
