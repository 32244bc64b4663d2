"""Async tests here run in the gateway's own kind of loop."""

import pytest


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """uvloop, as in production."""
    return "asyncio", {"use_uvloop": True}
