"""Calls of agents in sessions (suite,session,call_index,prompt_tokens,completion_tokens), without times.

A call's prompt holds the session's earlier text: it shares every full block of the prompt before it (the
answer before it, which it holds too, is not counted as shared). A prompt that is shorter than the one before
begins another conversation. First calls of a suite are taken to share the instructions before the user's
text: all full blocks but the last of the shortest of them. The sessions are mixed at random, each in its own
order, as if all were under way at a time.
"""

from collections.abc import Iterator
from pathlib import Path

from numpy.random import Generator

from ridgeline.workload.offered import Offered
from ridgeline.workload.source import Source
from ridgeline.workload.traces.rows import Row, csv_rows, split

COLUMNS = ("suite", "session", "call_index", "prompt_tokens", "completion_tokens")
_BLOCK_TOKENS = 16


def recognises(head: str) -> bool:
    return set(COLUMNS) <= set(split(head))


def read(paths: tuple[Path, ...], random: Generator) -> Source:
    (path,) = paths
    return Source(requests=_requests(path, random), timed=False,
                  about=f"{path.name}, sessions mixed; a call does not wait for the one before it")


def _requests(path: Path, random: Generator) -> Iterator[Offered]:
    sessions: dict[tuple[str, str], list[Row]] = {}
    for row in csv_rows(path, COLUMNS):
        calls = sessions.setdefault((row.get("suite"), row.get("session")), [])
        if calls and row.number_of("call_index") <= calls[-1].number_of("call_index"):
            raise row.error("call_index does not grow within its session: sort the rows by it")
        calls.append(row)
    common = {suite: _common(calls[0] for (other, _), calls in sessions.items() if other == suite)
              for suite, _ in sessions}
    ids = iter(range(1 << 62))
    suite_ids = {suite: [next(ids) for _ in range(blocks)] for suite, blocks in common.items()}
    turns = [key for key, calls in sessions.items() for _ in calls]
    chains = {key: _calls(calls, suite_ids[key[0]], ids) for key, calls in sessions.items()}
    for place in random.permutation(len(turns)).tolist():
        yield next(chains[turns[place]])


def _calls(rows: list[Row], instructions: list[int], ids: Iterator[int]) -> Iterator[Offered]:
    """The session's calls with the ids of their blocks."""
    blocks = instructions
    for i, row in enumerate(rows):
        num_prompt = row.tokens("prompt_tokens")
        if i and num_prompt < rows[i - 1].tokens("prompt_tokens"):
            blocks = []
        full = num_prompt // _BLOCK_TOKENS
        blocks = blocks[:full] + [next(ids) for _ in range(full - len(blocks))]
        yield Offered(arrived_s=0.0, num_prompt=num_prompt, num_output=row.tokens("completion_tokens"),
                      tenant=row.get("suite"), prefix=tuple(blocks), block_tokens=_BLOCK_TOKENS,
                      row=row.number)


def _common(first_calls: Iterator[Row]) -> int:
    """Blocks that the first calls of a suite share."""
    return max(min(row.tokens("prompt_tokens") for row in first_calls) // _BLOCK_TOKENS - 1, 0)
