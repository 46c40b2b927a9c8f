"""API keys: what a file says of each, and who holds the one that a request brings. Only digests are kept.

A key that `new_key` makes holds 256 random bits, so that a plain SHA-256 of it can be undone by nobody, and
checking one costs nothing. What a key may use is counted in `quota`.
"""

import hashlib
import hmac
import json
import logging
import re
import secrets
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ridgeline.account.caller import Caller, Use
from ridgeline.base.clock import Clock, WallClock
from ridgeline.base.errors import ConfigError
from ridgeline.base.table import Table
from ridgeline.server.quota import KINDS, Quota

SHORTEST = 20  # characters of a key that `ridgeline key hash` takes; fewer can be guessed from the digest
_PREFIX = "sha256:"
_DIGEST = re.compile(_PREFIX + "[0-9a-f]{64}")
_PRIORITY = re.compile("-?[0-9]{1,9}")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_LOG = logging.getLogger("ridgeline.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One API key and what it may do; None: no limit. digest: "sha256:" and 64 hex digits.

    priority: of which no request is sooner. thinking_budget: tokens of a thought, at most. max_concurrent:
    requests at work. A request counts once, whatever its n; tokens are those of prompts and answers.
    admin: it may change what is served.
    """

    digest: str
    name: str = ""
    priority: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None
    thinking_budget: int | None = None
    admin: bool = False

    @property
    def tenant(self) -> str:
        """What its requests are known by: the name, or a part of the digest."""
        return self.name or self.digest[len(_PREFIX):][:16]

    def as_toml(self) -> str:
        """Its table in a file of keys."""
        given = {name: value for name, value in asdict(self).items() if value != getattr(_NOTHING, name)}
        lines = [f"{name} = {json.dumps(value)}" for name, value in given.items()]
        return "\n".join(["[[key]]", *lines])


_NOTHING = Key(digest="")


class Keys:
    """The keys of a server, each with the count of what it uses. None means that every caller is let in."""

    def __init__(self, keys: Iterable[Key] = (), clock: Clock | None = None) -> None:
        self._clock = clock or WallClock()
        self.limited = dict.fromkeys(KINDS, 0)  # refusals by the limit that was met
        self._keys: list[tuple[Key, Quota]] = []
        self.replace(keys)

    def replace(self, keys: Iterable[Key]) -> None:
        """From now on these are the keys; one that stays as it was goes on with what it has used."""
        before = dict(self._keys)
        self._keys = [(key, before.get(key) or Quota(key, self._clock, self.limited)) for key in keys]

    def caller(self, headers: Mapping[bytes, bytes], request_id: str) -> tuple[Caller, Quota | None] | None:
        """Who holds the key of the Authorization or the x-api-key header, with its quota, or None; the time
        taken tells nothing."""
        trace = headers.get(b"traceparent", b"").decode("latin-1")
        if not self._keys:
            return Caller(request_id=request_id, traceparent=trace), None
        written = headers.get(b"authorization") or b"Bearer " + headers.get(b"x-api-key", b"")
        scheme, _, token = written.partition(b" ")
        given = digest_of(token.strip())
        found = [one for one in self._keys if hmac.compare_digest(given, one[0].digest)]
        if scheme.lower() != b"bearer" or not found:
            return None
        key, quota = found[0]
        caller = Caller(
            request_id=request_id, tenant=key.tenant, priority=key.priority, traceparent=trace,
            thinking_budget=key.thinking_budget, use=Use(quota), admin=key.admin,
        )  # fmt: skip
        return caller, quota


def digest_of(key: bytes) -> str:
    """How a key is kept."""
    return _PREFIX + hashlib.sha256(key).hexdigest()


def new_key() -> str:
    """A key that nobody can guess."""
    return "rl-" + secrets.token_urlsafe(32)


def plain(key: str) -> Key:
    """A key without a name or a limit."""
    return Key(digest=digest_of(key.encode()))


def read_keys(path: Path) -> list[Key]:
    """The keys of a file: TOML where its name ends so, a [[key]] for each with the fields of `Key` (or `key`,
    as it is, in place of `digest`); otherwise a key or a digest a line, and its priority after it, if it has
    one. # begins a comment. ConfigError names the place, and shows no key."""
    try:
        text = path.read_text(encoding="utf-8")
        tables = _of_toml(tomllib.loads(text), path) if path.suffix == ".toml" else _of_lines(text, path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the API keys cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    if not tables:
        raise ConfigError(f"{path} holds no API key, and without one everybody would be let in")
    num_plain, keys = sum("key" in table for _, table in tables), [_key(*one) for one in tables]
    for number, (where, _) in enumerate(tables):
        before = keys[:number]
        if any(keys[number].digest == one.digest or keys[number].tenant == one.tenant for one in before):
            raise ConfigError(f"{where}: this key, or one of its name, was there before")
    if num_plain:
        _LOG.warning("%s holds %d API keys as they are: `ridgeline key hash` turns one into a digest, "
                     "which is all that a file needs", path, num_plain)
    return keys


Placed = tuple[str, Mapping[str, Any]]  # where a key stands, and its fields as written


def _of_lines(text: str, path: Path) -> list[Placed]:
    found: list[Placed] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words, where = line.partition("#")[0].split(), f"{path}, line {number}"
        if not words:
            continue
        if len(words) > 2 or (len(words) == 2 and not _PRIORITY.fullmatch(words[1])):
            raise ConfigError(
                f"{where}: expected a key or its digest, and at most its priority after it, a whole number "
                "of up to 9 digits (lower is sooner)"
            )
        table: dict[str, Any] = {"digest" if words[0].startswith(_PREFIX) else "key": words[0]}
        found.append((where, table | ({"priority": int(words[1])} if len(words) == 2 else {})))
    return found


def _of_toml(document: Mapping[str, Any], path: Path) -> list[Placed]:
    tables = document.get("key")
    if set(document) != {"key"} or not isinstance(tables, list) or not all(
        isinstance(table, dict) for table in tables
    ):
        raise ConfigError(f"{path}: expected a table [[key]] for each API key, and nothing else")
    return [(f"{path}, [[key]] {number}", table) for number, table in enumerate(tables, start=1)]


def _key(where: str, table: Mapping[str, Any]) -> Key:
    values = dict(table)
    written, digest = values.pop("key", None), values.pop("digest", None)
    if (written is None) == (digest is None):
        raise ConfigError(f"{where}: give either key or digest")
    if written is not None:
        if not isinstance(written, str) or not written or written.split() != [written]:
            raise ConfigError(f"{where}: key must be a text without spaces")
        digest = digest_of(written.encode())
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ConfigError(f"{where}: digest must be {_PREFIX} and 64 hex digits, of `ridgeline key hash`")
    known = Table(f"field of a key in {where}", {one.name: one.name for one in fields(Key)})
    for name, value in values.items():
        if known[name] == "name":
            if not isinstance(value, str) or not NAME.fullmatch(value):
                raise ConfigError(f"{where}: name must be up to 64 letters, digits and _ . @ -")
        elif name == "admin":
            if not isinstance(value, bool):
                raise ConfigError(f"{where}: admin must be true or false")
        elif type(value) is not int or value < _least(name) or value > 10**9:
            raise ConfigError(f"{where}: {name} must be a whole number, at least {_least(name)}")
    return Key(digest=digest, **values)


def _least(name: str) -> int:
    return {"priority": -(10**9), "thinking_budget": 0}.get(name, 1)
