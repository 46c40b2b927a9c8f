"""The generating endpoints from body to answer, without HTTP; other dialects of chats answer through them.

A refusal is raised before the first event exists; what fails later is told inside the stream.
"""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from ridgeline.account.caller import Caller
from ridgeline.account.clocks import ChoiceTimes, RequestClock
from ridgeline.account.kept import Accounts
from ridgeline.account.live import Live
from ridgeline.account.metrics import Metrics
from ridgeline.api.admission import Admission
from ridgeline.api.answers import CachedTokens, ModelCard, PromptUsage
from ridgeline.api.chat import ChatForm
from ridgeline.api.completions import CompletionForm
from ridgeline.api.errors import as_request_error, renamed, unsupported
from ridgeline.api.form import Form
from ridgeline.api.job import Engine, Job, Piece, Push
from ridgeline.api.outlet import Outlet
from ridgeline.api.params import chat_params, completion_params
from ridgeline.api.parse import parse
from ridgeline.api.prompts import Prompt, beside, chat_prompt, check_fits, completion_prompts
from ridgeline.api.resume import Streams
from ridgeline.api.served import Served
from ridgeline.api.stream import Started
from ridgeline.api.structured import field_of, grammar_of
from ridgeline.api.tools import ToolUse, tool_use
from ridgeline.api.types import ChatRequest, CompletionRequest, Generate
from ridgeline.base.clock import Clock
from ridgeline.base.errors import RequestError, invalid_value
from ridgeline.frontend.structure import BROKEN
from ridgeline.frontend.tools.thinking import Tags, after_thought, is_open, need_tags
from ridgeline.schedule.targets import NO_TARGETS, Targets
from ridgeline.spec.sampling import SamplingParams

_LOG = logging.getLogger("ridgeline.server")
Reply = bytes | Started[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A chat as the model sees it. model: the name that it asks. use: what it may call. thought: whether its
    prompt has opened a thought; None for a model without thoughts."""

    model: str
    prompt: Prompt
    use: ToolUse | None
    thought: bool | None


FormOf = Callable[[Job, Asked], Form]


class OpenAI:
    """The generating endpoints of one served model."""

    def __init__(self, served: Served, engine: Engine, clock: Clock, targets: Targets = NO_TARGETS) -> None:
        self.served = served
        self.engine = engine
        self.adapters: dict[str, ModelCard] = {}  # by name, beside the served model
        self.admission = Admission()
        self.metrics = Metrics(served.card.id)
        self.accounts = Accounts()
        self.streams = Streams()
        self.live = Live(clock, targets)
        self.listeners = [self.live.ended]  # hear of each choice that has ended
        self._clock = clock

    async def completion(self, body: bytes, caller: Caller | None = None) -> Reply:
        """/v1/completions. Raises RequestError, or EngineDeadError, before anything of the answer exists."""
        clock = self.arrived(caller)
        with self.admission.enter():
            request = parse(body, CompletionRequest, self.served.limits)
            model = self.card(request.model).id
            served = self.served
            params = completion_params(
                request, served.vocab_size, served.defaults, await grammar_of(request)
            )
            self._check_served(request, params)
            prompts = await completion_prompts(served, request.prompt, params.n)
            job = self.job(
                prompts, params, clock, model, priority=request.priority, cache_salt=request.cache_salt,
                predicted_output=request.predicted_output_tokens,
            )
            return await self._reply(CompletionForm(job, model, request), request, clock)

    async def chat(self, body: bytes, caller: Caller | None = None) -> Reply:
        """/v1/chat/completions. Raises as `completion` does."""
        clock = self.arrived(caller)
        with self.admission.enter():
            request = parse(body, ChatRequest, self.served.limits)

            def form(job: Job, asked: Asked) -> Form:
                return ChatForm(job, asked.model, request, use=asked.use, thought=asked.thought)

            return await self.answer(request, clock, form, len(body))

    async def answer(self, request: ChatRequest, clock: RequestClock, form: FormOf, size: int) -> Reply:
        """A chat's answer, written as `form` does; size: of its body, in bytes. Raises as `completion` does.
        """
        asked = await self.asked(request, size)
        use, served = asked.use, self.served
        params = chat_params(
            request, served.vocab_size, served.defaults, _one(await grammar_of(request), use)
        )
        if use is not None and use.shows_control:
            params = replace(params, skip_special_tokens=False)
        self._check_served(request, params)
        check_fits(asked.prompt.token_ids, served, "messages")
        budgets = request.thinking_budget, clock.caller.thinking_budget
        params = replace(params, grammar=_with_thought(params.grammar, budgets, served, asked.thought))
        job = self.job(
            [asked.prompt], params, clock, asked.model, priority=request.priority,
            cache_salt=request.cache_salt, predicted_output=request.predicted_output_tokens,
        )
        return await self._reply(form(job, asked), request, clock)

    async def asked(self, request: ChatRequest, size: int) -> Asked:
        """What a chat asks of the model. Raises RequestError."""
        model = self.card(request.model).id
        use = await beside(size, partial(tool_use, request, self.served))
        prompt = await chat_prompt(
            self.served.text,
            request.messages,
            add_generation_prompt=request.add_generation_prompt,
            variables=request.chat_template_kwargs,
            tools=() if use is None else use.tools,
        )
        thought = is_open(prompt.text or "") if self.served.thinks else None
        return Asked(model=model, prompt=prompt, use=use, thought=thought)

    @property
    def cards(self) -> list[ModelCard]:
        """Of all that can be asked, the model itself first."""
        return [self.served.card, *self.adapters.values()]

    def comes_from(self, root: str) -> None:
        """From now on the model's weights are those that were found there."""
        card = msgspec.structs.replace(self.served.card, root=root)
        self.served = replace(self.served, card=card)

    def card(self, name: str | None) -> ModelCard:
        """The model of a name, or one of its adapters; no name means the model. RequestError for others."""
        if name is None or name == self.served.card.id:
            return self.served.card
        if name not in self.adapters:
            here = ", ".join(repr(card.id) for card in self.cards)
            raise RequestError(
                f"the model {name!r:.200} does not exist here; this server has {here:.1000}",
                param="model",
                code="model_not_found",
                status=404,
            )
        return self.adapters[name]

    def arrived(self, caller: Caller | None) -> RequestClock:
        """The clock of a request that is here now."""

        def ended(clock: RequestClock, choice: ChoiceTimes) -> None:
            for listener in self.listeners:
                listener(clock, choice)

        return RequestClock(self.metrics, self._clock.now(), caller, ended)

    def _check_served(self, request: Generate, params: SamplingParams) -> None:
        """Refuse what this model or this engine cannot do, whatever the prompt."""
        if params.n > self.served.limits.choices:
            raise invalid_value("n", f"{params.n} is more than {self.served.limits.choices} choices")
        if params.stop:
            self.served.text.need_tokenizer("stop")
        if params.grammar is not None:
            self.served.text.need_tokenizer(field_of(request))
        if request.priority and not self.served.takes_priority:
            raise unsupported(
                "priority", "requests are taken as they come here; start with --policy priority or slo"
            )

    def job(
        self, prompts: list[Prompt], params: SamplingParams, clock: RequestClock, model: str, *,
        priority: int | None = None, cache_salt: str | None = None, predicted_output: int | None = None,
    ) -> Job:  # fmt: skip
        """Prompts that are about to start. model: the name that they ask. Raises RequestError, status 429,
        when the key has none left."""
        clock.caller.use.prompt(sum(len(prompt.token_ids) for prompt in prompts))
        self.accounts.add(clock, len(prompts) * params.n)
        return Job(
            self.engine, self.served.text.tokenizer, prompts, params,
            priority=_priority(priority, clock.caller.priority), cache_salt=cache_salt or "",
            adapter="" if model == self.served.card.id else model,
            predicted_output=predicted_output,
        )  # fmt: skip

    async def done(self, job: Job, clock: RequestClock) -> None:
        """Run a job to its end. Raises RequestError when any of it is no answer."""
        async with aclosing(job.run(clock, self._clock.now)) as pieces:
            async for piece in pieces:
                _check_whole(piece, job)

    async def read(
        self, prompts: list[Prompt], params: SamplingParams, clock: RequestClock, model: str, *,
        cache_salt: str | None = None,
    ) -> tuple[Job, PromptUsage]:  # fmt: skip
        """Prompts that are read for themselves, run to their end. Raises as `job` and `done` do."""
        job = self.job(prompts, params, clock, model, cache_salt=cache_salt)
        await self.done(job, clock)
        num = sum(len(prompt.token_ids) for prompt in prompts)
        cached = CachedTokens(cached_tokens=sum(one.num_cached for one in job.generations))
        return job, PromptUsage(prompt_tokens=num, total_tokens=num, prompt_tokens_details=cached)

    async def _reply(self, form: Form, request: Generate, clock: RequestClock) -> Reply:
        try:
            if request.stream:
                outlet = Outlet()
                return await Started.of(self._events(form, request, clock, outlet), outlet)
            await self.done(form.job, clock)
        except RequestError as error:
            raise renamed(error, {"grammar": field_of(request)}) from None
        return form.whole()

    async def _events(
        self, form: Form, request: Generate, clock: RequestClock, outlet: Outlet
    ) -> AsyncGenerator[bytes, None]:
        sent, push = False, Push(outlet=outlet, written=form.events, frame=form.frame)
        with self.admission.enter():
            try:
                async with aclosing(form.job.run(clock, self._clock.now, push)) as pieces:
                    async for piece in pieces:
                        _check_whole(piece, form.job)
                        if body := form.events(piece.index, piece.delta):
                            sent = True
                            yield body
                yield form.end()
            except Exception as error:
                if not sent:
                    raise
                yield form.failure(renamed(as_request_error(error), {"grammar": field_of(request)}))


def _priority(asked: int | None, least: int | None) -> int:
    """A request may be later than its API key's priority, never sooner."""
    if asked is None or least is None:
        return asked or least or 0
    return max(asked, least)


def _one(structured: str | None, use: ToolUse | None) -> str | None:
    """The grammar of an answer, which tools and a structure cannot both say."""
    if structured is not None and use is not None:
        raise RequestError(
            'tools: the answer cannot be a call and have a structure too; set tool_choice "none", or leave '
            "out what asks for the structure",
            param="tools",
            code="invalid_value",
        )
    return structured if use is None else use.grammar


def _with_thought(
    grammar: str | None, budgets: tuple[int | None, int | None], served: Served, thought: bool | None
) -> str | None:
    """The grammar of an answer with what may come before it. budgets: of the request and of its key, of which
    the smaller holds. thought: as in Asked."""
    if thought is None:
        if budgets[0] is not None:
            raise unsupported("thinking_budget", "this model does not think before it answers; leave it out")
        return grammar
    budget = min((one for one in budgets if one is not None), default=None)
    if grammar is None and budget is None:
        return None
    tokenizer = served.text.need_tokenizer("thinking_budget")
    tags = Tags.of(tokenizer) if budget is None else need_tags(tokenizer)
    if tags is None:  # thoughts that no token marks: the answer begins at once
        return grammar
    return after_thought(grammar, tags, inside=thought, budget=budget)


def _check_whole(piece: Piece, job: Job) -> None:
    """A choice that the engine gave up is no answer."""
    finish, error = piece.delta.finish, piece.delta.error
    if finish == "shed":
        news = job.choice(piece.index).last_news
        given = None if news is None else (news.account or {}).get("retry_after_s")
        why = "the server is overloaded" if given is not None else "the server cannot keep a target"
        after_s = None if given is None else float(given)
        raise RequestError(f"{why}: {error}", code="overloaded", status=429, retry_after_s=after_s)
    if finish == "error" and error is not None and error.startswith(BROKEN):
        raise RequestError(error, param="grammar", code="invalid_grammar")
    if finish == "error":
        _LOG.error("the engine gave a request up: %s", error)
        raise RequestError(
            "the engine could not go on with this request; the server's log says why", status=500
        )
    if finish == "abort" and not job.cancelled:
        raise RequestError(
            "the request was ended because the server shuts down", code="shutting_down", status=503
        )
