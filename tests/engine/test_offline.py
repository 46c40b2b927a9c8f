"""Batches over the fake model: order, text, refusals, and nothing left behind."""

import os
import signal
import threading
from typing import Any

import pytest

from ridgeline.base.clock import WallClock
from ridgeline.base.errors import RequestError
from ridgeline.engine.offline import Offline
from ridgeline.engine.requests import EncodedRequest, encode_chats, encode_prompts
from ridgeline.frontend.template import ChatTemplate
from ridgeline.frontend.text import TextLayer
from ridgeline.frontend.tokenizer import Tokenizer
from ridgeline.schedule.plan import StepPlan
from ridgeline.spec.sampling import SamplingParams
from tests.engine.serve import fake_loop
from tests.engine.vocabulary import letters
from tests.helpers_schedule import expected


def request(prompt: list[int], params: SamplingParams) -> EncodedRequest:
    return EncodedRequest(text=None, token_ids=prompt, params=params)


def offline(tokenizer: Tokenizer | None = None) -> Offline:
    return Offline(fake_loop(), tokenizer, WallClock())


def test_outputs_are_in_the_prompts_order() -> None:
    """Thirty requests of different lengths end in another order than they came."""
    jobs = [request([3 + i % 20, 4], SamplingParams(max_tokens=1 + i % 9, seed=i)) for i in range(30)]
    outputs = offline().run(jobs)
    for index, (job, output) in enumerate(zip(jobs, outputs, strict=True)):
        tokens, finish = expected(job.token_ids, job.params, index, 128)
        [choice] = output.outputs
        assert (choice.token_ids, choice.finish_reason, choice.text) == (tokens, str(finish), "")
        assert output.finished and output.prompt is None and output.prompt_token_ids == job.token_ids
        assert output.metrics.finished_s is not None and output.metrics.arrived_s is not None
        assert output.metrics.finished_s >= output.metrics.arrived_s


def test_text_and_stop_strings() -> None:
    """The text is that of the tokens; a stop string ends a request and counts the tokens up to it."""
    tokenizer = letters()
    params = SamplingParams(max_tokens=30, seed=3, ignore_eos=True)
    runner = offline(tokenizer)
    [whole] = runner.run([request([3, 4], params)])
    text = whole.outputs[0].text
    assert text == tokenizer.decode(whole.outputs[0].token_ids) and len(text) == 30
    stop = text[10:13]
    cut = SamplingParams(max_tokens=30, seed=3, ignore_eos=True, stop=(stop,))
    [stopped] = runner.run([request([3, 4], cut)])
    [choice] = stopped.outputs
    at = text.index(stop)
    assert (choice.text, choice.finish_reason, choice.stop_reason) == (text[:at], "stop", stop)
    assert len(choice.token_ids) == at + 3
    assert stopped.metrics.finished_s is not None


def test_several_choices() -> None:
    [output] = offline().run([request([3, 4], SamplingParams(n=3, max_tokens=8, seed=5, ignore_eos=True))])
    assert [choice.index for choice in output.outputs] == [0, 1, 2]
    assert len({tuple(choice.token_ids) for choice in output.outputs}) > 1


def test_one_bad_request_refuses_the_batch_and_leaves_nothing() -> None:
    """The good ones before it do not run on."""
    runner = offline()
    with pytest.raises(RequestError, match="99"):
        runner.run([request([3], SamplingParams(max_tokens=50)), request([99], SamplingParams())])
    assert runner.run([]) == []
    assert (
        len(runner.run([request([3], SamplingParams(max_tokens=2, ignore_eos=True))])[0].outputs[0].token_ids)
        == 2
    )


def test_interrupt_leaves_nothing_behind() -> None:
    """Ctrl-C in the middle of a batch: the next batch finds an empty engine."""
    stops = iter([False] * 3 + [True])

    def interrupt(plan: StepPlan) -> None:
        if next(stops, False):
            os.kill(os.getpid(), signal.SIGINT)

    loop = fake_loop(before_step=interrupt)
    runner = Offline(loop, None, WallClock())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are born deaf to it
    with pytest.raises(KeyboardInterrupt):
        runner.run([request([3], SamplingParams(max_tokens=50, ignore_eos=True))])
    assert loop.idle() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert runner.run([request([3], SamplingParams(max_tokens=2, ignore_eos=True))])[0].finished


def test_two_threads_take_turns() -> None:
    runner, done = offline(), []

    def work(seed: int) -> None:
        done.append(runner.run([request([3], SamplingParams(max_tokens=20, seed=seed))]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(done) == 4


# ---- what may be asked


def prompts_of(prompts: object, params: object = None) -> list[tuple[str | None, list[int]]]:
    text = TextLayer(tokenizer=letters())
    found = encode_prompts(text, prompts, params or SamplingParams())  # type: ignore[arg-type]
    return [(one.text, one.token_ids) for one in found]


def test_shapes_of_prompts() -> None:
    """One text, one list of ids, lists of either, and vLLM's mappings."""
    ids = letters().encode("ab")
    assert prompts_of("ab") == [("ab", ids)]
    assert prompts_of(ids) == prompts_of({"prompt_token_ids": ids}) == [(None, ids)]
    assert prompts_of(["ab", ids, {"prompt": "ab"}]) == [("ab", ids), (None, ids), ("ab", ids)]
    assert prompts_of([ids, ids]) == [(None, ids)] * 2
    assert prompts_of([]) == []


def test_mistakes_are_refused_before_anything_runs() -> None:
    wrong = SamplingParams(top_p=2.0)
    for prompts, params in ((["ab"], [SamplingParams()] * 2), ([["x"]], None), ("ab", wrong), ([5.5], None)):
        with pytest.raises(RequestError):
            prompts_of(prompts, params)
    with pytest.raises(RequestError, match="no tokenizer"):
        encode_prompts(TextLayer(), [[1]], SamplingParams(stop=("x",)))
    assert encode_prompts(TextLayer(), [[1]], SamplingParams())[0].token_ids == [1]


def test_one_conversation_or_several() -> None:
    text = TextLayer(
        tokenizer=letters(), template=ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    )
    one = [{"role": "user", "content": "ab"}]
    options: Any = {"tools": None, "add_generation_prompt": True, "variables": None}
    assert [r.text for r in encode_chats(text, one, SamplingParams(), **options)] == ["ab"]
    assert [r.text for r in encode_chats(text, [one, one], SamplingParams(), **options)] == ["ab"] * 2
