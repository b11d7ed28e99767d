"""Names of models on a hub: `hf-hub:OWNER/NAME@REVISION`, and `OWNER/NAME` where no file is."""

import os
import re
from typing import NamedTuple

from big_align.core.errors import UserError
from big_align.weights.arrays.weight_files import FORMATS

PREFIX = "hf-hub:"
PART = r"[A-Za-z0-9_][\w.-]*"
NAME = re.compile(rf"({PART}/{PART})(?:@([\w./-]+))?", re.ASCII)
COMMIT = re.compile("[0-9a-f]{40}")
KNOWN = (
    "openai/clip-vit-base-patch32",
    "openai/clip-vit-base-patch16",
    "openai/clip-vit-large-patch14",
    "openai/clip-vit-large-patch14-336",
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
    "laion/CLIP-ViT-B-16-laion2B-s34B-b88K",
    "laion/CLIP-ViT-L-14-laion2B-s32B-b82K",
    "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
    "laion/CLIP-ViT-g-14-laion2B-s34B-b88K",
    "kakaobrain/align-base",
    "DeepGlint-AI/mlcd-vit-large-patch14-336",
    "google/vit-base-patch16-224",
    "google/efficientnet-b7",
    "microsoft/resnet-50",
    "microsoft/swin-tiny-patch4-window7-224",
    "google-bert/bert-base-uncased",
    "FacebookAI/roberta-base",
    "sentence-transformers/all-MiniLM-L6-v2",
)
"""Repositories that many know by less than their whole names."""


class HubName(NamedTuple):
    """A repository of a hub, as `OWNER/NAME`, and a branch, a tag or a commit of it.

    `plain` is whether it was given without the prefix, and so might have meant a folder.
    """

    id: str
    revision: str | None = None
    plain: bool = False

    @property
    def is_fixed(self) -> bool:
        """Whether it names a commit, which never changes."""
        return bool(COMMIT.fullmatch(self.revision or ""))

    @property
    def told(self) -> str:
        """The name as errors begin with it."""
        given = str(self).removeprefix(PREFIX)
        return f"{given} is no file or folder here, and {self}" if self.plain else str(self)

    def __str__(self) -> str:
        return f"{PREFIX}{self.id}" + (f"@{self.revision}" if self.revision else "")


def parse_name(path: str | os.PathLike) -> HubName | None:
    """Returns the repository that a path names; None for the path of a file or a folder.

    Without the prefix, `OWNER/NAME` is a repository if there is no folder OWNER here: a folder that
    was misspelled is looked for nowhere else. A UserError says how names with the prefix are
    written.
    """
    given = os.fspath(path)
    found = NAME.fullmatch(given.removeprefix(PREFIX))
    if given.startswith(PREFIX):
        if found is None:
            near = suggest_names(given.removeprefix(PREFIX))
            raise UserError(f"{given!r} must be {PREFIX}OWNER/NAME, or OWNER/NAME@REVISION{near}")
        return HubName(found[1], found[2])
    if found is None or given.endswith(tuple(FORMATS)):
        return None
    if os.path.exists(given) or os.path.exists(given.partition("/")[0]):
        return None
    return HubName(found[1], found[2], plain=True)


def explain_absent(given: str) -> str:
    """Returns what is said of a path that is not there, if it may be meant for a repository."""
    if NAME.fullmatch(given) and not given.endswith(tuple(FORMATS)):
        return f"is not here; a repository of that name on Hugging Face's hub is {PREFIX}{given}"
    near = suggest_names(given)
    return f"is no file or folder here; a repository is named with its owner{near}" if near else ""


def suggest_names(given: str) -> str:
    """Returns ", as hf-hub:OWNER/NAME", for the first known repositories that a name may mean."""
    plain = re.sub("[^a-z0-9]", "", given.lower())
    found = [name for name in KNOWN if plain and plain in re.sub("[^a-z0-9]", "", name.lower())]
    listed = " or ".join(f"{PREFIX}{name}" for name in found[:2])
    return f", as {listed}" if found else ""
