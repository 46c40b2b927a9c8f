"""What a request asks of the sampler and when it ends. Shared by the door, the scheduler and the runner."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

_NO_BIAS: Mapping[int, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens and when to stop; the names are those of vLLM and OpenAI.

    temperature 0 (or below 1e-5) is greedy; ties go to the lowest token id. seed None draws one at admission.
    logprobs: None for none, k for the sampled token's and the top k's raw log-probabilities (natural log, of
    the model's own distribution, before temperature, penalties and bias). prompt_logprobs likewise for prompt
    positions, from prompt_logprobs_from on. max_tokens None runs to the context border. stop strings are the
    text layer's, stop_token_ids the scheduler's. grammar: what the text must match, as frontend/structure.py
    writes it. pool: the prompt's final hidden states are asked for as one vector, their "mean" or the "last";
    such a request (n 1, max_tokens 1) takes a token that nobody reads. Lists are taken as tuples, one stop
    string as a tuple of it, None as no stop, top_k -1 as 0.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=lambda: _NO_BIAS)
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_from: int = 1
    detokenize: bool = True
    skip_special_tokens: bool = True
    grammar: str | None = None
    pool: str | None = None

    def __post_init__(self) -> None:
        stop: Any = self.stop
        object.__setattr__(self, "stop", (stop,) if isinstance(stop, str) else tuple(stop or ()))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)

    @property
    def greedy(self) -> bool:
        """True when the highest logit always wins."""
        return self.temperature < 1e-5

    @property
    def fixed_length(self) -> bool:
        """True when nothing ends the text before max_tokens or the context's border."""
        return self.ignore_eos and not self.stop and not self.stop_token_ids

    @property
    def needs_history(self) -> bool:
        """True when the sampler reads the tokens so far (penalties)."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
