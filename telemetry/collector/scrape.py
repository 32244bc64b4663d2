"""Bounded fetches of engines' pages: one short connection a page, all limits in one place."""

import asyncio
import ssl
import time
from dataclasses import dataclass
from http import HTTPStatus

import httptools
import msgspec

from routing.contracts.snapshot import EndpointEntry
from telemetry.collector.rules import Outcome, parse_exposition

TIMEOUT_S = 0.8  # of a whole page, below the period: a slow replica never delays the next round
AT_ONCE = 64  # replicas read at the same time; bounds sockets and memory
BODY_BYTES_MAX = 4 * 1024 * 1024  # vLLM's page is about 150 kB
_CHUNK_BYTES = 64 * 1024


class _Version(msgspec.Struct):
    version: str = ""


_decode_version = msgspec.json.Decoder(_Version).decode


class ScrapeError(Exception):
    """A page could not be read; the message says why."""


class _Page:
    """Response callbacks of httptools."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.is_complete = False

    def on_body(self, body: bytes) -> None:
        self.body += body
        if len(self.body) > BODY_BYTES_MAX:
            raise ScrapeError(f"page is over {BODY_BYTES_MAX} bytes")

    def on_message_complete(self) -> None:
        self.is_complete = True


async def fetch(
    host: str, port: int, path: str, tls: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    """Status and body of a page, over TLS when `tls` says whom to trust.

    Raises `ScrapeError` for a broken or too large answer, `OSError` when there is no connection,
    `TimeoutError` after `TIMEOUT_S`.
    """
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection(host, port, ssl=tls)
        try:
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: text/plain\r\n"
                "Connection: close\r\n\r\n".encode()
            )
            return await _read(reader)
        finally:
            writer.transport.abort()  # TLS would wait half a minute for the other side's goodbye


async def _read(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    page = _Page()
    parser = httptools.HttpResponseParser(page)
    while not page.is_complete:
        chunk = await reader.read(_CHUNK_BYTES)
        if not chunk:
            break
        try:
            parser.feed_data(chunk)
        except httptools.HttpParserCallbackError as error:
            raise ScrapeError(str(error.__context__ or error)) from error
        except httptools.HttpParserError as error:
            raise ScrapeError(f"not HTTP: {error}") from error
    status = parser.get_status_code()
    if not status:
        raise ScrapeError("connection closed without an answer")
    return status, bytes(page.body)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A page, or why there is none (`reason`)."""

    status: int = 0
    body: bytes = b""
    is_refused: bool = False
    reason: str = ""


async def _ask(endpoint: EndpointEntry, path: str, tls: ssl.SSLContext | None) -> _Answer:
    try:
        status, body = await fetch(endpoint.host, endpoint.port, path, tls)
    except ConnectionRefusedError:
        return _Answer(is_refused=True, reason="connection refused")
    except TimeoutError:
        return _Answer(reason=f"{path}: no answer within {TIMEOUT_S} s")
    except ssl.SSLCertVerificationError as error:
        return _Answer(reason=f"certificate refused: {error.verify_message}")
    except OSError as error:
        return _Answer(reason=f"{path}: {error.strerror or type(error).__name__}")
    except ScrapeError as error:
        return _Answer(reason=f"{path}: {error}")
    reason = "" if status == HTTPStatus.OK else f"{path}: status {status}"
    return _Answer(status=status, body=body, reason=reason)


async def read_replica(
    endpoint: EndpointEntry, *, wants_version: bool, tls: ssl.SSLContext | None = None
) -> Outcome:
    """Health, metrics and (when wanted) the version of one replica. Never raises for its faults."""
    pages = ["/health", "/metrics"] + (["/version"] if wants_version else [])
    health, metrics, *version = await asyncio.gather(*(_ask(endpoint, page, tls) for page in pages))
    if health.is_refused or health.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Outcome(is_gone=True, reason=health.reason)
    if metrics.reason or health.reason:
        return Outcome(reason=metrics.reason or health.reason)
    sample = parse_exposition(metrics.body, time.monotonic())
    if sample is None:
        return Outcome(reason="/metrics: names no engine")
    return Outcome(sample=sample, version=_version(version[0]) if version else "")


def _version(answer: _Answer) -> str:
    try:
        return "" if answer.reason else _decode_version(answer.body).version
    except msgspec.MsgspecError:
        return ""


async def read_all(
    endpoints: list[tuple[EndpointEntry, bool, ssl.SSLContext | None]],
) -> list[Outcome]:
    """Outcomes in order of `(endpoint, wants_version, tls)`, at most `AT_ONCE` at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(
        endpoint: EndpointEntry, wants_version: bool, tls: ssl.SSLContext | None
    ) -> Outcome:
        async with gate:
            return await read_replica(endpoint, wants_version=wants_version, tls=tls)

    return await asyncio.gather(*(one(*asked) for asked in endpoints))
