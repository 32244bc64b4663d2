"""TLS at the callers' port: official clients, client certificates, renewal, slow readers."""

import contextlib
import os
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from routing.gateway.config import ConfigError, TlsFiles, from_environment
from routing.gateway.tls import FrontTls
from tests.gatewaying import ACME, body_of, raw_request, row, serving
from tests.providing import certificate
from tests.stack import ACME_KEY, GatewayProcess, held
from tests.upstream import (
    Send,
    UpstreamThread,
    answer,
    delta,
    event,
    framed,
    json_script,
    sse_head,
    stream_script,
)

AUTH = {"authorization": f"Bearer {ACME_KEY}"}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Certificate, which is its own authority, and key."""
    directory = tmp_path / "server"
    directory.mkdir()
    _, public = certificate(directory)
    return public, public.with_suffix(".key")


@contextlib.contextmanager
def over_tls(
    tmp_path: Path, pair: tuple[Path, Path], upstream: UpstreamThread, **env: str
) -> Iterator[tuple[GatewayProcess, str]]:
    names = {
        "HEADRACE_GATEWAY_TLS_CERT_FILE": str(pair[0]),
        "HEADRACE_GATEWAY_TLS_KEY_FILE": str(pair[1]),
    }
    with serving(tmp_path, upstream, env=names | env) as gateway:
        yield gateway, f"https://127.0.0.1:{gateway.port}"


def trusting(public: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(public))


def test_an_official_client_speaks_tls_and_plain_http_gets_nothing(
    tmp_path: Path, store: Any, pair: tuple[Path, Path]
) -> None:
    with (
        UpstreamThread() as upstream,
        over_tls(tmp_path, pair, upstream) as (gateway, url),
        httpx.Client(verify=trusting(pair[0]), trust_env=False) as http,
        openai.OpenAI(base_url=f"{url}/v1", api_key=ACME_KEY, http_client=http) as client,
    ):
        upstream.plan(json_script(answer("hello")), stream_script(["hel", "lo"]))
        messages: Any = [{"role": "user", "content": "hi"}]
        whole = client.chat.completions.create(model="alpha-8b", messages=messages)
        parts = client.chat.completions.create(model="alpha-8b", messages=messages, stream=True)
        text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        assert text == whole.choices[0].message.content == "hello"
        with pytest.raises(httpx.TransportError):
            gateway.chat(**body_of())
        assert len(upstream.completions) == 2
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{url}/v1/models", headers=AUTH, trust_env=False)
        assert httpx.get(f"{gateway.admin_url}/readyz", trust_env=False).status_code == 200


def test_with_an_authority_only_its_certificates_may_connect(
    tmp_path: Path, store: Any, pair: tuple[Path, Path]
) -> None:
    for name in ("ours", "strange"):
        (tmp_path / name).mkdir()
        certificate(tmp_path / name)
    ours, strange = tmp_path / "ours/provider.pem", tmp_path / "strange/provider.pem"
    environment = {"HEADRACE_GATEWAY_TLS_CLIENT_CA_FILE": str(ours)}
    with (
        UpstreamThread() as upstream,
        over_tls(tmp_path, pair, upstream, **environment) as (_, url),
    ):

        def models(shown: Path | None, key: str = ACME_KEY) -> int:
            context = trusting(pair[0])
            if shown is not None:
                context.load_cert_chain(shown, shown.with_suffix(".key"))
            with httpx.Client(verify=context, trust_env=False) as http:
                headers = {"authorization": f"Bearer {key}"}
                return http.get(f"{url}/v1/models", headers=headers).status_code

        assert models(ours) == 200
        assert models(ours, "sk-wrong") == 401, "a certificate is no key"
        for unwelcome in (None, strange):
            with pytest.raises(httpx.TransportError):
                models(unwelcome)


def test_a_reader_that_stalls_holds_its_upstream_back(
    tmp_path: Path, store: Any, pair: tuple[Path, Path]
) -> None:
    """40 MB are to be sent to who reads nothing: no more than buffers hold leaves the engine."""
    piece = Send(framed(event(delta("x" * 100_000))))
    body = b'{"model":"alpha-8b","stream":true,"messages":[{"role":"user","content":"hi"}]}'
    with (
        UpstreamThread([sse_head(), *[piece] * 400]) as upstream,
        over_tls(tmp_path, pair, upstream) as (gateway, _),
    ):
        before = resident_bytes(gateway)
        with (
            socket.create_connection(("127.0.0.1", gateway.port), 10) as plain,
            trusting(pair[0]).wrap_socket(plain, server_hostname="127.0.0.1") as sock,
        ):
            sock.sendall(raw_request(body))
            assert sock.recv(12) == b"HTTP/1.1 200"
            threading.Event().wait(1.0)  # all of it takes a reader that reads less than that
            assert resident_bytes(gateway) - before < 16_000_000
            assert held(store, ACME) > 0, "it runs still"
        assert row(store, 10).status == "cancelled"


def resident_bytes(gateway: GatewayProcess) -> int:
    text = Path(f"/proc/{gateway.process.pid}/statm").read_text()
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_renewed_certificate_is_taken_up_and_a_broken_one_is_not(
    tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    front = FrontTls(TlsFiles(str(pair[0]), str(pair[1])))
    first = shown_by(front)
    assert not front.look()
    pair[1].write_text("broken")
    os.utime(pair[1], ns=(1, 1))  # whatever the clock's grain is
    assert not front.look()
    assert shown_by(front) == first
    (tmp_path / "next").mkdir()
    certificate(tmp_path / "next")
    for path in pair:
        shutil.copy(tmp_path / "next" / path.name, path)
    assert front.look()
    assert shown_by(front) != first


def shown_by(front: FrontTls) -> bytes:
    """The certificate that a handshake gets."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusts_all = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusts_all.check_hostname, trusts_all.verify_mode = False, ssl.CERT_NONE
    client = trusts_all.wrap_bio(outgoing, incoming)
    server = front.context.wrap_bio(incoming, outgoing, server_side=True)
    for side in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.getpeercert(binary_form=True) or b""


def test_files_that_cannot_be_used_are_said_by_their_variable(
    tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    with pytest.raises(ConfigError, match="_TLS_CERT_FILE and _KEY_FILE cannot be used"):
        FrontTls(TlsFiles(str(pair[0]), str(tmp_path / "none")))
    with pytest.raises(ConfigError, match="_TLS_CLIENT_CA_FILE cannot be used"):
        FrontTls(TlsFiles(str(pair[0]), str(pair[1]), str(tmp_path / "none")))
    given = {"HEADRACE_STATE": "s", "HEADRACE_KEY_PEPPER": "p", "REDIS_URL": "redis://h:1"}
    assert from_environment(given).tls is None
    name = "HEADRACE_GATEWAY_TLS_CLIENT_CA_FILE"
    with pytest.raises(ConfigError, match="HEADRACE_GATEWAY_TLS_CERT_FILE is not set"):
        from_environment(given | {name: str(pair[0])})
