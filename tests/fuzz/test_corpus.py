"""Every input that a search has kept, each run: what was found once stays repaired."""

import pytest

from tests.fuzz.run import CORPUS, NAMES, kept
from tests.fuzz.targets import TARGETS


def test_the_search_knows_every_target() -> None:
    assert set(NAMES) == set(TARGETS) == {path.stem for path in CORPUS.iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_kept_inputs_break_nothing(name: str) -> None:
    inputs = kept(name)
    assert len(inputs) > 10
    for one in inputs:
        try:
            TARGETS[name](one)
        except Exception as error:
            raise AssertionError(f"{one!r}: {error!r}") from error
