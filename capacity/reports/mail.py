"""Where reports are mailed to: an SMTP server, or files in the state directory without one.

A mail has the same Message-ID and file name however often it is tried, so a file is written once
and a mail server's second copy can be told from a new report.
"""

import os
import smtplib
import ssl
from email.message import EmailMessage
from pathlib import Path
from urllib.parse import unquote, urlsplit

from django.conf import settings

TIMEOUT_S = 20
OUTBOX = "outbox"
FILES_MAX = 500  # of the outbox: older ones are deleted, the archive keeps the reports


class MailError(Exception):
    """A mail could not be handed over; the text says why."""


def mail_of(
    *, to: str, name: str, subject: str, text: str, html: str, files: dict[str, tuple[str, bytes]]
) -> EmailMessage:
    """A mail with a text, the same as HTML, and files by name with their type."""
    mail = EmailMessage()
    mail["From"] = settings.MAIL_FROM
    mail["To"] = to
    mail["Subject"] = subject
    mail["Message-ID"] = f"<{name}@headrace>"
    mail.set_content(text)
    mail.add_alternative(html, subtype="html")
    for filename, (kind, content) in files.items():
        main, _, sub = kind.partition(";")[0].partition("/")
        mail.add_attachment(content, maintype=main, subtype=sub, filename=filename)
    return mail


def send(mail: EmailMessage, *, name: str) -> None:
    """Hand a mail over. Raises `MailError`."""
    if settings.MAIL_URL:
        _send_smtp(mail)
    else:
        _write(mail, name)


def sink_words() -> str:
    """Where mails go, without a password."""
    if not settings.MAIL_URL:
        return f"files in {OUTBOX}/ of the state directory"
    return f"the mail server {urlsplit(settings.MAIL_URL).hostname}"


def _send_smtp(mail: EmailMessage) -> None:
    parts = urlsplit(settings.MAIL_URL)
    is_tls = parts.scheme == "smtps"
    host, port = parts.hostname or "localhost", parts.port or (465 if is_tls else 25)
    try:
        kind = smtplib.SMTP_SSL if is_tls else smtplib.SMTP
        with kind(host, port, timeout=TIMEOUT_S) as server:
            if not is_tls and server.has_extn("starttls"):
                server.starttls(context=ssl.create_default_context())
            if parts.username:
                server.login(unquote(parts.username), unquote(parts.password or ""))
            server.send_message(mail)
    except (OSError, smtplib.SMTPException) as error:
        raise MailError(f"{host}:{port}: {type(error).__name__}: {error}"[:300]) from error


def _write(mail: EmailMessage, name: str) -> None:
    box = Path(settings.STATE_DIR) / OUTBOX
    try:
        box.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = box / f".{name}.part"
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(mail.as_bytes())
        part.replace(box / f"{name}.eml")
        kept = sorted(box.glob("*.eml"), key=lambda path: path.stat().st_mtime)
        for old in kept[:-FILES_MAX]:
            old.unlink(missing_ok=True)
    except OSError as error:
        raise MailError(f"{box}: {error.strerror or error}") from error
