"""The Hugging Face hub: model folders and single files, with its failures in one sentence each.

HF_HUB_OFFLINE, HF_ENDPOINT, HF_TOKEN and HF_HOME mean what they mean to huggingface_hub, which does the work: it
resumes, checks sizes and keeps its own cache.
"""

import io
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants, errors
from tqdm.auto import tqdm

from splashlite.errors import SplashliteError

_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "README.md", "LICENSE*"]
_ANSWER_SECONDS = 5.0


def offline() -> bool:
    """Whether HF_HUB_OFFLINE asks for no network."""
    return bool(constants.HF_HUB_OFFLINE)


def folder(repo: str, revision: str | None, progress=None) -> Path:
    """A repository's weights (safetensors only), configuration, tokenizer and card, in the hub's cache.

    Code in the repository is not fetched. Without network the cached copy is used. Raises SplashliteError.
    """
    with _in_one_sentence(repo, revision):
        return Path(
            huggingface_hub.snapshot_download(
                repo,
                revision=revision,
                allow_patterns=_PATTERNS,
                ignore_patterns=["*/*"],  # other formats' copies of the weights
                local_files_only=not _answers(),
                tqdm_class=_bar(repo, progress),
            )
        )


def file(repo: str, revision: str | None, name: str, into: Path, progress=None) -> Path:
    """One file of a repository, downloaded (or resumed) into the folder `into`. Raises SplashliteError."""
    if not _answers():
        raise SplashliteError(f"{constants.ENDPOINT} does not answer, so {repo} cannot be fetched")
    with _in_one_sentence(repo, revision, name):
        path = huggingface_hub.hf_hub_download(
            repo, name, revision=revision, local_dir=into, tqdm_class=_bar(name, progress)
        )
        return Path(path)


def small_file(repo: str, revision: str | None, name: str) -> Path | None:
    """A small file (a config, a card) of a repository in the hub's cache, None if the repository has none."""
    with _in_one_sentence(repo, revision, name):
        try:
            return Path(huggingface_hub.hf_hub_download(repo, name, revision=revision, local_files_only=not _answers()))
        except errors.RemoteEntryNotFoundError:
            return None


def _answers() -> bool:
    """Whether the hub answers within a few seconds; asked first, since huggingface_hub retries for half a minute."""
    if offline():
        return False
    session = huggingface_hub.utils.get_session()
    try:
        session.head(constants.ENDPOINT, timeout=_ANSWER_SECONDS)
    except Exception:  # whichever HTTP library huggingface_hub is built on: any failure means no answer
        return False
    return True


@contextmanager
def _in_one_sentence(repo: str, revision: str | None, name: str | None = None):
    what = f"{name} of {repo}" if name else repo
    try:
        yield
    except errors.GatedRepoError:
        raise SplashliteError(
            f"{repo} is gated: accept its terms at {_page(repo)}, then log in with `hf auth login`"
        ) from None
    except errors.RevisionNotFoundError:
        raise SplashliteError(f"{repo} has no revision {revision}: see {_page(repo)}") from None
    except errors.RepositoryNotFoundError:
        raise SplashliteError(
            f"there is no repository {repo} at {constants.ENDPOINT}, or it needs `hf auth login`"
        ) from None
    except errors.RemoteEntryNotFoundError:
        raise SplashliteError(f"{repo} has no file {name}: see {_page(repo)}") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as problem:
        if offline():
            cache = constants.HF_HUB_CACHE
            raise SplashliteError(
                f"{what} is not in {cache} and HF_HUB_OFFLINE is set: unset it once to fetch it"
            ) from None
        raise SplashliteError(
            f"{what} cannot be fetched and is not in {constants.HF_HUB_CACHE}: {_cause(problem)}"
        ) from None
    except errors.HFValidationError as problem:
        raise SplashliteError(f"{repo!r} is no repository id: {problem}") from None
    except (errors.HfHubHTTPError, OSError, RuntimeError) as problem:
        raise SplashliteError(f"{what} cannot be fetched: {_cause(problem)}") from None


def _page(repo: str) -> str:
    return f"{constants.ENDPOINT}/{repo}"


def _cause(problem: BaseException) -> str:
    response = getattr(problem, "response", None)
    if response is not None:
        return f"the hub answered {response.status_code}"
    if isinstance(problem, errors.LocalEntryNotFoundError):
        return f"{constants.ENDPOINT} does not answer"
    return str(problem).split("\n")[0]


def _bar(label: str, progress):
    """A tqdm class that reports bytes to `progress`; None, huggingface_hub's own bars, without one."""
    if progress is None:
        return None
    seen = {"done": 0, "total": 0}

    class Bar(tqdm):
        def __init__(self, *args, **kwargs):
            self._bytes = kwargs.get("unit") == "B"
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "file": io.StringIO(), "disable": False})

        def display(self, *args, **kwargs):
            if self._bytes:  # a download has several such bars: bytes received, bytes written
                seen["done"], seen["total"] = max(seen["done"], int(self.n)), max(seen["total"], int(self.total or 0))
                progress(label, seen["done"], seen["total"] or None)

    return Bar
