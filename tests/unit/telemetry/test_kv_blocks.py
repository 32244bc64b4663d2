"""KV events as values: what is read of them, and that nothing else is."""

import gc
from typing import Any

import msgspec
import pytest

from telemetry.collector.kv_blocks import (
    BLOCKS_MAX,
    BadFrameError,
    BlockTable,
    Message,
    read_message,
)

SECRET_IDS = [71_003_117, 71_003_118, 71_003_119]  # no other number of the process is one of these
SECRET_SALT = "salt-of-a-tenant-4711"


def stored(*hashes: int | bytes, **more: Any) -> dict[str, Any]:
    """An event as vLLM 0.32 sends it."""
    return {
        "type": "BlockStored", "block_hashes": list(hashes), "parent_block_hash": None,
        "token_ids": SECRET_IDS, "block_size": 32, "lora_id": None, "medium": "GPU",
        "lora_name": None, "extra_keys": [[SECRET_SALT]], "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    } | more  # fmt: skip


def removed(*hashes: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", "group_idx": 0}


def frames(sequence: int, *events: Any, at_s: float = 1.0) -> list[bytes]:
    body = msgspec.msgpack.encode([at_s, list(events), 0])
    return [b"kv", sequence.to_bytes(8, "big"), body]


def table_of(*batches: list[bytes]) -> BlockTable:
    table = BlockTable()
    table.restart()
    for batch in batches:
        table.apply(read_message(batch))
    return table


def test_a_message_is_its_number_and_its_hashes_and_nothing_of_the_prompt() -> None:
    message = read_message(frames(7, stored(11, 12), removed(11)))
    assert message == Message(7, 1.0, [("BlockStored", [11, 12]), ("BlockRemoved", [11])])
    gc.collect()
    # By exact type: asking a dead weak proxy for its class raises.
    kept = [one for one in gc.get_objects() if type(one) is list and one is not SECRET_IDS]
    assert [one for one in kept if one == SECRET_IDS] == []


def test_stored_blocks_count_once_until_they_are_removed() -> None:
    table = table_of(
        frames(0, stored(1, 2, 3)), frames(1, stored(2)), frames(2, removed(1), stored(4))
    )
    assert table.resident == 3
    table.apply(read_message(frames(3, {"type": "AllBlocksCleared"})))
    assert table.resident == 0


def test_groups_are_kept_apart_and_long_hashes_are_cut() -> None:
    table = table_of(frames(0, stored(1), stored(1, group_idx=2), stored(b"x" * 32)))
    assert table.resident == 3


def test_events_of_later_versions_are_passed_over() -> None:
    assert table_of(frames(0, stored(1), {"type": "BlockMoved", "to": [9]})).resident == 1


def test_a_table_that_has_heard_nothing_knows_nothing() -> None:
    assert BlockTable().resident is None


def test_what_was_missed_makes_the_count_unknown_until_the_cache_is_cleared() -> None:
    table = table_of(frames(0, stored(1)))
    table.lose(5)
    table.apply(read_message(frames(5, stored(2))))
    assert table.resident is None
    table.apply(read_message(frames(6, {"type": "AllBlocksCleared"}, stored(3))))
    assert table.resident == 1


def test_more_blocks_than_are_kept_make_the_count_unknown() -> None:
    full = table_of(frames(0, stored(*range(BLOCKS_MAX))))
    assert full.resident == BLOCKS_MAX
    full.apply(read_message(frames(1, stored(BLOCKS_MAX))))
    assert full.resident is None


def test_an_old_message_and_a_new_run_are_told_apart_by_the_engines_clock() -> None:
    table = table_of(frames(0, stored(1), at_s=5.0), frames(1, stored(2), at_s=6.0))
    assert table.is_old(read_message(frames(0, at_s=5.0)))
    assert not table.is_old(read_message(frames(0, at_s=9.0)))


BATCH = frames(0)[2]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "0 frames"),
        ([b"kv", b"\0" * 8], "2 frames"),
        ([b"kv", b"\0" * 8, BATCH, b"x"], "4 frames"),
        ([b"kv", b"\0" * 7, BATCH], "7 bytes"),
        ([b"kv", b"\0" * 8, b""], "cannot be read"),
        ([b"kv", b"\0" * 8, b"\xc1\xff"], "cannot be read"),
        ([b"kv", b"\0" * 8, BATCH[:-2]], "cannot be read"),
        ([b"kv", b"\0" * 8, b"\x91" * 5000], "cannot be read"),
        (frames(0, {"type": "BlockStored", "block_hashes": "abc"}), "cannot be read"),
        (frames(0, {"type": 7}), "cannot be read"),
        (frames(0, ["BlockStored", [1]]), "cannot be read"),
    ],
)
def test_frames_that_are_no_batch_are_refused_without_their_content(
    parts: list[bytes], words: str
) -> None:
    with pytest.raises(BadFrameError, match=words) as caught:
        read_message(parts)
    assert "abc" not in str(caught.value)
