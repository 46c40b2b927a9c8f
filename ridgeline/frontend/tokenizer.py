"""Text to token ids and back, and the true bytes of each token. Torch-free.

Owns which pieces of a text may become control tokens. Knows no chat template, no file and no request.
"""

import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import tokenizers
from tokenizers import AddedToken
from tokenizers.pre_tokenizers import Metaspace

from ridgeline.base.errors import ConfigError, RequestError
from ridgeline.frontend.spelling import spelling_of

_TAG = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")


class Tokenizer:
    """A `tokenizers.Tokenizer` with exact bytes for each token.

    bos, eos: spellings, None when the model has none. add_bos: None follows the file's own post-processor.
    special: spellings that are control tokens though the file does not say so. What ends a text is not
    decided here: eos is for templates.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos: str | None = None,
        eos: str | None = None,
        add_bos: bool | None = None,
        special: Iterable[str] = (),
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
        missing = [
            name
            for name in dict.fromkeys(special)
            if name not in known and backend.token_to_id(name) is not None
        ]
        if missing:
            backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in missing])
        self._backend = backend
        self._lock = threading.Lock()
        self._added = backend.get_added_tokens_decoder()
        self.vocab_size: int = max(backend.get_vocab_size(), max(self._added, default=-1) + 1)
        self.special_ids = frozenset(i for i, token in self._added.items() if token.special)
        self.bos, self.eos = bos, eos
        self.bos_token_id = self._id_of(bos)
        self.eos_token_id = self._id_of(eos)
        decoder = backend.decoder
        self._spelling, self._drop_first_space = spelling_of(
            decoder.__getstate__() if decoder is not None else None
        )
        self._bytes: list[bytes | None] = [None] * self.vocab_size
        self._prefix, self._suffix = self._ends(add_bos)
        self._whole_texts: dict[bool, dict[int, str]] = {False: {}, True: {}}

    def _id_of(self, spelling: str | None) -> int | None:
        return None if spelling is None else self._backend.token_to_id(spelling)

    def _ends(self, add_bos: bool | None) -> tuple[list[int], list[int]]:
        """What the file's post-processor puts before and after a text; add_bos overrules the front."""
        bare = self._backend.encode("a", add_special_tokens=False).ids
        full = self._backend.encode("a", add_special_tokens=True).ids
        where = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), None)
        if where is None:
            raise ConfigError(
                "the tokenizer's post-processor rewrites the text; give another one with --tokenizer"
            )
        prefix, suffix = full[:where], full[where + len(bare) :]
        if add_bos is not None:
            prefix = [self.bos_token_id] if add_bos and self.bos_token_id is not None else []
        return prefix, suffix

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids of a prompt; control tokens spelled in `text` become control tokens.

        add_special: with the start token that the model wants, unless the text brings it. Raises RequestError
        for text that is not Unicode (a lone surrogate).
        """
        _check_unicode(text)
        with self._lock:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        if not add_special:
            return ids
        if ids[: len(self._prefix)] != self._prefix:
            ids = self._prefix + ids
        return ids + self._suffix

    def encode_guarded(self, text: str, guard: str) -> list[int]:
        """Token ids of a rendered template in which `guard` breaks the control tokens that a user spelled.

        Whole control tokens in `text` are the template's own and become ids; what lies between is encoded as
        plain text after the guard is taken out. Equal to `encode` when no guard occurs.
        """
        _check_unicode(text)
        assert self._markers is not None, "guarded text without control tokens"
        pattern, marker_ids = self._markers
        ids: list[int] = []
        position = 0
        with self._lock, _Plain(self._backend) as plain:
            for match in pattern.finditer(text):
                ids += plain.encode(text[position : match.start()].replace(guard, ""))
                assert match.lastindex is not None
                ids.append(marker_ids[match.lastindex - 1])
                plain.leave_start()
                position = match.end()
            ids += plain.encode(text[position:].replace(guard, ""))
        return ids

    @cached_property
    def _markers(self) -> tuple[re.Pattern[str], list[int]] | None:
        """A pattern with one group for each control token, longest first, and the ids by group."""
        special = [(token, i) for i, token in self._added.items() if token.special and token.content]
        if not special:
            return None
        special.sort(key=lambda item: -len(item[0].content))
        return re.compile("|".join(_marker_pattern(token) for token, _ in special)), [i for _, i in special]

    @cached_property
    def control_spellings(self) -> re.Pattern[str] | None:
        """Finds the spelling of any control token; None when the vocabulary has none."""
        names = sorted((self._added[i].content for i in self.special_ids), key=len, reverse=True)
        names = [name for name in names if len(name) > 1]
        return re.compile("|".join(map(re.escape, names))) if names else None

    @property
    def named_tokens(self) -> Mapping[str, str]:
        """What templates know as bos_token and eos_token."""
        return {
            name: text
            for name, text in (("bos_token", self.bos), ("eos_token", self.eos))
            if text is not None
        }

    @cached_property
    def marker_ids(self) -> frozenset[int]:
        """Tokens that mark a place rather than spell a text: control tokens, and added ones that look like
        tags (<tool_call>, [INST])."""
        tags = {i for i, token in self._added.items() if _TAG.fullmatch(token.content)}
        return self.special_ids | tags

    def marker_id(self, spelling: str) -> int | None:
        """The marker of this spelling, if there is one."""
        token = self._backend.token_to_id(spelling) if spelling else None
        return token if token in self.marker_ids else None

    def is_special(self, token: int) -> bool:
        """True for a control token: it adds nothing to a text that skips special tokens."""
        return token in self.special_ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to a text, a control token its spelling; b"" for a padding id."""
        if not 0 <= token < self.vocab_size:
            return b""
        known = self._bytes[token]
        if known is None:
            known = self._bytes[token] = self._make_bytes(token)
        return known

    def _make_bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].content.encode()
        piece = self._backend.id_to_token(token)
        return b"" if piece is None else self._spelling(piece)

    def whole_texts(self, skip_special: bool) -> dict[int, str]:
        """What tokens that begin and end between characters add to a text, as far as detokenizers have found
        by now: theirs to read and to fill."""
        return self._whole_texts[skip_special]

    def token_text(self, token: int) -> str:
        """A token as readable text; one that is not whole characters reads bytes:\\xf0\\x9f, as at OpenAI."""
        raw = self.token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of a whole sequence. Bytes that are not UTF-8 become U+FFFD."""
        kept = [token for token in ids if not (skip_special and token in self.special_ids)]
        text = b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")
        first_is_plain = bool(kept) and kept[0] not in self._added
        return text[1:] if self._drop_first_space and first_is_plain and text.startswith(" ") else text


class _Plain:
    """The backend with control tokens switched off for a `with` block, under the tokenizer's lock."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._pre_tokenizer = backend.pre_tokenizer

    def __enter__(self) -> "_Plain":
        self._backend.encode_special_tokens = True
        return self

    def encode(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids if text else []

    def leave_start(self) -> None:
        """From here on a run is not the text's first: a Metaspace that puts a space first must not again."""
        pre = self._pre_tokenizer
        if isinstance(pre, Metaspace) and pre.prepend_scheme == "first":
            self._backend.pre_tokenizer = Metaspace(
                replacement=pre.replacement, prepend_scheme="never", split=pre.split
            )

    def __exit__(self, *exc: object) -> None:
        self._backend.encode_special_tokens = False
        if isinstance(self._pre_tokenizer, Metaspace):
            self._backend.pre_tokenizer = self._pre_tokenizer


def _marker_pattern(token: AddedToken) -> str:
    """One group that matches the token; lstrip and rstrip swallow the space around, as in the backend."""
    edge = r"\b" if token.single_word else ""
    before = r"\s*" if token.lstrip else ""
    after = r"\s*" if token.rstrip else ""
    return f"{before}{edge}({re.escape(token.content)}){edge}{after}"


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text is not valid Unicode: a lone surrogate at character {error.start}"
        ) from None
