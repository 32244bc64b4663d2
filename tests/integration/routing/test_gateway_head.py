"""HEAD on a kept connection: the next answer is read as what it is."""

import http.client
from pathlib import Path

from tests.gatewaying import serving
from tests.upstream import UpstreamThread


def test_head_has_no_body_and_the_connection_goes_on(tmp_path: Path, store: object) -> None:
    with UpstreamThread() as upstream, serving(tmp_path, upstream) as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=5)
        for method, path, status in (
            ("HEAD", "/healthz", 200),
            ("HEAD", "/v1/chat/completions", 405),
            ("HEAD", "/nowhere", 404),
            ("GET", "/healthz", 200),
        ):
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == status, (method, path)
            assert bool(body) == (method == "GET")
        connection.close()
