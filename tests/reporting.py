"""A day that every section of a report has something to say about, and a mail server to hear it."""

import base64
import re
import socketserver
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, time, timedelta
from typing import Any

from capacity.reports.services import ask_report, create_schedule, issue
from telemetry.models import ObjectiveMinute, PoolSample, SliceMinute
from telemetry.stats import sketch
from tests import factories
from tests.forecasting import make_forecast, roll_hours


def make_day(world: factories.World, until: datetime) -> None:
    """Traffic, forecasts, slices, samples and a change in the hours before `until`."""
    first = next(iter(world.tenants))
    # A forecast a day before: its last hour is the last of the day.
    make_forecast(world, as_of=until - timedelta(hours=24))
    roll_hours(world, first, until, 24)
    roll_hours(world, list(world.tenants)[1], until, 24, model="qwen-32b",
               amounts=lambda at: (10 + at.hour, 5000, 700))  # fmt: skip
    make_slices(world, until)
    factories.make_objective(world)
    for minute in range(0, 24 * 60, 11):
        ObjectiveMinute.objects.create(
            objective_id=world.objective_id, minute_at=until - timedelta(minutes=minute + 1),
            total=20, good=20 - minute % 3,
        )  # fmt: skip
    for minute in range(24 * 60):
        if minute % 7 == 0:
            PoolSample.objects.create(
                minute_at=until - timedelta(minutes=minute + 1), pool="p-a", replicas=2,
                fresh_replicas=2, kv_max_ratio=(minute % 100) / 100, kv_mean_ratio=0.4,
                running=minute % 9, waiting=minute % 5,
            )  # fmt: skip
    PoolSample.objects.create(
        minute_at=until - timedelta(minutes=2), pool="p-z", replicas=1, fresh_replicas=0
    )


def make_report() -> int:
    """A schedule `daily` and one issued report; its id."""
    create_schedule(
        name="daily", timezone="Europe/Berlin", at_time=time(2, 30), actor=factories.ACTOR
    )
    report_id = ask_report(hours=24, zone="UTC", actor=factories.ACTOR)
    issue(report_id)
    return report_id


def make_slices(world: factories.World, until: datetime) -> None:
    """Slice minutes of two classes, some of them late and some refused."""
    tenant_id = next(iter(world.tenants.values()))
    for minute in range(0, 24 * 60, 30):
        for work_class, seconds in (("interactive", 0.3), ("standard", 1.1), ("batch", 9.0)):
            bins: dict[int, int] = {}
            for number in range(10):
                at = sketch.index_of(seconds * (1 + 0.2 * number))
                bins[at] = bins.get(at, 0) + 1
            SliceMinute.objects.create(
                minute_at=until - timedelta(minutes=minute + 1), tenant_id=tenant_id,
                model="llama-8b", pool="p-a", work_class=work_class, requests=10, failed=1,
                refused={"rate_limited": 2}, ttft_sketch=sketch.pack(bins), itl_sketch=b"",
                e2e_sketch=b"",
            )  # fmt: skip


def pdf_text(content: bytes) -> str:
    """What is written in a PDF's page streams, in order; one piece a line."""
    assert content.startswith(b"%PDF-")
    found = []
    for stream in re.findall(rb"stream\r?\n(.*?)endstream", content, re.DOTALL):
        raw = stream.strip()
        if raw.endswith(b"~>"):
            raw = base64.a85decode(raw, adobe=not raw.startswith(b"<~") or True) if raw.startswith(
                b"<~") else base64.a85decode(b"<~" + raw, adobe=True)  # fmt: skip
        try:
            page = zlib.decompress(raw).decode("latin-1")
        except zlib.error:
            continue
        found += re.findall(r"\(((?:\\.|[^\\()])*)\) Tj", page)
    text = "\n".join(found)
    text = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal.group(1), 8)), text)
    return text.replace("\\(", "(").replace("\\)", ")").replace("\\\\", "\\").replace("\x97", "—")


class _Smtp(socketserver.StreamRequestHandler):
    """Just enough of SMTP: takes a mail and keeps it."""

    def handle(self) -> None:
        self._say("220 test")
        while line := self.rfile.readline().strip():
            word = line[:4].upper()
            if word == b"DATA":
                self._say("354 go on")
                mail = b""
                while (part := self.rfile.readline()) != b".\r\n":
                    mail += part
                self.server.mails.append(mail)  # type: ignore[attr-defined]
                self._say("250 kept")
            elif word == b"RCPT" and b"refused@" in line:
                self._say("550 no such box")
            elif word == b"QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 ok")

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@contextmanager
def smtp_server() -> Iterator[tuple[str, list[bytes]]]:
    """URL of a mail server and the mails that it was given."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Smtp) as server:
        server.daemon_threads = True
        kept: Any = server
        kept.mails = []
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"smtp://127.0.0.1:{server.server_address[1]}", kept.mails
        finally:
            server.shutdown()
            thread.join(10)
