"""Tool calls over HTTP: what a body asks of tools, and a choice's text as content and calls."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from msgspec import UNSET

from ridgeline.api.answers import CallFunction, ToolCallAnswer
from ridgeline.api.served import Served
from ridgeline.api.types import ChatRequest
from ridgeline.base.errors import invalid_value
from ridgeline.frontend.tools.call import Event, Tool, read_tools
from ridgeline.frontend.tools.formats import CallFormat
from ridgeline.frontend.tools.grammar import AUTO, REQUIRED, call_grammar
from ridgeline.frontend.tools.parts import AnswerReader


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """What a chat may call. grammar: of answers that must match one. shows_control: the form's opener is a
    control token, which the text must show."""

    tools: Sequence[Tool]
    form: CallFormat
    grammar: str | None
    shows_control: bool


def tool_use(request: ChatRequest, served: Served) -> ToolUse | None:
    """None where the chat can call nothing. RequestError for tools or a choice that make no sense."""
    tools, choice = read_tools(request.tools), _choice(request.tool_choice, bool(request.tools))
    if choice not in (AUTO, REQUIRED, "none") and choice not in {tool.name for tool in tools}:
        raise invalid_value("tool_choice", f"there is no tool {choice!r:.80} among the tools")
    if choice == "none":
        return None
    if not tools:
        raise invalid_value("tool_choice", f"{choice!r:.80} needs tools")
    form, tokenizer = served.tool_form, served.text.need_tokenizer("tools")
    opener_id = tokenizer.marker_id(form.opener)
    grammar = call_grammar(
        tools, form, choice=choice, parallel=request.parallel_tool_calls is not False, opener_id=opener_id
    )
    hidden = opener_id is not None and tokenizer.is_special(opener_id)
    form = replace(form, forced=choice != AUTO)
    return ToolUse(tools=tools, form=form, grammar=grammar, shows_control=hidden)


def _choice(given: str | Mapping[str, object] | None, has_tools: bool) -> str:
    if given is None:
        return AUTO if has_tools else "none"
    if isinstance(given, str):
        if given not in (AUTO, REQUIRED, "none"):
            raise invalid_value(
                "tool_choice", f"{given!r:.80} is not known: use auto, none, required or a function"
            )
        return "none" if given == AUTO and not has_tools else given
    function = given.get("function")
    if given.get("type") != "function" or not isinstance(function, Mapping) or \
            not isinstance(name := function.get("name"), str):  # fmt: skip
        raise invalid_value("tool_choice", 'name a function: {"type": "function", "function": {"name": ...}}')
    return name


@dataclass(slots=True)
class Told:
    """What the events of a text, or of a piece of it, come to."""

    text: str = ""
    reasoning: str = ""
    calls: list[ToolCallAnswer] = field(default_factory=list)


class ChoiceReader:
    """One choice's text as thoughts, content and calls, and the ids of its calls; made as an AnswerReader."""

    def __init__(self, form: CallFormat | None, thought: bool | None) -> None:
        self._form, self._thought = form, thought
        self._reader = AnswerReader(form, thought)
        self._ids: list[str] = []
        self._broke_off = False

    @property
    def has_called(self) -> bool:
        """Whether there are calls, all of them whole."""
        return bool(self._ids) and not self._broke_off

    def whole(self, text: str) -> Told:
        """Of the whole text at once, its calls with the ids of the streamed ones."""
        return self._read(AnswerReader(self._form, self._thought), text, last=True, whole=True)

    def piece(self, text: str, *, last: bool) -> Told:
        """Of the next piece, in the form of a stream's deltas."""
        return self._read(self._reader, text, last=last, whole=False)

    def _read(self, reader: AnswerReader, text: str, *, last: bool, whole: bool) -> Told:
        events = list(reader.feed(text, last=last))
        self._broke_off = reader.broke_off
        return self._told(events, whole=whole)

    def _told(self, events: Sequence[Event], *, whole: bool) -> Told:
        told, parts = Told(text="".join(event.text for event in events)), dict[int, list[Event]]()
        told.reasoning = "".join(event.reasoning for event in events)
        for event in events:
            if event.call is not None:
                parts.setdefault(event.call, []).append(event)
        for call, own in parts.items():
            name = next((event.name for event in own if event.name is not None), None)
            if call == len(self._ids):
                self._ids.append(f"call_{uuid.uuid4().hex[:24]}")
            told.calls.append(ToolCallAnswer(
                index=UNSET if whole else call,
                id=UNSET if name is None else self._ids[call],
                type=UNSET if name is None else "function",
                function=CallFunction(
                    name=UNSET if name is None else name,
                    arguments="".join(event.arguments for event in own)),
            ))  # fmt: skip
        return told
