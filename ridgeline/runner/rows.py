"""Fixed rows of request state. A request keeps its row; steps gather from it and nothing ever moves.

Owns block tables, the last sampled token and what a request asked for; written only by plans and by samples.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.schedule.plan import RowStart, TableDelta
from ridgeline.spec.cache import CacheGroup, CacheLayout


class Rows:
    """State of `num_rows` runner rows.

    tables: one int32 [num_rows, pages] a cache group. last_token int64 [num_rows]: the token sampled last,
    on the device, for plans that say PLACEHOLDER. num_prompt: on the host, [num_rows]. logprobs_from: first
    position whose prompt log-probability is still owed.
    """

    def __init__(self, layout: CacheLayout, num_rows: int, max_model_len: int, device: torch.device) -> None:
        self.tables = tuple(
            torch.zeros(num_rows, _table_width(group, max_model_len), dtype=torch.int32, device=device)
            for group in layout.groups)
        self.last_token = torch.zeros(num_rows, dtype=torch.long, device=device)
        self.num_prompt: NDArray[np.int64] = np.zeros(num_rows, np.int64)
        self.logprobs_from: NDArray[np.int64] = np.zeros(num_rows, np.int64)
        self._starts: list[RowStart | None] = [None] * num_rows

    def take(self, start: RowStart) -> None:
        """A request takes its row."""
        self._starts[start.row] = start
        self.num_prompt[start.row] = len(start.prompt)
        self.logprobs_from[start.row] = start.prompt_logprobs_from

    def update(self, tables: tuple[TableDelta, ...]) -> None:
        """Write the new block-table entries."""
        for table, news in zip(self.tables, tables, strict=True):
            if len(news.row):
                where = torch.from_numpy(news.row).long(), torch.from_numpy(news.index).long()
                table[where] = torch.from_numpy(news.page).to(table.device)

    def request(self, row: int) -> RowStart:
        """What the row's request asked for."""
        start = self._starts[row]
        assert start is not None, f"row {row} was never started"
        return start


def _table_width(group: CacheGroup, max_model_len: int) -> int:
    if group.state_pages:
        return group.state_pages
    return -(-max_model_len // group.tokens_per_page)
