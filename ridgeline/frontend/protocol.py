"""Messages across the process border (msgspec, tagged), client -> engine and engine -> client. Torch-free.

Sockets: the engine binds one ROUTER (ipc); each client connects a DEALER. A frame is one msgpack-encoded
union value, or a list of them: the engine sends all news of a step for one client as one frame, those that
bring a token alone as two lists of numbers.
"""

from collections.abc import Sequence

import msgspec

from ridgeline.spec.sampling import SamplingParams

_DEFAULT = SamplingParams()


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """SamplingParams without what is the text layer's business (stop strings, detokenize)."""

    n: int = _DEFAULT.n
    temperature: float = _DEFAULT.temperature
    top_k: int = _DEFAULT.top_k
    top_p: float = _DEFAULT.top_p
    min_p: float = _DEFAULT.min_p
    repetition_penalty: float = _DEFAULT.repetition_penalty
    presence_penalty: float = _DEFAULT.presence_penalty
    frequency_penalty: float = _DEFAULT.frequency_penalty
    logit_bias: dict[int, float] = {}
    seed: int | None = _DEFAULT.seed
    max_tokens: int | None = _DEFAULT.max_tokens
    min_tokens: int = _DEFAULT.min_tokens
    ignore_eos: bool = _DEFAULT.ignore_eos
    stop_token_ids: tuple[int, ...] = _DEFAULT.stop_token_ids
    logprobs: int | None = _DEFAULT.logprobs
    prompt_logprobs: int | None = _DEFAULT.prompt_logprobs
    prompt_logprobs_from: int = _DEFAULT.prompt_logprobs_from
    grammar: str | None = _DEFAULT.grammar
    pool: str | None = _DEFAULT.pool


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag="submit"):
    """A new request. prompt: token ids. adapter: its name, "" for the base model. arrived_s, tokenised_s:
    when the server took it, and when its tokens were ready, on the machine's monotonic clock; None: now.
    predicted_output: tokens that its caller expects of an answer. route: the sender's number for its first
    choice, and one more for each after it, by which `Tokens` may come; None: only `News` may."""

    id: str
    prompt: list[int]
    sampling: Sampling
    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    adapter: str = ""
    arrived_s: float | None = None
    tokenised_s: float | None = None
    predicted_output: int | None = None
    route: int | None = None


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Stop a request (or one choice of it). keep_tokens: output tokens that count (a stop string's hit)."""

    id: str
    choice: int | None = None
    keep_tokens: int | None = None


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """A question to the engine. what: info, stats, drain (stop admitting, answer when idle) or shutdown."""

    id: str
    what: str


class LoadAdapter(msgspec.Struct, frozen=True, kw_only=True, tag="load_adapter"):
    """Load the adapter of a folder under a name; answered with what is said of it. replace: also where the
    name is taken, whose requests go on with what they have."""

    id: str
    name: str
    path: str
    replace: bool = False


class UnloadAdapter(msgspec.Struct, frozen=True, kw_only=True, tag="unload_adapter"):
    """Forget the adapter of a name; its requests go on to their ends."""

    id: str
    name: str


class Logprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Of one position: the taken token first, then the top k, best first. rank of the taken: 0 = best."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class Tokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """Choices, by their routes, that got a token each and have nothing else to tell: most of what a step
    says."""

    routes: list[int]
    tokens: list[int]


class News(msgspec.Struct, frozen=True, kw_only=True, tag="news", omit_defaults=True, gc=False):
    """One choice's news of a step, as schedule.request.Output. finish: stop, length, abort, error or None.
    pooled: the vector that was asked for, float32 of this machine's byte order. What came as `Tokens` has
    new_tokens alone; the first news of a choice and its last are always whole."""

    id: str
    choice: int = 0
    new_tokens: Sequence[int] = ()
    finish: str | None = None
    stop_token: int | None = None
    error: str | None = None
    logprobs: Sequence[Logprobs] = ()
    prompt_logprobs: Sequence[tuple[int, Logprobs]] = ()
    pooled: bytes = b""
    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0
    times_s: dict[str, float] | None = None
    account: dict[str, float | int | str] | None = None

    @property
    def is_bare(self) -> bool:
        """Whether it brings tokens and nothing else."""
        return not (self.finish or self.times_s or self.logprobs or self.prompt_logprobs or self.pooled)


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """A Submit that the engine will not take (never fits, draining). Mirrors base.errors.RequestError."""

    id: str
    message: str
    param: str | None = None
    code: str | None = None
    status: int = 400


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """The reply to an Ask, a LoadAdapter or an UnloadAdapter. info: see engine/process.py for the keys of
    "info" and "stats"."""

    id: str
    info: dict


ToEngine = Submit | Abort | Ask | LoadAdapter | UnloadAdapter
ToClient = News | Tokens | Refused | Answer
