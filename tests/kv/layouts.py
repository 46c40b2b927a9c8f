"""Small cache layouts of every shape: one group, several, different page sizes, each kind."""

from ridgeline.spec.cache import CacheGroup, CacheLayout, Paged, State, Window


def paged(tokens_per_page: int, tokens_per_entry: int = 1) -> CacheGroup:
    return CacheGroup(kind=Paged, window_tokens=None, tokens_per_page=tokens_per_page, state_pages=0,
                      regions=(), tokens_per_entry=tokens_per_entry)


def window(tokens_per_page: int, window_tokens: int) -> CacheGroup:
    return CacheGroup(kind=Window, window_tokens=window_tokens, tokens_per_page=tokens_per_page,
                      state_pages=0, regions=())


def state(state_pages: int, snapshot_tokens: int = 4) -> CacheGroup:
    return CacheGroup(kind=State, window_tokens=None, tokens_per_page=0, state_pages=state_pages, regions=(),
                      snapshot_tokens=snapshot_tokens)


def layout(*groups: CacheGroup) -> CacheLayout:
    return CacheLayout(page_bytes=64, groups=groups, source={})


LAYOUTS = {
    "paged": layout(paged(4)),
    "paged-1": layout(paged(1)),
    "entries": layout(paged(8, 4)),
    "two-paged": layout(paged(2), paged(6)),
    "window": layout(window(4, 6)),
    "window-1": layout(window(2, 1)),
    "mixed": layout(paged(4), window(4, 9)),
    "mixed-sizes": layout(window(6, 5), paged(4, 2), window(2, 12)),
    "state": layout(paged(4), state(2)),
    "state-only": layout(state(3)),
    "state-mixed": layout(state(1, 2), window(4, 9), paged(2)),
}
