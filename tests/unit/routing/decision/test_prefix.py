from routing.contracts.usage import MAX_PREFIX_HASHES
from routing.decision.prefix import BLOCK_BYTES, chain_hashes


def test_common_beginning_gives_common_hashes_and_nothing_after_it() -> None:
    shared = b"s" * (BLOCK_BYTES * 3)
    one = chain_hashes(b"salt", shared + b"a" * BLOCK_BYTES + b"t" * BLOCK_BYTES)
    two = chain_hashes(b"salt", shared + b"b" * BLOCK_BYTES + b"t" * BLOCK_BYTES)
    assert one[:3] == two[:3]
    assert not set(one[3:]) & set(two[3:])


def test_tenants_never_share_a_hash() -> None:
    prompt = b"x" * BLOCK_BYTES * 4
    assert not set(chain_hashes(b"a", prompt)) & set(chain_hashes(b"b", prompt))


def test_only_whole_blocks_count_and_at_most_the_bound() -> None:
    assert chain_hashes(b"s", b"x" * (BLOCK_BYTES - 1)) == []
    assert len(chain_hashes(b"s", b"x" * BLOCK_BYTES * 100)) == MAX_PREFIX_HASHES
    assert all(-(2**63) <= h < 2**63 for h in chain_hashes(b"s", b"x" * BLOCK_BYTES * 8))
