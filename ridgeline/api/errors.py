"""Errors as bodies: every refusal in OpenAI's form, with a type by status and a code for programs; below
/v1/messages in Anthropic's, with the same two beside.

Knows no request field; whoever refuses raises base.errors.RequestError.
"""

import logging
from collections.abc import Mapping

import msgspec

from ridgeline.base.errors import EngineDeadError, RequestError

_LOG = logging.getLogger("ridgeline.server")
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "service_unavailable",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 500: "api_error", 503: "overloaded_error",
}  # fmt: skip
_CODES = {
    400: "invalid_value",
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    409: "conflict",
    413: "request_too_large",
    415: "unsupported_media_type",
    429: "rate_limit_exceeded",
    500: "internal_error",
    503: "unavailable",
}


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong. type: by status. param: the field at fault, or null. code: a short word for programs.
    """

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The one body of every answer that is not a success."""

    error: ErrorDetail


class AnthropicErrorBody(ErrorBody, frozen=True, kw_only=True):
    """The same, marked as Anthropic marks what it sends."""

    type: str = "error"


def error_body(error: RequestError) -> ErrorBody:
    """The body of a refusal."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    code = error.code or _CODES.get(error.status, "error")
    return ErrorBody(error=ErrorDetail(message=str(error), type=kind, param=error.param, code=code))


def anthropic_body(error: RequestError) -> AnthropicErrorBody:
    """The same to Anthropic's clients."""
    kind = _ANTHROPIC_TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return AnthropicErrorBody(error=msgspec.structs.replace(error_body(error).error, type=kind))


def body_at(path: str, error: RequestError) -> ErrorBody:
    """The body of a refusal in the form that clients of this path read."""
    messages = path == "/v1/messages" or path.startswith("/v1/messages/")
    return anthropic_body(error) if messages else error_body(error)


def as_request_error(error: Exception) -> RequestError:
    """Any failure as a refusal with a status; what we did not foresee is a 500 that shows nothing of the
    inside.
    """
    if isinstance(error, RequestError):
        return error
    if isinstance(error, EngineDeadError):
        return RequestError(f"the engine is not running: {error}", code="engine_dead", status=503)
    _LOG.error("request failed", exc_info=error)
    return RequestError("an internal error ended this request; the server's log has it", status=500)


def unsupported(param: str, what: str) -> RequestError:
    """A feature of the API that this server does not have."""
    return RequestError(f"{param}: {what}", param=param, code="unsupported_parameter")


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """The same refusal in a dialect. names: what a part of a field's path is called there."""
    if error.param is None:
        return error
    param, text = error.param, str(error)
    for name, other in names.items():
        param = param.replace(name, other)
    if text.startswith(error.param):
        text = param + text[len(error.param):]
    return RequestError(
        text, param=param, code=error.code, status=error.status, retry_after_s=error.retry_after_s
    )
