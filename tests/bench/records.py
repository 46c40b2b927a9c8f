"""Step and request records made by hand, for the tests of what is reported of them."""

from ridgeline.base.trace import RequestRecord, StepRecord


def step(*, num_decodes: int = 0, num_chunks: int = 0, prefill_tokens: int = 0, context_tokens: int,
         measured_s: float, num_sampled: int | None = None) -> StepRecord:
    sampled = num_decodes + num_chunks if num_sampled is None else num_sampled
    return StepRecord(
        step=0, num_decodes=num_decodes, num_chunks=num_chunks, prefill_tokens=prefill_tokens,
        num_sampled=sampled, context_tokens=context_tokens, running=num_decodes, waiting=0, used_pages=1,
        free_pages=1, num_copies=0, num_preemptions=0, num_failed=0, begun_s=0.0, started_s=0.0,
        finished_s=measured_s, plan_s=0.0, commit_s=0.0, planned_s=None, measured_s=measured_s,
        floor_s=None)


def request(name: str, *, first_s: float, tpot_s: float, num_output: int,
            num_prompt: int = 8) -> RequestRecord:
    times = tuple(first_s + i * tpot_s for i in range(num_output))
    return RequestRecord(
        id=name, choice=0, priority=0, tenant="", num_prompt=num_prompt, num_cached=0, num_output=num_output,
        finish="length", num_preemptions=0, wasted_tokens=0, arrived_s=0.0, first_scheduled_s=0.0,
        first_token_s=first_s, finished_s=times[-1], token_times_s=times)
