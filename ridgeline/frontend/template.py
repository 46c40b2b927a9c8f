"""Chat templates: a model's own Jinja, run in an immutable sandbox. Torch-free.

Owns the Jinja environment and what a template may call. Knows no tokenizer: text.py makes ids.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, meta, nodes
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ridgeline.base.errors import ConfigError, RequestError

_OWN = frozenset(("messages", "tools", "add_generation_prompt"))


class ChatTemplate:
    """A compiled chat template, or several by name ("default", "tool_use").

    variables: names that it asks for beside messages, tools, add_generation_prompt and what stands here.
    tokens: what the template knows as bos_token, eos_token. now: the date for strftime_now. Raises
    ConfigError when the source is not Jinja.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        sources = {"default": source} if isinstance(source, str) else dict(source)
        if not sources:
            raise ConfigError("the chat template is empty: give one with --chat-template")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=_none_is_empty,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        try:
            self._templates = {name: environment.from_string(text) for name, text in sources.items()}
            asked = (meta.find_undeclared_variables(environment.parse(text)) for text in sources.values())
            self.variables = frozenset[str]().union(*asked) - _OWN.union(tokens or (), environment.globals)
        except TemplateSyntaxError as error:
            raise ConfigError(
                f"the chat template does not parse, line {error.lineno}: {error.message}; "
                "give another one with --chat-template"
            ) from None
        self.sources: Mapping[str, str] = sources
        self._tokens = dict(tokens or {})

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text for normalized messages.

        variables: more names for the template (enable_thinking). Raises RequestError for one that it does not
        ask for, and, param "messages", for whatever goes wrong inside: a template may refuse a chat.
        """
        for unknown in (variables or {}).keys() - self.variables:
            known = ", ".join(sorted(self.variables)) or "nothing"
            raise RequestError(
                f"chat_template_kwargs: the chat template asks for {known:.400}, not for {unknown!r:.80}",
                param="chat_template_kwargs", code="unsupported_parameter",
            )  # fmt: skip
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        template = self._templates.get(name) or next(iter(self._templates.values()))
        names = {
            **(variables or {}),
            **self._tokens,
            "messages": list(messages),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return template.render(names)
        except SecurityError as error:
            raise RequestError(
                f"the chat template is not allowed to do that: {error}", param="messages"
            ) from None
        except TemplateError as error:
            raise RequestError(
                f"the chat template refuses these messages: {error}", param="messages"
            ) from None
        except (
            TypeError,
            ValueError,
            KeyError,
            AttributeError,
            IndexError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise RequestError(
                f"the chat template cannot render these messages: {type(error).__name__}: {error}",
                param="messages",
            ) from None


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks words to train on; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012  (Jinja reads this class attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _none_is_empty(value: Any) -> Any:
    return "" if value is None else value


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML, which a model was never shown."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise TemplateError(message)
