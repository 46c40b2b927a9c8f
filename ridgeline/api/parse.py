"""Bytes to a typed request: strict JSON, unknown fields refused by name, and each refusal names its field."""

import re
from difflib import get_close_matches
from typing import TypeVar

import msgspec

from ridgeline.api.limits import LIMITS, Limits, check_depth
from ridgeline.base.errors import RequestError

T = TypeVar("T")
_PATH = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_NAME = re.compile(r"(?:unknown field|required field) `([^`]*)`")


def parse(body: bytes, kind: type[T], limits: Limits = LIMITS) -> T:
    """Decode a body as `kind`, a msgspec struct. Raises RequestError with the path of the field at fault as
    param.
    """
    if not body:
        raise RequestError("the body is empty: send a JSON object", param="body", code="invalid_json")
    check_depth(body, limits)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), kind) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestError(
            f"the body is not valid JSON: {error}", param="body", code="invalid_json"
        ) from None


def _refusal(text: str, kind: type) -> RequestError:
    path = _PATH.search(text)
    where = path.group(1).removesuffix("[...]") if path else ""
    what = text[: path.start()] if path else text
    name = _NAME.search(what)
    if name is None:
        code = "invalid_type" if " got `" in what else "invalid_value"
        return RequestError(f"{where or 'body'}: {_plain(what)}", param=where or "body", code=code)
    param = f"{where}.{name.group(1)}" if where else name.group(1)
    if "required" in what:
        return RequestError(
            f"{param}: this field is required", param=param, code="missing_required_parameter"
        )
    near = (
        []
        if where
        else get_close_matches(name.group(1), [f.encode_name for f in msgspec.structs.fields(kind)], n=1)
    )
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return RequestError(f"{param}: unknown field{hint}", param=param, code="unknown_parameter")


def _plain(what: str) -> str:
    return what[0].lower() + what[1:].replace("`", "")
