"""Short questions to one vLLM-shaped server, each with a time limit and a size limit."""

import http.client
import json
import ssl
from collections.abc import Callable
from typing import Any, NamedTuple

from capacity.drivers.base import Identity, Observed, ReplicaStatus

PROBE_TIMEOUT_S = 10.0  # one token of a busy replica
IDENTITY_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 256 * 1024  # model lists are short

# Whom to trust, made when it is needed: an `OSError` of making it is an answer that did not come.
Tls = Callable[[], ssl.SSLContext]


class NoAnswerError(Exception):
    """No connection, no answer in time, or none that can be read."""


class StrangerError(NoAnswerError):
    """Its certificate names another host, or nobody whom we trust vouches for it."""


class _Server(NamedTuple):
    """Where a server is; without `tls` it is asked in the open."""

    host: str
    port: int
    tls: Tls | None

    def connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        return http.client.HTTPSConnection(
            self.host, self.port, timeout=timeout_s, context=self.tls()
        )


def _ask(server: _Server, path: str, timeout_s: float, body: bytes | None = None) -> bytes:
    try:
        connection = server.connect(timeout_s)
    except OSError as error:
        raise NoAnswerError(f"TLS: {error}") from error
    try:
        connection.request(
            "GET" if body is None else "POST", path, body, {"content-type": "application/json"}
        )
        answer = connection.getresponse()
        status, raw = answer.status, answer.read(MAX_ANSWER_BYTES)
    except ssl.SSLCertVerificationError as error:
        raise StrangerError(f"certificate refused: {error.verify_message}") from error
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswerError(f"{path}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if status != 200:
        raise NoAnswerError(f"{path} answers {status}")
    return raw


def _json(server: _Server, path: str, timeout_s: float) -> dict[str, Any]:
    try:
        answer = json.loads(_ask(server, path, timeout_s))
    except ValueError as error:
        raise NoAnswerError(f"{path} is not JSON") from error
    if not isinstance(answer, dict):
        raise NoAnswerError(f"{path} is not an object")
    return answer


def look(host: str, port: int, model: str, wait_s: float, tls: Tls | None = None) -> ReplicaStatus:
    """Health, identity (does it serve `model`?) and load of the server at an address.

    One whose certificate is refused is `wrong`: it is not the host that was named.
    """
    server = _Server(host, port, tls)
    try:
        _ask(server, "/health", wait_s)
        served = _json(server, "/v1/models", wait_s).get("data")
    except StrangerError as error:
        return ReplicaStatus(Observed.WRONG, host, port, str(error))
    except NoAnswerError as error:
        return ReplicaStatus(Observed.STARTING, host, port, str(error))
    names = [item.get("id") for item in _cards(served)]
    if model not in names:
        return ReplicaStatus(Observed.WRONG, host, port, f"serves {names}, not {model!r}")
    try:
        load = _json(server, "/load", wait_s).get("server_load")
    except NoAnswerError:
        load = None  # vLLM answers only with --enable-server-load-tracking
    return ReplicaStatus(
        Observed.SERVING, host, port, in_flight=load if isinstance(load, int) else None
    )


def _cards(served: object) -> list[dict[str, Any]]:
    items = served if isinstance(served, list) else []
    return [item for item in items if isinstance(item, dict)]


def identity(
    host: str, port: int, model: str, expected_root: str = "", tls: Tls | None = None
) -> Identity | None:
    """What the server at an address says that it is; None if it does not say within the time.

    `root` is that of `model`, else that of whatever it serves first.
    """
    server = _Server(host, port, tls)
    try:
        cards = _cards(_json(server, "/v1/models", IDENTITY_TIMEOUT_S).get("data"))
        version = _json(server, "/version", IDENTITY_TIMEOUT_S).get("version")
    except NoAnswerError:
        return None
    ours = [card for card in cards if card.get("id") == model] or cards
    return Identity(
        serves=tuple(str(card.get("id")) for card in cards),
        root=str(ours[0].get("root", "")) if ours else "",
        version=str(version or ""),
        expected_root=expected_root,
    )


def completes(host: str, port: int, model: str, tls: Tls | None = None) -> bool:
    """Whether it generates one token within `PROBE_TIMEOUT_S`."""
    body = json.dumps({"model": model, "prompt": "ready?", "max_tokens": 1}).encode()
    try:
        _ask(_Server(host, port, tls), "/v1/completions", PROBE_TIMEOUT_S, body)
    except NoAnswerError:
        return False
    return True
