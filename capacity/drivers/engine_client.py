"""Short questions to one vLLM-shaped server, each with a time limit and a size limit."""

import http.client
import json
from typing import Any

from capacity.drivers.base import Identity, Observed, ReplicaStatus

PROBE_TIMEOUT_S = 10.0  # one token of a busy replica
IDENTITY_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 256 * 1024  # model lists are short


class NoAnswerError(Exception):
    """No connection, no answer in time, or none that can be read."""


def _ask(host: str, port: int, path: str, timeout_s: float, body: bytes | None = None) -> bytes:
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request(
            "GET" if body is None else "POST", path, body, {"content-type": "application/json"}
        )
        answer = connection.getresponse()
        status, raw = answer.status, answer.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswerError(f"{path}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if status != 200:
        raise NoAnswerError(f"{path} answers {status}")
    return raw


def _json(host: str, port: int, path: str, timeout_s: float) -> dict[str, Any]:
    try:
        answer = json.loads(_ask(host, port, path, timeout_s))
    except ValueError as error:
        raise NoAnswerError(f"{path} is not JSON") from error
    if not isinstance(answer, dict):
        raise NoAnswerError(f"{path} is not an object")
    return answer


def look(host: str, port: int, model: str, wait_s: float) -> ReplicaStatus:
    """Health, identity (does it serve `model`?) and load of the server at an address."""
    try:
        _ask(host, port, "/health", wait_s)
        served = _json(host, port, "/v1/models", wait_s).get("data")
    except NoAnswerError as error:
        return ReplicaStatus(Observed.STARTING, host, port, str(error))
    names = [item.get("id") for item in _cards(served)]
    if model not in names:
        return ReplicaStatus(Observed.WRONG, host, port, f"serves {names}, not {model!r}")
    try:
        load = _json(host, port, "/load", wait_s).get("server_load")
    except NoAnswerError:
        load = None  # vLLM answers only with --enable-server-load-tracking
    return ReplicaStatus(
        Observed.SERVING, host, port, in_flight=load if isinstance(load, int) else None
    )


def _cards(served: object) -> list[dict[str, Any]]:
    items = served if isinstance(served, list) else []
    return [item for item in items if isinstance(item, dict)]


def identity(host: str, port: int, model: str, expected_root: str = "") -> Identity | None:
    """What the server at an address says that it is; None if it does not say within the time.

    `root` is that of `model`, else that of whatever it serves first.
    """
    try:
        cards = _cards(_json(host, port, "/v1/models", IDENTITY_TIMEOUT_S).get("data"))
        version = _json(host, port, "/version", IDENTITY_TIMEOUT_S).get("version")
    except NoAnswerError:
        return None
    ours = [card for card in cards if card.get("id") == model] or cards
    return Identity(
        serves=tuple(str(card.get("id")) for card in cards),
        root=str(ours[0].get("root", "")) if ours else "",
        version=str(version or ""),
        expected_root=expected_root,
    )


def completes(host: str, port: int, model: str) -> bool:
    """Whether it generates one token within `PROBE_TIMEOUT_S`."""
    body = json.dumps({"model": model, "prompt": "ready?", "max_tokens": 1}).encode()
    try:
        _ask(host, port, "/v1/completions", PROBE_TIMEOUT_S, body)
    except NoAnswerError:
        return False
    return True
