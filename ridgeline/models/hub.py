"""Downloads from the Hub, by its own client library (imported here only, when a download is asked for).

The library keeps finished files, resumes a transfer whose connection broke and shows progress; `blobs` makes
weights survive a killed process. Owns which files are fetched and what a failure is called.
"""

import re
from pathlib import Path

from ridgeline.base.config import hub_endpoint, hub_offline, hub_token
from ridgeline.base.errors import CheckpointError, ConfigError
from ridgeline.models.blobs import fetch_blobs

_SMALL = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
          "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
          "chat_template*")
_WEIGHTS = ("*.safetensors", "model.safetensors.index.json")
_ELSEWHERE = ("*/*", "consolidated*", "adapter_model*")  # copies in other layouts, and adapters
_LARGE = (".safetensors", ".gguf")
_SPLIT = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")


def download(repo: str, *, revision: str | None = None, file: str | None = None,
             weights: bool = True) -> Path:
    """Fetch what a model needs of a repository; returns its folder, or the path of `file` when one is named.

    Without a file: config, tokenizer and safetensors (weights=False leaves those out). ConfigError when the
    repository cannot be had, CheckpointError when it holds no weights that we read.
    """
    if file is None:
        folder = _fetch(repo, revision, [*_SMALL, *(_WEIGHTS if weights else ())], list(_ELSEWHERE))
        if weights and not any(folder.glob("*.safetensors")):
            raise CheckpointError(_without_weights(repo, revision))
        return folder
    split = _SPLIT.fullmatch(file)
    folder = _fetch(repo, revision, [f"{split[1]}-?????-of-{split[2]}.gguf" if split else file], [])
    if not (folder / file).is_file():
        raise CheckpointError(f"{repo} on the Hub has no file {file}: it has {_listed(repo, revision)}")
    return folder / file


def config_file(repo: str, revision: str | None = None) -> Path:
    """A repository's config.json and nothing else; errors as of `download`."""
    path = _fetch(repo, revision, ["config.json"], []) / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{repo} on the Hub has no config.json: it has {_listed(repo, revision)}")
    return path


def _fetch(repo: str, revision: str | None, allow: list[str], ignore: list[str]) -> Path:
    from huggingface_hub import errors, snapshot_download
    at = f"{repo}@{revision}" if revision else repo
    try:
        if not hub_offline():
            _fetch_weights(repo, revision, allow, ignore)
        return Path(snapshot_download(
            repo, revision=revision, allow_patterns=allow, ignore_patterns=ignore, token=hub_token() or False,
            endpoint=hub_endpoint(), local_files_only=hub_offline()))
    except errors.GatedRepoError:
        raise ConfigError(f"{at} is gated: accept its terms at {hub_endpoint()}/{repo}, then set HF_TOKEN "
                          "to a token of that account") from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(f"the Hub has no model {repo}, or it is private: check the spelling, or set "
                          "HF_TOKEN to a token that may read it") from None
    except errors.RevisionNotFoundError:
        raise ConfigError(f"{repo} has no revision {revision!r}: name a branch, a tag or a commit") from None
    except errors.LocalEntryNotFoundError:
        why = "HF_HUB_OFFLINE is set" if hub_offline() else f"{hub_endpoint()} cannot be reached"
        raise ConfigError(f"{at} is not (wholly) downloaded yet and {why}: go online once, or name a local "
                          "folder or a GGUF file") from None
    except errors.HFValidationError as error:
        raise ConfigError(f"{repo!r} is no Hub id: {error}") from None
    except CheckpointError:
        raise
    except Exception as error:  # of the disk, or of whichever HTTP client the library has
        raise CheckpointError(f"the download of {at} stopped ({error}): run the same command again, what has "
                              "arrived is kept") from error


def _fetch_weights(repo: str, revision: str | None, allow: list[str], ignore: list[str]) -> None:
    from huggingface_hub import HfApi
    from huggingface_hub.utils import filter_repo_objects
    try:
        found = HfApi(endpoint=hub_endpoint(), token=hub_token() or False).model_info(repo, revision=revision)
    except Exception:
        return  # snapshot_download meets the same, and knows what is in the cache
    names = [file.rfilename for file in found.siblings or () if file.rfilename.endswith(_LARGE)]
    wanted = filter_repo_objects(names, allow_patterns=allow, ignore_patterns=ignore)
    assert found.sha is not None
    fetch_blobs(repo, found.sha, wanted, endpoint=hub_endpoint(), token=hub_token())


def _without_weights(repo: str, revision: str | None) -> str:
    return (f"{repo} on the Hub has no *.safetensors file: it has {_listed(repo, revision)}. Name a file "
            f"as {repo}:FILE.gguf, or another repository")


def _listed(repo: str, revision: str | None) -> str:
    """The repository's weight files, for an error's text."""
    from huggingface_hub import HfApi
    if hub_offline():
        return "other files"
    api = HfApi(endpoint=hub_endpoint(), token=hub_token() or False)
    names = api.list_repo_files(repo, revision=revision)
    weights = [name for name in names if name.endswith((".gguf", ".bin", ".pt", ".pth", ".safetensors"))]
    return ", ".join(weights[:20]) or "no weights at all"
