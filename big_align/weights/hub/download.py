"""What is fetched of a repository: the files that a format reads, and no others."""

import glob
import pathlib
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any

from big_align.core.errors import UserError
from big_align.data.remote import hub
from big_align.weights.arrays.weight_files import INDEX, list_shards
from big_align.weights.hub.names import HubName, parse_name

CONFIGS = ("config.json", "open_clip_config.json")
"""Files that decide the format of a repository, and so what else is read."""
SHOWN = 12  # files that are named of a repository without weights


def fix_revision(path: str) -> str:
    """Returns the name of a repository with the commit that it now means; other paths unchanged."""
    name = parse_name(path)
    if name is None or name.is_fixed:
        return path if name is None else str(name)
    return str(name._replace(revision=_fetch(name, CONFIGS).name))


def fetch_repository(name: HubName, formats: Sequence[ModuleType]) -> pathlib.Path:
    """Fetches what one of the formats reads of a repository, unless the cache of the hub has it.

    The formats have `recognize` and `list_files`. Weights come last, from safetensors if there are
    some. Returns the folder in the cache, which is named after the commit.

    Raises:
      HubError: the hub does not give it.
      UserError: huggingface_hub is not installed; or nothing in the repository can be read, and the
        message lists what it has.
    """
    folder = _fetch(name, CONFIGS)
    commit = folder.name
    there = _list_files(name, commit)
    for module in formats:
        if not module.recognize(folder, ()):
            continue
        wanted = [file for file in module.list_files(folder, there) if file in there]
        weights = [file for file in wanted if file.endswith((".safetensors", ".bin", INDEX))]
        if not weights:
            break
        early = [file for file in wanted if file not in weights or file.endswith(INDEX)]
        _fetch(name, early, commit)
        shards = (s for file in weights if file.endswith(INDEX) for s in list_shards(folder / file))
        return _fetch(name, [*weights, *(shard for shard in shards if shard in there)], commit)
    more = f" and {len(there) - SHOWN} more" if len(there) > SHOWN else ""
    raise UserError(
        f"{name} has no weights of transformers, open_clip, timm or big_align beside their config; "
        f"it has {', '.join(sorted(there)[:SHOWN]) or 'no files'}{more}"
    )


def _fetch(name: HubName, files: Sequence[str], commit: str | None = None) -> pathlib.Path:
    """Fetches those of the files that a repository has; returns their folder."""
    library = hub.load_library(name.told)

    class LateBar(library.utils.tqdm):
        """A bar of what takes more than a second."""

        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **{**options, "delay": 1})

    patterns = [glob.escape(file) for file in files]
    options = {"allow_patterns": patterns, "tqdm_class": LateBar}
    options["revision"] = commit or name.revision or "main"
    return pathlib.Path(hub.call_cached(name.told, library.snapshot_download, name.id, **options))


def _list_files(name: HubName, commit: str) -> Collection[str]:
    """Lists a repository at a commit, from the cache if it is listed there."""
    library = hub.load_library(name.told)
    try:
        listed = library.get_cached_repo_tree(name.id, revision=commit)
        return [file.path for file in listed]
    except (AttributeError, library.errors.CachedRepoTreeNotFoundError):  # an earlier version
        pass
    api = library.HfApi()
    return hub.call_cached(name.told, api.list_repo_files, name.id, revision=commit)
