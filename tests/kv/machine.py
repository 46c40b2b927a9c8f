"""A stand-in for the device: an arena of token histories, written and read through the block tables of the
plans alone.

Every slot of a page remembers the whole history of the token written there, so a read of a wrong, stale or
moved page cannot go unseen. Knows nothing of the manager but its StepNews.
"""

from dataclasses import dataclass

from ridgeline.kv.news import CopyNews, StepNews
from ridgeline.spec.cache import CacheLayout, State


def histories(salt: str, tokens: tuple) -> list[int]:
    """A number for each prefix: result[i] names tokens[: i + 1] under their salt."""
    found, last = [], hash(salt)
    for token in tokens:
        last = hash((last, token))
        found.append(last)
    return found


@dataclass(frozen=True)
class Work:
    """One row of a step: positions [start, stop) of a sequence whose prefixes are named by `history`."""

    row: int
    start: int
    stop: int
    history: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    work: tuple[Work, ...]
    tables: dict[int, list[dict[int, int]]]
    copies: CopyNews


class Machine:
    """Runs steps in order, some time after they were planned."""

    def __init__(self, layout: CacheLayout, num_pages: int, num_host_pages: int = 0) -> None:
        self._groups = layout.groups
        self._rows: dict[int, list[dict[int, int]]] = {}
        self._arena: list[dict[int, int]] = [{} for _ in range(num_pages)]
        self._spaces = self._arena, [{} for _ in range(num_host_pages)]
        self._steps: list[Step] = []
        self._lost: list[tuple[int, ...]] = []
        self.num_reads = 0

    def plan(self, news: StepNews, work: list[Work]) -> None:
        """Take a step's news, as a runner does when the step begins."""
        for group, table in enumerate(news.tables):
            for row, index, page in zip(table.row, table.index, table.page):
                self._rows.setdefault(row, [{} for _ in self._groups])[group][index] = page
        tables = {item.row: [dict(table) for table in self._rows[item.row]] for item in work}
        self._steps.append(Step(tuple(work), tables, news.copies))

    def lose_oldest(self) -> CopyNews:
        """The step never runs, and nothing of its sequences can be trusted from here on."""
        step = self._steps.pop(0)
        self.distrust([item.history for item in step.work])
        return step.copies

    def distrust(self, histories: list[tuple[int, ...]]) -> None:
        """These sequences end with a step that was lost; what they have in flight is not looked at."""
        self._lost += histories

    def run_oldest(self) -> CopyNews:
        """Copies, then all writes of the step, then all its reads."""
        step = self._steps.pop(0)
        copies = step.copies
        for from_space, source, to_space, target in zip(
                copies.source_space, copies.source, copies.target_space, copies.target):
            self._spaces[to_space][target] = dict(self._spaces[from_space][source])
        work = [item for item in step.work if not any(item.history is lost for lost in self._lost)]
        for item in work:
            for group in range(len(self._groups)):
                self._write(group, item, step.tables[item.row][group])
        for item in work:
            for group, spec in enumerate(self._groups):
                if spec.kind is not State:
                    self._read(group, item, step.tables[item.row][group])
        return step.copies

    def _write(self, group: int, item: Work, table: dict[int, int]) -> None:
        spec = self._groups[group]
        if spec.kind is State:
            pages = [table[index] for index in range(spec.state_pages)]
            for page in pages:
                before = item.history[item.start - 1] if item.start else self._arena[page].get(-1)
                assert self._arena[page].get(-1) == before, "a state of another history"
                self._arena[page][-1] = item.history[item.stop - 1]
            return
        for position in range(item.start, item.stop):
            page = table[position // spec.tokens_per_page]
            assert page, "a write to the null page"
            self._arena[page][position % spec.tokens_per_page] = item.history[position]

    def _read(self, group: int, item: Work, table: dict[int, int]) -> None:
        spec = self._groups[group]
        for query in range(item.start, item.stop):
            first = 0 if spec.window_tokens is None else max(0, query - spec.window_tokens + 1)
            for key in range(first, query + 1):
                page = table[key // spec.tokens_per_page]
                assert page, f"position {key} is still visible to {query} but its page is gone"
                found = self._arena[page].get(key % spec.tokens_per_page)
                assert found == item.history[key], f"group {group}: {query} reads a wrong token at {key}"
                self.num_reads += 1
