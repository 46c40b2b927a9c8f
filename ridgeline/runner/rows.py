"""Fixed rows of request state. A request keeps its row; steps gather from it and nothing ever moves.

Owns block tables, the last sampled token and what a request asked for; written only by plans and by samples.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.runner.stage import stage
from ridgeline.schedule.plan import RowStart, TableDelta
from ridgeline.spec.cache import CacheGroup, CacheLayout


class Rows:
    """State of `num_rows` runner rows, and on the device of one more, `spare`, that no request ever has.

    table int32 [num_rows + 1, pages of all groups]; tables: each group's columns of it. last_token int64
    [num_rows + 1]: the token sampled last, on the device, for plans that say PLACEHOLDER. num_prompt: on the
    host, [num_rows]. logprobs_from: first position whose prompt log-probability is still owed. adapter: the
    row's slot, on the host. adapters int64 [num_rows + 1]: the same on the device, where graphs find it.
    """

    def __init__(self, layout: CacheLayout, num_rows: int, max_model_len: int, device: torch.device) -> None:
        widths = [_table_width(group, max_model_len) for group in layout.groups]
        self.spare = num_rows
        self.table = torch.zeros(num_rows + 1, sum(widths), dtype=torch.int32, device=device)
        self.tables = self.table.split(widths, 1)
        self.last_token = torch.zeros(num_rows + 1, dtype=torch.long, device=device)
        self.num_prompt: NDArray[np.int64] = np.zeros(num_rows, np.int64)
        self.logprobs_from: NDArray[np.int64] = np.zeros(num_rows, np.int64)
        self.adapter: NDArray[np.int64] = np.zeros(num_rows, np.int64)
        self.adapters = torch.zeros(num_rows + 1, dtype=torch.long, device=device)
        self._starts: list[RowStart | None] = [None] * num_rows

    def take(self, start: RowStart) -> None:
        """A request takes its row."""
        self._starts[start.row] = start
        self.num_prompt[start.row] = len(start.prompt)
        self.logprobs_from[start.row] = start.prompt_logprobs_from
        if self.adapter[start.row] != start.adapter:
            self.adapter[start.row] = start.adapter
            self.adapters[start.row : start.row + 1].fill_(start.adapter)

    def update(self, tables: tuple[TableDelta, ...]) -> None:
        """Write the new block-table entries."""
        for table, news in zip(self.tables, tables, strict=True):
            if len(news.row):
                row, index, page = stage(np.stack([news.row, news.index, news.page]), table.device)
                table[row, index] = page

    def request(self, row: int) -> RowStart:
        """What the row's request asked for."""
        start = self._starts[row]
        assert start is not None, f"row {row} was never started"
        return start


def _table_width(group: CacheGroup, max_model_len: int) -> int:
    if group.state_pages:
        return group.state_pages
    return -(-max_model_len // group.tokens_per_page)
