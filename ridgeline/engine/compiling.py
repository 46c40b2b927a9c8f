"""Requests whose grammar is being compiled, beside the loop: nobody else waits for a large schema."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ridgeline.base.errors import RequestError
from ridgeline.frontend.protocol import Submit
from ridgeline.runner.grammar import Grammars
from ridgeline.schedule.request import NewRequest

THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A request that need not wait any more, and how it was asked for. error: why it cannot run."""

    client: bytes
    request: NewRequest
    submit: Submit
    error: Exception | None


class Compiling:
    """Takes requests with a grammar, gives them back once it is compiled. Called by one thread."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._threads = ThreadPoolExecutor(THREADS, "compile")
        self._waiting: dict[str, tuple[bytes, NewRequest, Submit, Future[Any]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def add(self, client: bytes, request: NewRequest, submit: Submit) -> None:
        """RequestError where no grammar can be followed."""
        assert request.params.grammar is not None
        compiling = self._threads.submit(need_grammars(self._grammars).compile, request.params.grammar)
        self._waiting[request.id] = client, request, submit, compiling

    def drop(self, client: bytes, request_id: str | None = None) -> None:
        """The client wants this request no more; None: any of its."""
        for name, (owner, *_) in list(self._waiting.items()):
            if owner == client and request_id in (None, name):
                del self._waiting[name]

    def take(self) -> list[Compiled]:
        """Those that are done, in the order they came."""
        done = [name for name, (*_, compiling) in self._waiting.items() if compiling.done()]
        taken = []
        for name in done:
            client, request, submit, compiling = self._waiting.pop(name)
            error = compiling.exception()
            taken.append(Compiled(
                client=client, request=request, submit=submit,
                error=error if isinstance(error, Exception) else None))
        return taken

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


def need_grammars(grammars: Grammars | None) -> Grammars:
    """RequestError where the executor follows none."""
    if grammars is None:
        raise RequestError("structured output is not there yet on this device: leave out what asks for it "
                           "(response_format, structured_outputs, grammar), or use device cpu",
                           param="grammar", code="unsupported")
    return grammars
