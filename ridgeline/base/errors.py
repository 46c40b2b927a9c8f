"""Errors meant for users, apart from our own asserts. Each text names the one change that helps."""


class RidgelineError(ValueError):
    """A mistake that the user can mend; the message says how."""


class ConfigError(RidgelineError):
    """A flag or a checkpoint's config asks for something that we cannot do."""


class CheckpointError(RidgelineError):
    """A weight file is missing, cut short or wrong; the text names the file and the tensor."""


class RequestError(RidgelineError):
    """One request is refused at the door.

    param: the request's field at fault, None when no single field is. code: OpenAI's short code.
    retry_after_s: when it may be worth another try, None when nobody can tell.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None,
                 status: int = 400, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status
        self.retry_after_s = retry_after_s


class EngineDeadError(RuntimeError):
    """The engine process is gone or stuck; requests in flight cannot be finished."""


def invalid_value(param: str, what: str) -> RequestError:
    """A field whose value cannot be used; `what` says which can."""
    return RequestError(f"{param}: {what}", param=param, code="invalid_value")
