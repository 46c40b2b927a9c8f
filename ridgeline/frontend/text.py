"""The text layer of one model: prompts and chats to token ids. Torch-free.

Owns the rule that only a template makes control tokens: what a user typed is always plain text.
Knows no request and no engine; see generation.py for the way back.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.base.errors import RequestError
from ridgeline.frontend.messages import normalize_messages
from ridgeline.frontend.template import ChatTemplate
from ridgeline.frontend.tokenizer import Tokenizer
from ridgeline.frontend.tools.call import read_tools
from ridgeline.frontend.tools.formats import format_of
from ridgeline.frontend.tools.prompt import knows_tools, with_tools

# Noncharacters mean nothing in any text; one that occurs nowhere in a request can mark a place in it.
_GUARDS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A rendered conversation: its text and the token ids that are sent."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLayer:
    """tokenizer None: the model takes and gives token ids only. template None: no chat."""

    tokenizer: Tokenizer | None = None
    template: ChatTemplate | None = None

    def need_tokenizer(self, param: str = "prompt") -> Tokenizer:
        """The tokenizer. Raises RequestError when there is none."""
        if self.tokenizer is None:
            raise RequestError(
                "this model has no tokenizer: send token ids, or start with --tokenizer", param=param
            )
        return self.tokenizer

    def encode_prompt(self, prompt: str | Sequence[int]) -> list[int]:
        """Token ids of a completion's prompt. Text may spell control tokens; ids pass as they are."""
        if isinstance(prompt, str):
            return self.need_tokenizer().encode(prompt)
        return list(prompt)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> ChatPrompt:
        """Render a conversation and encode it; the template's own start token is the only one.

        Control tokens come from the template alone. Where a user spells one, in any string of the request, a
        noncharacter is put inside it: it passes through the template's cutting and trimming unrecognised, and
        the noncharacter goes when the text between the template's own control tokens is encoded as plain.
        """
        tokenizer = self.need_tokenizer("messages")
        if self.template is None:
            raise RequestError(
                "this model has no chat template: use completions, or start with --chat-template",
                param="messages",
            )
        clean: Any = normalize_messages(messages)
        if tools and not knows_tools(self.template.sources):
            clean, tools = with_tools(clean, read_tools(tools), format_of(self.template.sources)), None
        given: Any = (clean, list(tools or []), dict(variables or {}))
        control = tokenizer.control_spellings
        guard = None
        if control is not None and any(control.search(text) for text in _strings(given)):
            guard = _unused_guard(given)
            given = _break_control_tokens(given, control, guard)
        text = self.template.render(
            given[0], tools=given[1] or None, add_generation_prompt=add_generation_prompt, variables=given[2]
        )
        if guard is None:
            return ChatPrompt(text=text, token_ids=tokenizer.encode(text, add_special=False))
        return ChatPrompt(text=text.replace(guard, ""), token_ids=tokenizer.encode_guarded(text, guard))


def _break_control_tokens(value: Any, control: re.Pattern[str], guard: str) -> Any:
    def broken(match: re.Match[str]) -> str:
        return match.group()[0] + guard + match.group()[1:]

    try:
        return _map_strings(value, lambda text: control.sub(broken, text))
    except RecursionError:
        raise RequestError("the messages or tools are nested too deeply", param="messages") from None


def _strings(value: Any) -> list[str]:
    """Every string inside nested lists and objects, keys included."""
    found: list[str] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, Mapping):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
    return found


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map_strings(key, change): _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_strings(item, change) for item in value]
    return value


def _unused_guard(value: Any) -> str:
    used = set().union(*map(set, _strings(value)))
    for guard in _GUARDS:
        if guard not in used:
            return guard
    raise RequestError(
        "the messages use every Unicode noncharacter beside a control token's spelling", param="messages"
    )
