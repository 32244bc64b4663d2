"""Every input that a search has kept, each run: what was found once stays repaired."""

import pytest

from tests.fuzz.run import CORPUS, NAMES
from tests.fuzz.targets import TARGETS


def test_the_search_knows_every_target() -> None:
    assert set(NAMES) == set(TARGETS) == {path.name for path in CORPUS.iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_kept_inputs_break_nothing(name: str) -> None:
    kept = sorted((CORPUS / name).iterdir())
    assert kept
    for path in kept:
        try:
            TARGETS[name](path.read_bytes())
        except Exception as error:
            raise AssertionError(f"{path}: {error!r}") from error
