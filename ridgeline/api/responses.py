"""/v1/responses, the request: OpenAI's newer dialect of a chat, read as one of ours, and the store behind it.

Owns what its fields mean in terms of ChatRequest; what those mean, and what is refused, is decided there.
"""

from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

from ridgeline.account.caller import Caller
from ridgeline.api.answers import to_json
from ridgeline.api.background import Background
from ridgeline.api.errors import renamed, unsupported
from ridgeline.api.form import Form
from ridgeline.api.job import Job
from ridgeline.api.openai import Asked, OpenAI, Reply
from ridgeline.api.parse import parse
from ridgeline.api.responses_form import ResponsesForm
from ridgeline.api.responses_store import ResponseStore, Stored
from ridgeline.api.responses_types import (
    DeletedResponse,
    Format,
    Item,
    NamedFunction,
    ResponsesRequest,
    TextPart,
)
from ridgeline.api.stream import Started
from ridgeline.api.types import ChatRequest, FunctionCall, Message, ToolCall
from ridgeline.base.errors import RequestError, invalid_value

_NAMES = {  # a chat's field: what it is called here
    ".function": "", "response_format": "text.format", "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens", "messages": "input",
}  # fmt: skip
_FIELDS = {  # of an item, by its type: those it must have, those it may
    "message": ({"role", "content"}, set[str]()),
    "function_call": ({"call_id", "name", "arguments"}, set[str]()),
    "function_call_output": ({"call_id", "output"}, set[str]()),
    "reasoning": (set[str](), {"content", "summary", "encrypted_content"}),
}  # fmt: skip


class Responses:
    """The endpoints, over those of the same model. A response that is being streamed, or made in the
    background, can be cancelled."""

    def __init__(self, api: OpenAI, store: ResponseStore | None = None, *, background: bool = True) -> None:
        """background: whether responses may be made there; a batch waits for each."""
        self._api = api
        self._store = store or ResponseStore()
        self._background = Background(self._store) if background else None
        self._running: WeakValueDictionary[tuple[str, str], ResponsesForm] = WeakValueDictionary()

    async def create(self, body: bytes, caller: Caller | None = None) -> Reply:
        """POST /v1/responses. Raises as OpenAI.completion does."""
        api, clock = self._api, self._api.arrived(caller)
        tenant = clock.caller.tenant
        request = parse(body, ResponsesRequest, api.served.limits)
        if request.background and request.store is False:
            raise invalid_value("background", "needs a response that is stored; leave store out")
        if request.background and self._background is None:
            raise invalid_value("background", "is not had in a batch, which waits for each; leave it out")
        turns = [*self._before(tenant, request), *_turns(request.input)]

        def keep(form: ResponsesForm, whole: bytes) -> None:
            self._running.pop((tenant, form.id), None)
            if request.store is not False:
                self._store.put(tenant, form.id, Stored(body=whole, turns=(*turns, form.turn())))

        async def answer(tell: Callable[[ResponsesForm], None]) -> Reply:
            def form(job: Job, asked: Asked) -> Form:
                made = ResponsesForm(job, asked.model, asked, request, keep)
                self._running[tenant, made.id] = made
                tell(made)
                return made

            with api.admission.enter():
                try:
                    return await api.answer(_chat(request, turns), clock, form, len(body))
                except RequestError as error:
                    raise renamed(error, _NAMES) from None

        if request.background and self._background is not None:
            begun = await self._background.begin(tenant, answer)
            known = clock.caller
            return self.follow(begun.id, known) if request.stream else self.retrieve(begun.id, known)
        made: list[ResponsesForm] = []
        reply = await answer(made.append)
        if isinstance(reply, bytes) or request.store is False:
            return reply
        return await Started.of(self._store.log(tenant, made[0].id, reply))

    def retrieve(self, response_id: str, caller: Caller) -> bytes:
        """GET /v1/responses/ID: a stored one, or one that is at work."""
        running = self._running.get((caller.tenant, response_id))
        if running is not None:
            return to_json(running.so_far())
        return self._store.get(caller.tenant, response_id).body

    def follow(self, response_id: str, caller: Caller, after: int = -1) -> Started[bytes]:
        """GET /v1/responses/ID?stream=true: the events after the one with this sequence number, also of one
        that is being streamed."""
        if (caller.tenant, response_id) not in self._running:
            self._store.get(caller.tenant, response_id)
        return self._store.follow(caller.tenant, response_id, after + 1)

    def cancel(self, response_id: str, caller: Caller) -> bytes:
        """POST /v1/responses/ID/cancel: ends one that is at work where it is."""
        running = self._running.get((caller.tenant, response_id))
        if running is None:
            self._store.get(caller.tenant, response_id)
            raise RequestError("this response has ended", param="response_id", code="response_ended")
        running.job.cancel()
        return to_json(running.body("cancelled"))

    def delete(self, response_id: str, caller: Caller) -> bytes:
        """DELETE /v1/responses/ID: a stored one is forgotten; what goes on from it keeps its own copy."""
        self._store.delete(caller.tenant, response_id)
        return to_json(DeletedResponse(id=response_id))

    def _before(self, tenant: str, request: ResponsesRequest) -> Sequence[Message]:
        if request.previous_response_id is None:
            return ()
        return self._store.get(tenant, request.previous_response_id, status=400).turns


def _chat(request: ResponsesRequest, turns: Sequence[Message]) -> ChatRequest:
    told = [] if request.instructions is None else [Message(role="system", content=request.instructions)]
    choice = request.tool_choice
    return ChatRequest(
        model=request.model,
        messages=[*told, *turns],
        stream=request.stream or request.background,
        max_tokens=request.max_output_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        tools=None if request.tools is None else [
            {"type": "function", "function": {
                "name": tool.name, "description": tool.description, "parameters": tool.parameters,
                "strict": bool(tool.strict)}}
            for tool in request.tools
        ],
        tool_choice={"type": "function", "function": {"name": choice.name}}
        if isinstance(choice, NamedFunction) else choice,
        parallel_tool_calls=request.parallel_tool_calls,
        response_format=_format(None if request.text is None else request.text.format),
    )  # fmt: skip


def _format(given: Format | None) -> dict | None:
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return {"type": "json_object"}
    if given.schema is None:
        raise invalid_value("text.format.schema", "belongs to type json_schema, which needs it")
    return {"type": "json_schema", "json_schema": {"name": given.name or "answer", "schema": given.schema}}


def _turns(given: str | Sequence[Item]) -> list[Message]:
    """Items as turns of a chat: calls and thoughts join the assistant's turn that they stand beside."""
    if isinstance(given, str):
        return [Message(role="user", content=given)]
    turns: list[Message] = []
    for number, item in enumerate(given):
        _check(item, f"input[{number}]")
        if item.type == "function_call_output":
            turns.append(Message(role="tool", tool_call_id=item.call_id, content=_text(item.output)))
        elif item.type == "message" and item.role != "assistant":
            turns.append(Message(role=item.role or "user", content=_text(item.content)))
        else:
            if not turns or turns[-1].role != "assistant":
                turns.append(Message(role="assistant", content=""))
            _join(turns[-1], item)
    if turns[-1].role == "assistant":
        raise unsupported("input", "the last item is the assistant's, and to go on with it is not supported")
    return turns


def _join(turn: Message, item: Item) -> None:
    text = _text(item.content)
    if item.type == "reasoning":
        turn.reasoning_content = (turn.reasoning_content or "") + text or None
    elif item.type == "message":
        turn.content = f"{turn.content or ''}{text}"
    else:
        function = FunctionCall(name=item.name or "", arguments=item.arguments or "{}")
        turn.tool_calls = [*(turn.tool_calls or ()), ToolCall(id=item.call_id, function=function)]


def _check(item: Item, where: str) -> None:
    must, may = _FIELDS[item.type]
    for name in item.__struct_fields__:
        given = getattr(item, name) is not None
        if name in must and not given:
            raise invalid_value(f"{where}.{name}", f"an item of type {item.type} needs it")
        if given and name not in must | may | {"type", "id", "status"}:
            raise invalid_value(f"{where}.{name}", f"does not belong to an item of type {item.type}")


def _text(content: str | Sequence[TextPart] | None) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content or ())
