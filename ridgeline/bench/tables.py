"""Measures one model's step times on this machine: by rows of decode, and by tokens of a prompt chunk."""

from statistics import median

from ridgeline.base.errors import ConfigError
from ridgeline.bench.drive import Driver, Shape
from ridgeline.ledger.profile import StepTable

ROWS = (1, 2, 4, 5, 8, 16, 32, 64)
CHUNKS = (32, 128, 512)
_PROMPT = 16
_OUTPUT = 24
_REPEATS = 3


def step_table(driver: Driver, *, max_rows: int, max_chunk: int) -> StepTable:
    """Medians over the steps in which every row decodes, and over prompts that are one chunk.

    max_rows: sequences in a step. max_chunk: tokens of a prompt that is computed in one step. ConfigError
    when these, or the cache, leave fewer than two points of either.
    """
    row_s = {n: _decode_s(driver, n) for n in ROWS if n <= max_rows}
    chunk_s = {n: _chunk_s(driver, n) for n in CHUNKS if n <= max_chunk}
    rows = {n: seconds for n, seconds in row_s.items() if seconds is not None}
    if len(rows) < 2 or len(chunk_s) < 2:
        raise ConfigError(f"a step table needs {ROWS[1]} sequences at once and prompts of {CHUNKS[1]} tokens "
                          "in one step: raise --max-num-seqs, --max-num-batched-tokens, --max-model-len or "
                          "--kv-cache-bytes")
    return StepTable(context=_PROMPT + _OUTPUT // 2, rows=tuple(rows), row_s=tuple(rows.values()),
                     chunk=tuple(chunk_s), chunk_s=tuple(chunk_s.values()))


def _decode_s(driver: Driver, num_rows: int) -> float | None:
    """None when so many never decode at once, for want of cache."""
    done = driver.run(Shape(num_requests=num_rows, concurrency=num_rows, prompt_tokens=_PROMPT,
                            output_tokens=_OUTPUT))
    times_s = [s.measured_s for s in done.steps if s.num_chunks == 0 and s.num_decodes == num_rows]
    return median(times_s) if times_s else None


def _chunk_s(driver: Driver, num_tokens: int) -> float:
    done = driver.run(Shape(num_requests=_REPEATS, concurrency=1, prompt_tokens=num_tokens, output_tokens=1))
    return median(s.measured_s for s in done.steps if s.prefill_tokens == num_tokens)
