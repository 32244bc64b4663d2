"""Upstreams behind TLS for tests: certificates, a hosted provider's pool, an engine's TLS end."""

import asyncio
import datetime
import ipaddress
import os
import queue
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from routing.contracts.capabilities import ApiStyle
from routing.contracts.sealing import NONCE_BYTES, provider_purpose, seal
from routing.contracts.snapshot import PoolEntry
from tests.stack import PEPPER, pool

KEY = "sk-provider-secret-0123456789"
LOOPBACK = "127.0.0.1"


def certificate(directory: Path, address: str = LOOPBACK) -> tuple[ssl.SSLContext, Path]:
    """TLS of a server whose certificate names the address, and the file of its authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"a test at {address}")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = directory / "provider.pem", directory / "provider.key"
    public.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    return context, public


@contextmanager
def behind_tls(tls: ssl.SSLContext, port: int) -> Iterator[int]:
    """The port of a TLS end before a plain server of this machine."""
    begun: queue.SimpleQueue[tuple[int, Callable[[], object]]] = queue.SimpleQueue()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, inner_writer = await asyncio.open_connection(LOOPBACK, port)
        await asyncio.gather(_copy(reader, inner_writer), _copy(inner, writer))

    async def serve() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        async with await asyncio.start_server(forward, LOOPBACK, 0, ssl=tls) as server:
            outer: int = server.sockets[0].getsockname()[1]
            begun.put((outer, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    outer, end = begun.get(timeout=10)
    try:
        yield outer
    finally:
        end()
        thread.join(5)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # one side has left: so does the other
    finally:
        writer.close()


def hosted(
    name: str, addresses: Iterable[tuple[str, int]], style: ApiStyle, **fields: Any
) -> PoolEntry:
    """A pool of a provider that knows the model as `far-model`."""
    sealed = seal(PEPPER.encode(), provider_purpose(name), KEY, os.urandom(NONCE_BYTES))
    changes = {"style": style, "has_tls": True, "sealed_key": sealed} | fields
    return msgspec.structs.replace(pool(name, addresses, "far-model"), **changes)
