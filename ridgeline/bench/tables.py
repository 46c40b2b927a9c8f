"""Measures one model's step times on this machine: by rows of decode, and by tokens of a prompt chunk."""

from statistics import median

from ridgeline.bench.drive import Driver, Shape
from ridgeline.ledger.profile import StepTable

ROWS = (1, 2, 4, 5, 8, 16, 32, 64)
CHUNKS = (32, 128, 512)
_PROMPT = 16
_OUTPUT = 24
_REPEATS = 3


def step_table(driver: Driver, *, max_rows: int, max_chunk: int) -> StepTable:
    """Medians over the steps in which every row decodes, and over prompts that are one chunk. At least two
    points of each must be within max_rows (sequences in a step) and max_chunk (tokens in a step)."""
    rows = tuple(n for n in ROWS if n <= max_rows)
    chunks = tuple(n for n in CHUNKS if n <= max_chunk)
    row_s = tuple(_decode_s(driver, n) for n in rows)
    chunk_s = tuple(_chunk_s(driver, n) for n in chunks)
    return StepTable(context=_PROMPT + _OUTPUT // 2, rows=rows, row_s=row_s, chunk=chunks, chunk_s=chunk_s)


def _decode_s(driver: Driver, num_rows: int) -> float:
    done = driver.run(Shape(num_requests=num_rows, concurrency=num_rows, prompt_tokens=_PROMPT,
                            output_tokens=_OUTPUT))
    return median(s.measured_s for s in done.steps if s.num_chunks == 0 and s.num_decodes == num_rows)


def _chunk_s(driver: Driver, num_tokens: int) -> float:
    done = driver.run(Shape(num_requests=_REPEATS, concurrency=1, prompt_tokens=num_tokens, output_tokens=1))
    return median(s.measured_s for s in done.steps if s.prefill_tokens == num_tokens)
