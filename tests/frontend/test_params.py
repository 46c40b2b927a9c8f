"""Sampling parameters: nothing out of range reaches a sampler, nothing is lost on the way there."""

from dataclasses import fields, replace
from typing import Any

import msgspec
import pytest

from ridgeline.base.errors import RequestError
from ridgeline.frontend.params import check_sampling, from_wire, to_wire
from ridgeline.frontend.protocol import Sampling
from ridgeline.spec.sampling import SamplingParams

TEXT_LAYER = {"stop", "include_stop_str_in_output", "detokenize", "skip_special_tokens"}
FULL = SamplingParams(
    pool="mean",
    n=2,
    temperature=0.5,
    top_k=3,
    top_p=0.9,
    min_p=0.1,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=-0.3,
    logit_bias={5: 1.0},
    seed=-7,
    max_tokens=9,
    min_tokens=1,
    ignore_eos=True,
    stop_token_ids=(4,),
    logprobs=2,
    prompt_logprobs=1,
    prompt_logprobs_from=3,
    grammar='start: "a"',
)
NAN, INF = float("nan"), float("inf")


def test_everything_crosses() -> None:
    """Each field but the text layer's survives; one added to one side only would be lost silently."""
    names = {f.name for f in fields(SamplingParams)} - TEXT_LAYER
    assert names == {f.name for f in msgspec.structs.fields(Sampling)}
    frame = msgspec.msgpack.encode(to_wire(FULL))
    assert from_wire(msgspec.msgpack.decode(frame, type=Sampling)) == FULL
    assert all(getattr(FULL, name) != getattr(SamplingParams(), name) for name in names)


def test_defaults_are_the_same_on_both_sides() -> None:
    """omit_defaults: what is left out must mean the same there."""
    assert from_wire(Sampling()) == SamplingParams()


def test_good_parameters_pass() -> None:
    check_sampling(replace(FULL, grammar=None, pool=None))
    check_sampling(replace(FULL, min_tokens=0, ignore_eos=False, pool=None))
    check_sampling(SamplingParams(temperature=0, max_tokens=None, top_p=1))


BAD: list[tuple[str, Any]] = [
    *((name, value) for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
                                 "frequency_penalty") for value in (NAN, INF, -INF, "1", None, True)),
    ("temperature", -0.1), ("top_p", 0.0), ("top_p", 1.1), ("min_p", -1e-9), ("repetition_penalty", 5e-324),
    ("presence_penalty", 2.1), ("n", 0), ("n", 10**6), ("n", 1.0), ("top_k", -2), ("seed", 2**70),
    ("max_tokens", -1),
    ("max_tokens", 1.5), ("min_tokens", -1), ("min_tokens", 17), ("logprobs", 21), ("prompt_logprobs", -1),
    ("logit_bias", {5: 101.0}), ("logit_bias", {5: NAN}), ("logit_bias", {"5": 1.0}),
    ("stop_token_ids", (1.5,)), ("stop", ("",)), ("stop", (1,)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_parameters_are_named(name: str, value: Any) -> None:
    """C-09 and C-10 for Python callers and foreign clients."""
    changes: dict[str, Any] = {name: value}
    with pytest.raises(RequestError) as refusal:
        check_sampling(replace(SamplingParams(), **changes))
    assert refusal.value.param == name


def test_shapes_that_python_users_write() -> None:
    """One string, lists, None and vLLM's -1 mean what they mean there."""
    written: Any = {"stop": "x", "stop_token_ids": [3], "top_k": -1}
    assert SamplingParams(**written) == SamplingParams(stop=("x",), stop_token_ids=(3,), top_k=0)
    nothing: Any = {"stop": None, "stop_token_ids": None}
    assert SamplingParams(**nothing) == SamplingParams(stop=[]) == SamplingParams()  # type: ignore[arg-type]


def test_stop_strings_need_text() -> None:
    with pytest.raises(RequestError, match="detokenize"):
        check_sampling(SamplingParams(stop=("x",), detokenize=False))
