"""The twin's other tier: the host's pages as objects in lists."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ridgeline.spec.cache import CacheLayout, Paged


@dataclass(eq=False)
class Page:
    group: int
    part: int = 0  # which page of a state
    key: tuple | None = None  # (salt, all tokens up to the page's end) while cached


def name_bytes(tokens: tuple) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)


def followers(page: Page, idle: list[Page], layout: CacheLayout) -> list[Page]:
    """Idle pages that are worthless without this one just before them."""
    (salt, tokens), spec = page.key, layout.groups[page.group]
    return [other for other in idle if spec.kind is Paged and other.group == page.group
            and other.key[0] == salt and other.key[1][: len(tokens)] == tokens
            and len(other.key[1]) == len(tokens) + spec.tokens_per_page]


@dataclass(eq=False)
class Host:
    """Pages in sight: cached (findable), idle (cached and nobody's, least recently used first), waiting
    (nobody's, but a copy is under way); the others are held. pinned, held_by: how many copies, or tables,
    name a page."""

    num_pages: int = 1
    layout: CacheLayout | None = None
    cached: list[Page] = field(default_factory=list)
    idle: list[Page] = field(default_factory=list)
    waiting: list[Page] = field(default_factory=list)
    living: list[Page] = field(default_factory=list)  # all that are not free
    pinned: Callable[[Page], int] = lambda page: 0
    held_by: Callable[[Page], int] = lambda page: 0

    def free(self) -> int:
        return self.num_pages - 1 - len(self.living) + len(self.idle)

    def find(self, page: Page) -> Page | None:
        """The cached page that holds the same."""
        name = (page.group, page.part, page.key)
        return next((c for c in self.cached if (c.group, c.part, c.key) == name), None)

    def take(self, page: Page) -> Page:
        """A page for the content of another, whoever has to leave for it."""
        assert self.free() > 0 and self.layout is not None
        if self.free() == len(self.idle):
            victim = self.idle[0]
            while below := followers(victim, self.idle, self.layout):
                victim = min(below, key=lambda page: name_bytes(page.key[1]))
            self.idle.remove(victim)
            self.cached.remove(victim)
            self.living.remove(victim)
        self.living.append(Page(page.group, page.part))
        return self.living[-1]

    def use(self, page: Page) -> None:
        """Somebody takes hold of it."""
        for places in (self.idle, self.waiting):
            if page in places:
                places.remove(page)

    def left(self, page: Page) -> None:
        """A holder, who no longer names it, is gone."""
        if self.held_by(page):
            return
        if self.pinned(page):
            self.waiting.append(page)
        else:
            self._settle(page)

    def unpinned(self, pages: Iterable[Page]) -> None:
        for page in pages:
            if page in self.waiting and not self.pinned(page):
                self.waiting.remove(page)
                self._settle(page)

    def _settle(self, page: Page) -> None:
        if page in self.cached:
            self.idle.append(page)
        else:
            self.living.remove(page)
