"""R25, the gateway's part: callers cannot make it call addresses of their choice."""

from pathlib import Path

import pytest

from tests.gatewaying import error_of, serving
from tests.stack import pool
from tests.upstream import UpstreamThread, json_script


@pytest.mark.parametrize("field", ["api_base", "base_url", "endpoint", "fallbacks"])
def test_fields_that_name_another_target_are_refused(
    tmp_path: Path, store: object, field: str
) -> None:
    with (
        UpstreamThread() as upstream,
        UpstreamThread() as canary,
        serving(tmp_path, upstream) as gateway,
    ):
        response = gateway.chat(**{field: f"http://127.0.0.1:{canary.port}/v1"})
        assert (response.status_code, error_of(response.json())) == (400, "invalid_request")
        assert response.json()["error"]["param"] == field
        assert canary.requests == upstream.requests == []


def test_pictures_are_not_fetched_here(tmp_path: Path, store: object) -> None:
    with (
        UpstreamThread() as upstream,
        UpstreamThread() as canary,
        serving(tmp_path, upstream) as gateway,
    ):
        picture = {"url": f"http://127.0.0.1:{canary.port}/a.png"}
        content = [{"type": "image_url", "image_url": picture}]
        response = gateway.chat(messages=[{"role": "user", "content": content}])
        assert response.status_code == 200
        assert canary.requests == []


def test_redirects_of_an_upstream_are_not_followed(tmp_path: Path, store: object) -> None:
    with UpstreamThread() as upstream, UpstreamThread() as canary:
        there = f"http://127.0.0.1:{canary.port}/v1/chat/completions"
        upstream.plan(json_script({}, 302, [("Location", there)]))
        with serving(tmp_path, upstream) as gateway:
            response = gateway.chat()
            assert (response.status_code, error_of(response.json())) == (502, "upstream_error")
            assert "location" not in response.headers
            assert canary.requests == []


@pytest.mark.parametrize(("allowed", "status"), [("", 502), ("localhost", 200)])
def test_a_name_that_resolves_to_this_machine_is_called_only_if_allowed(
    tmp_path: Path, store: object, allowed: str, status: int
) -> None:
    """Names are looked up at each connection: what they meant when they were put is no proof."""
    with UpstreamThread() as canary:
        pools = {"p1": pool("p1", [("localhost", canary.port)])}
        env = {"HEADRACE_PRIVATE_PROVIDERS": allowed}
        with serving(tmp_path, env=env, pools=pools) as gateway:
            assert gateway.chat().status_code == status
            assert len(canary.completions) == (status == 200)
