"""Where requests come from before they have their arrivals: a trace's rows, or lengths drawn without end."""

from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.base.errors import ConfigError
from ridgeline.workload.offered import Offered

MOST_TOKENS = 1 << 24  # of a prompt or an answer: more than any context holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Requests in order. timed: their arrived_s mean something; else they are 0. about: what they are."""

    requests: Iterator[Offered]
    timed: bool
    about: str


def numbers(text: str, what: str, form: str) -> list[float]:
    """The numbers of a setting like "512,128" or "10-20,30-40", above 0 and as many as `form` has names.
    ConfigError says `form` when they are not."""
    wanted = len(form.replace("-", ",").split(","))
    words = text.replace("-", ",").split(",") if "-" in form else text.split(",")
    try:
        found = [float(word) for word in words]
    except ValueError:
        found = []
    if len(found) != wanted or not all(0 < number <= MOST_TOKENS for number in found):
        raise ConfigError(f"{what} {text!r}: write it like {form}, with numbers above 0 and at most "
                          f"{MOST_TOKENS}")
    return found
