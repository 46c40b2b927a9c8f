"""Names of prefixes, and the search for the block that shares most."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.kv.prefix import HashChain, PrefixIndex, common_tokens, encode

TOKENS = st.lists(st.integers(0, 3).map(lambda i: (0, 1, 255, 49151)[i]), max_size=6)


@given(TOKENS, TOKENS)
def test_common_tokens_counts_whole_tokens(a: list[int], b: list[int]) -> None:
    """Ids that share bytes but not all of them are different tokens."""
    common = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    assert common_tokens(encode(a), encode(b)) == common


@given(TOKENS)
def test_an_array_is_encoded_as_a_list_is(tokens: list[int]) -> None:
    """Running rows bring arrays, strided or not; waiting requests bring lists: their blocks must meet."""
    both = np.stack([np.array(tokens, np.int32)] * 2, axis=1)
    assert encode(both[:, 0]) == encode(both[:, 0].copy()) == encode(tokens)


def names(salt: str, tokens: list[int], block: int = 2) -> list[bytes]:
    chain = HashChain(salt, block)
    chain.extend(tokens, len(tokens) // block)
    return chain.digests


def test_a_name_stands_for_salt_and_whole_history() -> None:
    """Equal blocks after different histories, or under different salts, have different names."""
    plain = names("", [1, 2, 3, 4, 5, 6])
    assert plain == names("", [1, 2, 3, 4, 5, 6, 7])
    assert len({*plain, *names("", [2, 1, 3, 4, 5, 6])[1:], *names("x", [1, 2, 3, 4, 5, 6])}) == 4 + 3 + 4
    assert names("\ud800", [1, 2]) != names("?", [1, 2]), "a salt that is no valid text is still a salt"


def test_a_chain_goes_on_where_it_stopped_and_forks() -> None:
    """Hashing by pieces, or from a fork, gives the same names."""
    whole = names("s", [1, 2, 3, 4, 5, 6])
    chain = HashChain("s", 2)
    chain.extend([1, 2], 1)
    other = chain.fork(1)
    chain.extend([1, 2, 3, 4, 5, 6], 3)
    other.extend([1, 2, 9, 9], 2)
    assert chain.digests == whole and other.digests[:2] == whole[:2] and other.digests[2] != whole[2]
    assert chain.fork(0).digests == whole[:1]


@settings(max_examples=60, deadline=None)
@given(st.lists(TOKENS.filter(lambda t: len(t) == 6), max_size=12), TOKENS, st.data())
def test_nearest_is_the_brute_force_answer(blocks: list[list[int]], wanted: list[int],
                                           data: st.DataObject) -> None:
    """Among all blocks after a prefix the one that shares most is found, also after removals."""
    index, held = PrefixIndex(1), {}
    for page, block in enumerate(blocks, start=1):
        chain = HashChain("", 6)
        chain.extend(block, 1)
        assert index.add(page, chain.entry(0, 0, 1)) == (block not in held.values())
        if page in index:
            held[page] = block
    for page in [page for page in held if data.draw(st.booleans())]:
        index.remove(page)
        del held[page]
    index.check(6)
    page, shared = index.nearest(0, HashChain("", 6).digests[0], encode(wanted))
    assert shared == max((common_tokens(encode(b), encode(wanted)) for b in held.values()), default=0)
    assert page == 0 if shared == 0 else common_tokens(encode(held[page]), encode(wanted)) == shared
    assert len(index) == len(held)
