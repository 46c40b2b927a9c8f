"""The prefix index: which page holds which tokens after which prefix, and how much of it a new sequence
shares.

A block's name is a chained BLAKE2b digest of (its parent's digest, its tokens), rooted in the salt: 256 bits,
so that two different histories never meet, by chance or by intent. Knows pages as numbers only: who holds
them and which may be evicted is the pool's business.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

Tokens = Sequence[int] | NDArray[np.int32]

_DIGEST_BYTES = 32
_TOKEN = np.dtype("<i4")
_TOKEN_BYTES = 4


def encode(tokens: Tokens) -> bytes:
    """Token ids as bytes; equal prefixes of tokens are equal prefixes of bytes."""
    return np.asarray(tokens, _TOKEN).tobytes()


def common_tokens(a: bytes, b: bytes) -> int:
    """Tokens that two encoded sequences have in common at the front."""
    size = min(len(a), len(b))
    # as big numbers the first byte weighs most: the highest differing bit names the first differing byte
    differing = int.from_bytes(a[:size], "big") ^ int.from_bytes(b[:size], "big")
    return (size - (differing.bit_length() + 7) // 8) // _TOKEN_BYTES


class HashChain:
    """The names of one token sequence's prefixes.

    digests[i] names its first i * block_tokens tokens under its salt; blocks[i] is the encoded block that
    follows.
    """

    __slots__ = ("block_tokens", "blocks", "digests")

    def __init__(self, salt: str, block_tokens: int) -> None:
        root = blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES, person=b"ridgeline")
        self.block_tokens = block_tokens
        self.digests = [root.digest()]
        self.blocks: list[bytes] = []

    def extend(self, tokens: Tokens, num_blocks: int) -> None:
        """Hash on until num_blocks blocks of `tokens` are named."""
        digests, blocks, size = self.digests, self.blocks, self.block_tokens
        if num_blocks <= len(blocks):
            return
        text, size_bytes = encode(tokens[len(blocks) * size : num_blocks * size]), size * _TOKEN_BYTES
        digest = digests[-1]
        for start in range(0, len(text), size_bytes):
            block = text[start : start + size_bytes]
            blocks.append(block)
            digests.append(digest := link(digest, block))

    def fork(self, num_blocks: int) -> "HashChain":
        """A chain with the same first blocks."""
        child = HashChain.__new__(HashChain)
        child.block_tokens = self.block_tokens
        child.digests = self.digests[: num_blocks + 1]
        child.blocks = self.blocks[:num_blocks]
        return child

    def entry(self, group: int, first: int, last: int) -> "Entry":
        """What a full page of blocks [first, last) is to be cached as."""
        tokens = self.blocks[first] if last == first + 1 else b"".join(self.blocks[first:last])
        return Entry(group, self.digests[last], self.digests[first], tokens)


def link(parent: bytes, block: bytes) -> bytes:
    """The digest of one encoded block after its parent's digest."""
    return blake2b(parent + block, digest_size=_DIGEST_BYTES).digest()


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A cached full page of one group: `tokens` (encoded) after the prefix `parent`; `digest` names both
    together. A msgspec struct because there is one for every cached page."""

    group: int
    digest: bytes
    parent: bytes
    tokens: bytes


class PrefixIndex:
    """Cached full pages by group and digest, and below each prefix in token order.

    keep_gone: names of forgotten pages that it remembers, the latest ones. now: the seconds at which pages
    are forgotten, as the manager was last told.
    """

    def __init__(self, num_groups: int, keep_gone: int = 0) -> None:
        self.now = 0.0
        self._gone: OrderedDict[tuple[int, bytes], float] = OrderedDict()
        self._keep_gone = keep_gone
        self._entries: dict[int, Entry] = {}
        self._pages: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        # below a prefix, sorted by token bytes: the longest common prefix is with a neighbour
        self._children: list[dict[bytes, list[tuple[bytes, int]]]] = [{} for _ in range(num_groups)]

    def __contains__(self, page: int) -> bool:
        return page in self._entries

    def has_all(self, pages: Iterable[int]) -> bool:
        """Whether all of these are cached."""
        return self._entries.keys() >= set(pages)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, group: int, digest: bytes) -> int:
        """The page of that name, 0 when there is none."""
        return self._pages[group].get(digest, 0)

    def nearest(self, group: int, parent: bytes, tokens: bytes) -> tuple[int, int]:
        """Of the pages that follow `parent`, the one that shares most tokens with `tokens`: (page, tokens
        shared).

        (0, 0) when none shares a token. A page that holds all of `tokens` is found as such.
        """
        children = self._children[group].get(parent)
        if not children:
            return 0, 0
        place = bisect_left(children, (tokens, 0))
        best, best_shared = 0, 0
        for held, page in children[max(place - 1, 0) : place + 1]:
            shared = common_tokens(held, tokens)
            if shared > best_shared:
                best, best_shared = page, shared
        return best, best_shared

    def add(self, page: int, entry: Entry) -> bool:
        """Remember a full page; False (and nothing done) when those tokens are already cached in another
        page."""
        pages, below = self._pages[entry.group], self._children[entry.group]
        if entry.digest in pages:
            return False
        pages[entry.digest] = page
        self._entries[page] = entry
        if entry.parent in below:
            insort(below[entry.parent], (entry.tokens, page))
        else:
            below[entry.parent] = [(entry.tokens, page)]
        return True

    def remove(self, page: int) -> None:
        """Forget a page; pages that follow it stay known and are whole again once its tokens are cached
        again."""
        entry = self._entries.pop(page)
        del self._pages[entry.group][entry.digest]
        below = self._children[entry.group]
        children = below[entry.parent]
        if len(children) == 1:
            del below[entry.parent]
        else:
            del children[bisect_left(children, (entry.tokens, page))]
        gone, name = self._gone, (entry.group, entry.digest)
        before = len(gone)
        gone[name] = self.now
        if len(gone) == before:  # it was forgotten before
            gone.move_to_end(name)
        elif before >= self._keep_gone:
            gone.popitem(last=False)

    def gone_s(self, group: int, digest: bytes) -> float | None:
        """When the page of that name was forgotten; None for one that is cached, or not remembered."""
        return None if digest in self._pages[group] else self._gone.get((group, digest))

    def follows(self, group: int, digest: bytes) -> bool:
        """Whether anything that begins with this prefix is cached."""
        return digest in self._children[group]

    def has_children(self, page: int) -> bool:
        """Whether any cached page directly follows this cached page."""
        entry = self._entries[page]
        return entry.digest in self._children[entry.group]

    def children(self, page: int) -> Iterator[int]:
        """Cached pages that directly follow this cached page, in token order."""
        entry = self._entries[page]
        return (child for _, child in self._children[entry.group].get(entry.digest, ()))

    def pages(self) -> list[int]:
        """All cached pages."""
        return list(self._entries)

    def entry(self, page: int) -> Entry:
        """What a cached page holds."""
        return self._entries[page]

    def check(self, block_tokens: int) -> None:
        """The three maps agree, and every name follows from what it names."""
        assert sum(map(len, self._pages)) == len(self._entries)
        assert sum(len(c) for below in self._children for c in below.values()) == len(self._entries)
        for page, entry in self._entries.items():
            assert self._pages[entry.group][entry.digest] == page
            digest, size = entry.parent, block_tokens * _TOKEN_BYTES
            assert len(entry.tokens) % size == 0
            for start in range(0, len(entry.tokens), size):
                digest = link(digest, entry.tokens[start : start + size])
            assert digest == entry.digest, f"page {page} is indexed under a wrong name"
        for below in self._children:
            for parent, children in below.items():
                assert children and children == sorted(children)
                for held, page in children:
                    assert (self._entries[page].parent, self._entries[page].tokens) == (parent, held)
