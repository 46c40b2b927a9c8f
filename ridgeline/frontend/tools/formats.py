"""How families of models write tool calls. Adding one is one line in the table."""

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.base.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """Calls are JSON objects with a name and, under `arguments`, an object.

    opener: stands before them, "" where an answer that begins with a brace is a call. closer: behind each.
    listed: all calls stand in one JSON list. separator: between calls. named: a call may also be written as
    opener, name, arguments. forced: the answer must be calls, so that one that broke off is no text.
    """

    opener: str
    closer: str
    arguments: str
    separator: str
    listed: bool = False
    named: bool = False
    forced: bool = False

    def before(self, name: str) -> str:
        """What comes between the opener and the arguments of a call."""
        gap = "\n" if self.closer else ""
        return f'{gap}{{"name": "{name}", "{self.arguments}": '

    @property
    def after(self) -> str:
        """What comes behind the arguments of a call."""
        return "}\n" + self.closer if self.closer else "}"


HERMES = CallFormat(opener="<tool_call>", closer="</tool_call>", arguments="arguments", separator="\n")
LLAMA = CallFormat(opener="", closer="", arguments="parameters", separator="; ")
MISTRAL = CallFormat(opener="[TOOL_CALLS]", closer="", arguments="arguments", separator=", ", listed=True,
                     named=True)  # fmt: skip
FORMATS: Table[CallFormat] = Table("tool format", {"hermes": HERMES, "llama": LLAMA, "mistral": MISTRAL})


def format_of(templates: Mapping[str, str]) -> CallFormat:
    """The format that a model's chat templates teach; Hermes' where they teach none."""
    source = "".join(templates.values())
    if "<tool_call>" in source:
        return HERMES
    if "[TOOL_CALLS]" in source:
        return MISTRAL
    return LLAMA if "python_tag" in source or '"parameters": ' in source else HERMES
