"""The Python API in vLLM's shape: LLM for batches, AsyncLLM for streams, the engine in this process."""

import asyncio
import gc
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError, RequestError, RidgelineError
from ridgeline.engine.adapters import load_all, need_adapters, seated
from ridgeline.engine.build import Engine, build_engine
from ridgeline.engine.compiling import need_grammars
from ridgeline.engine.offline import Offline
from ridgeline.engine.outputs import OutputBuilder, RequestOutput
from ridgeline.engine.requests import EncodedRequest, Messages, Prompt, encode_chats, encode_prompts
from ridgeline.engine.threaded import LoopThread
from ridgeline.engine.wire import token_array
from ridgeline.frontend.files import load_text
from ridgeline.frontend.generation import Generation
from ridgeline.frontend.protocol import News
from ridgeline.frontend.text import TextLayer
from ridgeline.models.resolve import open_model
from ridgeline.schedule.request import NewRequest
from ridgeline.spec.sampling import SamplingParams

Item = list[News] | Exception
Params = SamplingParams | Sequence[SamplingParams] | None


class _Assembled:
    """A model ready to run: what LLM and AsyncLLM share. default_policy: who runs when, unless it is said."""

    default_policy: ClassVar[str] = "fcfs"

    def __init__(
        self,
        model: str | None = None,
        *,
        tokenizer: str | None = None,
        load_format: str = "auto",
        revision: str | None = None,
        hf_overrides: Mapping[str, object] | None = None,
        device: str = "auto",
        dtype: str = "auto",
        kv_cache_dtype: str = "auto",
        quantization: str | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int | None = None,
        kv_cache_bytes: int | None = None,
        host_kv_bytes: int = 0,
        kv_watermark_bytes: int = 0,
        block_tokens: int | None = None,
        prefix_caching: bool = True,
        cache: bool = True,
        policy: str | None = None,
        ttft_s: float | None = None,
        tpot_s: float | None = None,
        speculate: str | None = None,
        speculate_max: int = 4,
        jump_ahead: bool = True,
        lora: Sequence[tuple[str, str]] = (),
        max_loras: int | None = None,
        max_lora_rank: int | None = None,
        threads: int | None = None,
        seed: int = 0,
        deterministic: bool = False,
        trace_file: str | None = None,
        trace_texts: bool = False,
        chat_template: str | None = None,
        progress: bool = True,
    ) -> None:
        """Load a model; the parameters are EngineConfig's, but that policy None is `default_policy`. The
        errors say what to change."""
        config = EngineConfig(
            model=model,
            tokenizer=tokenizer,
            load_format=load_format,
            revision=revision,
            hf_overrides=hf_overrides,
            device=device,
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            quantization=quantization,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            kv_cache_bytes=kv_cache_bytes,
            host_kv_bytes=host_kv_bytes,
            kv_watermark_bytes=kv_watermark_bytes,
            block_tokens=block_tokens,
            prefix_caching=prefix_caching,
            cache=cache,
            policy=self.default_policy if policy is None else policy,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            speculate=speculate,
            speculate_max=speculate_max,
            jump_ahead=jump_ahead,
            lora=tuple(lora),
            max_loras=max_loras,
            max_lora_rank=max_lora_rank,
            threads=threads,
            seed=seed,
            deterministic=deterministic,
            trace_file=trace_file,
            trace_texts=trace_texts,
            chat_template=chat_template,
            progress=progress,
        )
        self._start(config)

    @classmethod
    def from_config(cls, config: EngineConfig) -> Self:
        """The same from a config object, by the policy that it names."""
        made = cls.__new__(cls)
        made._start(config)
        return made

    def _start(self, config: EngineConfig) -> None:
        self.config = config
        self._clock = WallClock()
        self._engine: Engine = build_engine(config, serving=False)
        self.text: TextLayer = load_text(
            self._engine.checkpoint.path, tokenizer=config.tokenizer, chat_template=config.chat_template
        )
        self.default_params = self._engine.default_params
        self._spec, self._info = self._engine.spec, self._engine.info

    @property
    def info(self) -> Mapping[str, Any]:
        """What the engine is and how it came to be: sizes, choices and the seconds of its start."""
        return self._info

    def _encoded(self, prompts: Prompt | Sequence[Prompt], params: Params) -> list[EncodedRequest]:
        requests = encode_prompts(self.text, prompts, self.default_params if params is None else params)
        return self._compiled(requests)

    def _encoded_chats(
        self,
        messages: Messages | Sequence[Messages],
        params: Params,
        tools: Sequence[Any] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any] | None,
    ) -> list[EncodedRequest]:
        requests = encode_chats(
            self.text,
            messages,
            self.default_params if params is None else params,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            variables=variables,
        )
        return self._compiled(requests)

    def _compiled(self, requests: list[EncodedRequest]) -> list[EncodedRequest]:
        """The same, once their grammars are known to the executor. RequestError for one that is not
        followed."""
        for grammar in {request.params.grammar for request in requests} - {None}:
            need_grammars(self._engine.grammars).compile(str(grammar))
        return requests


class LLM(_Assembled):
    """Offline generation, so that all answers are there soonest. Not for several event loops; a second thread
    waits for its turn."""

    default_policy = "throughput"

    def _start(self, config: EngineConfig) -> None:
        super()._start(config)
        self._offline: Offline | None = self._made()

    def _made(self) -> Offline:
        engine = self._engine
        return Offline(engine.loop, self.text.tokenizer, self._clock, engine.adapters)

    @property
    def is_sleeping(self) -> bool:
        """True between `sleep` and `wake_up`: there is no engine."""
        return self._offline is None

    def _awake(self) -> Offline:
        if self._offline is None:
            raise RequestError("the model sleeps: call wake_up first", code="sleeping", status=503)
        return self._offline

    def sleep(self, level: int = 1) -> None:
        """Give back all memory of the cache and the weights until `wake_up`. level: 1 or 2, the same here."""
        if level not in (1, 2):
            raise ConfigError(f"sleep has no level {level}: use 1 or 2")
        if not self.is_sleeping:
            self._offline = None
            self._engine.close()
            del self._engine
            gc.collect()  # an engine's parts refer to one another

    def wake_up(self) -> None:
        """Load the weights again, and the adapters of the start, with an empty cache."""
        if self.is_sleeping:
            self._engine = build_engine(self.config)
            self._info = self._engine.info
            self._offline = self._made()

    def reload_weights(self, path: str) -> None:
        """Go on with the weights of another checkpoint of the same shape and an empty cache; from sleep too.

        Raises ConfigError for another shape and CheckpointError for weights that cannot be loaded; those
        before stay then.
        """
        before, config = self.config, replace(self.config, model=path, revision=None)
        found = open_model(
            path, revision=None, load_format=config.load_format, overrides=config.hf_overrides
        )
        if not self._spec.same_shape(found.spec):
            raise ConfigError(
                f"{path} has another shape ({found.spec.num_params:,} parameters) than this model "
                f"({self._spec.num_params:,}): make another LLM for it"
            )
        self.sleep()
        self.config = config
        try:
            self.wake_up()
        except RidgelineError:
            self.config = before
            self.wake_up()
            raise

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: Params = None,
        *,
        priority: int = 0,
        adapter: str = "",
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Continue prompts, all in one batch; the outputs are in the prompts' order.

        prompts: a text, token ids, or a list of either. params: for all, or one for each; None takes the
        model's own defaults. adapter: the name of a loaded one. progress: show a bar; None as the engine was
        told. Raises RequestError before anything runs.
        """
        offline = self._awake()
        return self._run(offline, self._encoded(prompts, params), priority, adapter, progress)

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: Params = None,
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        template_variables: Mapping[str, Any] | None = None,
        priority: int = 0,
        adapter: str = "",
        progress: bool | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them, rendered by the model's chat template."""
        offline = self._awake()
        requests = self._encoded_chats(messages, params, tools, add_generation_prompt, template_variables)
        return self._run(offline, requests, priority, adapter, progress)

    def _run(
        self, offline: Offline, requests: list[EncodedRequest], priority: int, adapter: str,
        progress: bool | None,
    ) -> list[RequestOutput]:  # fmt: skip
        shown = self.config.progress if progress is None else progress
        return offline.run(requests, priority=priority, progress=shown, adapter=adapter)

    def load_adapter(self, name: str, path: str) -> None:
        """Load a LoRA adapter beside those that it started with. ConfigError when it cannot be."""
        self._awake()
        load_all(need_adapters(self._engine.adapters, to_change=True), [(name, path)])

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. RequestError for one that is not loaded."""
        self._awake()
        need_adapters(self._engine.adapters, to_change=True).unload(name)

    def stats(self) -> Mapping[str, Any]:
        """The loop's gauges and counters."""
        self._awake()
        return self._engine.loop.stats()

    def close(self) -> None:
        """Give back threads and memory."""
        if not self.is_sleeping:
            self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class AsyncLLM(_Assembled):
    """Streams of outputs for asyncio; the engine runs in a thread of this process."""

    def _start(self, config: EngineConfig) -> None:
        super()._start(config)
        self._thread = LoopThread(self._engine.loop)

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        adapter: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """The output so far, whenever it grew, until it is finished. Closing the generator aborts it."""
        [request] = self._encoded(prompt, params)
        async for output in self._stream(request, request_id, priority, adapter):
            yield output

    async def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        template_variables: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        priority: int = 0,
        adapter: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """As `generate`, for a conversation."""
        [request] = self._encoded_chats(messages, params, tools, add_generation_prompt, template_variables)
        async for output in self._stream(request, request_id, priority, adapter):
            yield output

    async def _stream(
        self, request: EncodedRequest, request_id: str | None, priority: int, adapter: str
    ) -> AsyncGenerator[RequestOutput, None]:
        name = request_id or uuid.uuid4().hex
        here, queue = asyncio.get_running_loop(), asyncio.Queue[Item]()
        generation = Generation(self.text.tokenizer, request.params)
        builder = OutputBuilder(name, request.text, request.token_ids, generation)
        new = NewRequest(
            id=name,
            prompt=token_array(request.token_ids),
            params=request.params,
            priority=priority,
            arrived_s=self._clock.now(),
        )
        new = seated(self._engine.adapters, new, adapter)
        self._thread.submit(new, lambda news: _hand_over(here, queue, news))
        try:
            while not generation.engine_done:
                news = await queue.get()
                if isinstance(news, Exception):
                    raise news
                for one in news:
                    delta = generation.feed(one)
                    if delta.abort_keep is not None:
                        self._thread.abort(name, one.choice, delta.abort_keep)
                if not generation.finished or generation.engine_done:
                    yield builder.build()
        finally:
            if not generation.engine_done:
                self._thread.abort(name)

    async def abort(self, request_id: str) -> None:
        """End a request; its generator gives what there is, with finish_reason abort."""
        self._thread.abort(request_id)

    def close(self) -> None:
        """Stop the thread; streams that still run raise EngineDeadError."""
        self._thread.close()
        self._engine.close()


def _hand_over(loop: asyncio.AbstractEventLoop, queue: "asyncio.Queue[Item]", item: Item) -> None:
    loop.call_soon_threadsafe(queue.put_nowait, item)
