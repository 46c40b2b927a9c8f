"""A stand-in for the engine's client: answers a script of token ids, one news a token, and notes what it was
asked.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import cache
from typing import Any

from ridgeline.api.answers import ModelCard
from ridgeline.api.openai import OpenAI
from ridgeline.api.served import Served
from ridgeline.base.clock import WallClock
from ridgeline.base.errors import RequestError
from ridgeline.frontend.files import text_from_gguf
from ridgeline.frontend.inbox import AtOnce
from ridgeline.frontend.protocol import Logprobs, News
from ridgeline.frontend.text import TextLayer
from ridgeline.server.keys import Keys, plain
from ridgeline.spec.sampling import SamplingParams
from tests.frontend.vocabularies import byte_level_metadata

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
CONTEXT = 256
TIMES = {"arrived": 1.0, "tokenised": 1.25, "first_scheduled": 1.5, "first_started": 1.625,
         "first_token": 2.0}
VECTOR = b"\0\0\x80?" * 2  # two times 1.0
ACCOUNT = {"num_preemptions": 0, "num_chunks": 1, "waited_rows_s": 0.25, "floor_s": 0.5}


class FakeEngine:
    """Every choice gets the tokens of `text`, then the end id, one at a time.

    refuse: the error of every submit. shed: every request is sent away. gate: when set, news waits for it.
    fail_after: tokens before a choice breaks.
    """

    def __init__(self, text: TextLayer, answer: str = "hello") -> None:
        self.tokenizer = text.need_tokenizer()
        self.answer = answer
        self.dead: str | None = None
        self.num_restarts = 0
        self.refuse: RequestError | None = None
        self.gate: asyncio.Event | None = None
        self.fail_after: int | None = None
        self.submitted: list[tuple[list[int], SamplingParams]] = []
        self.ranks: list[tuple[int, str]] = []
        self.asked_adapters: list[str] = []
        self.adapters: dict[str, str] = {}
        self.predicted: list[int | None] = []
        self.shed = False
        self.aborts: list[tuple[int | None, int | None]] = []
        self.open: set[str] = set()
        self.stats: dict[str, Any] = {
            "num_running": 0,
            "num_waiting": 0,
            "kv_usage": 0.0,
            "num_used_pages": 0,
            "num_free_pages": 8,
            "num_steps": 0,
            "step_measured_s": 0.0,
            "step_floor_s": 0.0,
            "num_prompt_tokens": 0,
            "num_cached_tokens": 0,
            "num_preemptions": 0,
            "num_cached_pages": 3,
            "num_pending_pages": 0,
            "num_generated_tokens": 0,
            "num_recomputed_tokens": 0,
            "num_surplus_tokens": 0,
            "step_prefill_s": 0.0,
            "num_short_steps": 0,
            "num_undone": 0,
            "step_token_limit": 64,
            "uptime_s": 1.0,
            "waiting": {"rows": 0, "rank": 0},
            "waited_s": {"rows": 0.0, "rank": 0.0},
            "little_law": {"arrival_rate": 0.5},
        }

    async def submit(
        self,
        request_id: str,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
        adapter: str = "",
        arrived_s: float | None = None,
        predicted_output: int | None = None,
        at_once: AtOnce | None = None,
    ) -> AsyncGenerator[News, None]:
        self.predicted.append(predicted_output)
        self.submitted.append((list(prompt), params))
        self.ranks.append((priority, tenant))
        self.asked_adapters.append(adapter)
        if self.shed:
            yield News(id=request_id, finish="shed", error="late", account={"retry_after_s": 7.25, "late": 1})
            return
        if self.refuse is not None:
            raise self.refuse
        self.open.add(request_id)
        try:
            if self.gate is not None:
                await self.gate.wait()
            for news in self._script(request_id, list(prompt), params):
                await asyncio.sleep(0)
                offered = at_once if news.is_bare else None
                if offered is None or not offered.take(news.choice, news.new_tokens, WallClock().now()):
                    yield news  # what else was taken stays owed, as between the writes of one step
        finally:
            self.open.discard(request_id)

    def _script(self, request_id: str, prompt: list[int], params: SamplingParams) -> list[News]:
        ids = [*self.tokenizer.encode(self.answer, add_special=False), self.tokenizer.eos_token_id or 0]
        limit = len(ids) if params.max_tokens is None else min(len(ids), params.max_tokens)
        news: list[News] = []
        for index in range(limit):
            for choice in range(params.n):
                last = index == limit - 1
                broken = self.fail_after is not None and index >= self.fail_after
                ended = index == len(ids) - 1
                finish = "error" if broken else ("stop" if ended else "length") if last else None
                first = index == 0 and choice == 0 and params.prompt_logprobs is not None
                news.append(
                    News(
                        id=request_id,
                        choice=choice,
                        new_tokens=[] if broken else [ids[index]],
                        finish=finish,
                        error="the step failed" if broken else None,
                        num_prompt=len(prompt),
                        num_cached=3,
                        logprobs=[]
                        if broken or params.logprobs is None
                        else [Logprobs(token_ids=[ids[index], 5], logprobs=[-0.5, float("-inf")], rank=0)],
                        prompt_logprobs=[
                            (at, Logprobs(token_ids=[prompt[at]], logprobs=[-1.0], rank=2))
                            for at in range(params.prompt_logprobs_from, len(prompt))
                        ]
                        if first
                        else [],
                        times_s=TIMES | ({"finished": 3.0} if last else {}) if last or not index else {},
                        account=ACCOUNT if last else {},
                        pooled=VECTOR if last and not broken and params.pool is not None else b"",
                    )
                )
        return news

    def abort(self, request_id: str, choice: int | None = None, keep_tokens: int | None = None) -> None:
        self.aborts.append((choice, keep_tokens))

    async def load_adapter(self, name: str, path: str, *, replace: bool) -> Mapping[str, Any]:
        if name in self.adapters and not replace:
            raise RequestError(f"an adapter is loaded as {name!r}", param="lora_name")
        self.adapters[name] = path
        return {"name": name, "path": path}

    async def unload_adapter(self, name: str) -> None:
        if self.adapters.pop(name, None) is None:
            raise RequestError(f"no adapter is loaded as {name!r}", param="lora_name", status=404)

    async def lost(self) -> str:
        """As an EngineKeeper's: there is always an engine."""
        return await asyncio.get_running_loop().create_future()

    async def ask(self, what: str) -> Mapping[str, Any]:
        assert what == "stats"
        return self.stats


def keyring(*keys: str) -> Keys:
    """Keys without names or limits."""
    return Keys(plain(key) for key in keys)


@cache
def fake_text() -> TextLayer:
    """A vocabulary of bytes with a template."""
    return text_from_gguf({**byte_level_metadata(), "tokenizer.chat_template": TEMPLATE})


def fake_api(
    answer: str = "hello", text: TextLayer | None = None, *, takes_priority: bool = False
) -> tuple[OpenAI, FakeEngine]:
    """The endpoints of a model "m" with a context of 256 tokens over a fake engine."""
    text = text or fake_text()
    engine = FakeEngine(fake_text(), answer)
    served = Served(
        card=ModelCard(id="m", created=1, root="somewhere", max_model_len=CONTEXT),
        vocab_size=259,
        max_request_tokens=CONTEXT - 56,
        text=text,
        takes_priority=takes_priority,
        defaults={"temperature": 0.5},
    )
    return OpenAI(served, engine, WallClock()), engine
