"""A hosted provider for tests: a scripted upstream behind TLS, and a pool that reaches it."""

import datetime
import ipaddress
import os
import ssl
from collections.abc import Iterable
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


def certificate(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """TLS of a server at the loopback address, and the file of its authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "provider of a test")])
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
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))]),
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


def hosted(
    name: str, addresses: Iterable[tuple[str, int]], style: ApiStyle, **fields: Any
) -> PoolEntry:
    """A pool of a provider that knows the model as `far-model`."""
    sealed = seal(PEPPER.encode(), provider_purpose(name), KEY, os.urandom(NONCE_BYTES))
    changes = {"style": style, "has_tls": True, "sealed_key": sealed} | fields
    return msgspec.structs.replace(pool(name, addresses, "far-model"), **changes)
