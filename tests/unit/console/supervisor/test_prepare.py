"""What is checked once, before anything is started."""

import os
import subprocess
import sys

import pytest

from console.supervisor import prepare
from console.supervisor.bootstrap import ROOT


def test_a_setting_that_undoes_a_guard_ends_the_start_with_one_line(settings) -> None:
    prepare.check()
    settings.MIDDLEWARE = settings.MIDDLEWARE[1:]
    with pytest.raises(SystemExit) as ended:
        prepare.check()
    said = str(ended.value)
    assert said.startswith("headrace.E001: The request id and the security headers must be")
    assert "\n" not in said


def test_a_worker_under_the_supervisor_imports_no_page() -> None:
    code = (
        "import sys; from console.project.celery import app; app.loader.import_default_modules();"
        "print([name for name in ('console.project.urls', 'reportlab') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "CELERY_SKIP_CHECKS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[]\n", done.stderr
