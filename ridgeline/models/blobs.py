"""Large files of a repository, put into the Hub library's cache ahead of it: a killed download goes on.

The library throws away what a killed process had of a file. Here the part lies beside the finished files
under its content's hash, and the next start asks for the rest. The library does the transfer itself
(retries, progress) and finds the finished file in its cache. Knows no patterns and names no errors.
"""

import fcntl
import hashlib
import io
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from ridgeline.base.errors import CheckpointError

_AT_ONCE = 8
_READ_BYTES = 1 << 20


def fetch_blobs(repo: str, commit: str, names: Iterable[str], *, endpoint: str, token: str | None) -> None:
    """Download those files of a commit that the cache does not have, several at once.

    Raises CheckpointError when a content is not what the Hub says; what the library raises goes through.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import repo_folder_name

    home = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo, repo_type="model")
    urls = [hf_hub_url(repo, name, revision=commit, endpoint=endpoint)
            for name in names if not (home / "snapshots" / commit / name).exists()]
    stop = Event()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            list(pool.map(lambda url: _fetch(url, home / "blobs", endpoint, token, stop), urls))
        except BaseException:
            stop.set()
            raise


class _Part(io.FileIO):
    """The part of a file, which takes no more once `stop` is set."""

    def __init__(self, path: Path, stop: Event) -> None:
        super().__init__(path, "a+")
        self._stop = stop

    def write(self, data: "bytes | memoryview") -> int:  # type: ignore[override]
        if self._stop.is_set():
            raise InterruptedError("the download was stopped")
        view, done = memoryview(data), 0
        while done < len(view):
            done += super().write(view[done:])
        return done


def _fetch(url: str, blobs: Path, endpoint: str, token: str | None, stop: Event) -> None:
    from huggingface_hub import constants, get_hf_file_metadata
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    told = get_hf_file_metadata(url, token=token or False, endpoint=endpoint)
    if told.etag is None or told.size is None or told.size > constants.MAX_HTTP_DOWNLOAD_SIZE:
        return  # the library has ways of its own for these
    blob, path = blobs / told.etag, blobs / f"{told.etag}.incomplete"
    if blob.exists():
        return
    blobs.mkdir(parents=True, exist_ok=True)
    with _Part(path, stop) as part:
        fcntl.flock(part, fcntl.LOCK_EX)  # another process may be at it: then its file is there afterwards
        if blob.exists():
            path.unlink(missing_ok=True)
            return
        if (done := part.seek(0, os.SEEK_END)) > told.size:
            done = part.truncate(0)
        headers = {**build_hf_headers(token=token or False), "Accept-Encoding": "identity"}
        http_get(url, part, resume_size=done, headers=headers, expected_size=told.size)
        if path.stat().st_size != told.size or not _is(path, told.etag):
            part.truncate(0)
            raise CheckpointError(f"{url} arrived damaged: run the same command again")
        os.replace(path, blob)


def _is(path: Path, etag: str) -> bool:
    """True when the content has this hash; a large file's etag is its SHA-256, others say nothing."""
    if len(etag) != 64:
        return True
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest() == etag
