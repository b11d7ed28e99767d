"""Exports to repositories of a hub."""

import os
import pathlib

from big_align.core.errors import UserError
from big_align.core.regular_files import read_regular
from big_align.data.remote import hub
from big_align.weights.hub.names import NAME, PREFIX


def check_target(name: str) -> str:
    """Returns the repository that a name means; a UserError if nothing could be uploaded to it."""
    id = name.removeprefix(PREFIX)
    if not NAME.fullmatch(id) or "@" in id:
        raise UserError(f"--push_to={name} must be OWNER/NAME, a repository of Hugging Face's hub")
    if hub.load_library(f"--push_to={name}").get_token() is None:
        raise UserError(f"--push_to={name} takes a token that may write: {hub.LOGIN}")
    return id


def push_folder(folder: str | os.PathLike, id: str) -> str:
    """Uploads a folder in a commit, after the hub has checked its card; returns where it is.

    A repository that is not there is made, as a private one.

    Raises:
      HubError: the hub refuses it. The folder stays, and the message says how to go on.
      UserError: the card is not one that the hub takes.
    """
    for config in pathlib.Path(folder).glob("*.json"):
        if os.path.abspath(folder) in read_regular(config).decode():
            raise UserError(
                f"{config} has a path of this machine, by which open_clip finds the configs of "
                "towers that are not its own; it opens here, and --format=big_align can be uploaded"
            )
    library = hub.load_library(id)
    api, message = library.HfApi(), "Upload an export of big_align"
    try:
        hub.call(id, api.create_repo, id, private=True, exist_ok=True)
        done = hub.call(
            id, api.upload_folder, repo_id=id, folder_path=str(folder), commit_message=message
        )
    except hub.HubError as error:
        told = f"{error}; {folder} is whole, and `hf upload {id} {folder}` uploads it"
        raise hub.HubError(told, error.status) from error
    except ValueError as error:
        raise UserError(f"{folder}/README.md is no card that the hub takes: {error}") from error
    return f"{PREFIX}{id}@{done.oid}, at {done.commit_url}"
