"""The model behind the API, as the API process knows it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ridgeline.api.answers import ModelCard
from ridgeline.api.limits import LIMITS, Limits
from ridgeline.frontend.text import TextLayer
from ridgeline.frontend.tools.formats import HERMES, CallFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """takes_priority: the engine's policy looks at a request's priority. vocab_size: token ids that a prompt
    may hold. max_request_tokens: prompt and output of one request that the KV cache can hold. defaults:
    sampling values from the model's generation_config, by field name. tool_form: how the model writes calls.
    thinks: its chat template knows thoughts before the answer.
    limits: of one request.
    """

    card: ModelCard
    vocab_size: int
    max_request_tokens: int
    text: TextLayer
    takes_priority: bool = False
    tool_form: CallFormat = HERMES
    thinks: bool = False
    limits: Limits = LIMITS
    defaults: Mapping[str, float] = field(default_factory=dict)
