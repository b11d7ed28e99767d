"""Embeddings of the images of many files, made once and kept on disk, as if they were one array."""

import functools
import hashlib
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from big_align.core.errors import UserError, pass_unreachable, tell_in_a_line
from big_align.data.derived.source_pieces import Pieces, fingerprint_images
from big_align.data.precomputed.embedding_files import EmbeddingFolder
from big_align.data.precomputed.shard_files import EMBEDDINGS, INDEX, list_missing
from big_align.data.shard_offsets import ShardOffsets
from big_align.data.shared.shared_work import SharedWork, Unit
from big_align.prepare.inputs import SKIPPING, FileRows, Inputs
from big_align.runs.embedding.embed_source import SourceEncoder, embed_source, make_encoder
from big_align.use.clusters.kmeans_init import scale_rows
from big_align.weights.formats.architecture import find_edges
from big_align.weights.formats.pretrained import Pretrained

DTYPE = "float16"
OPEN_FOLDERS = 16
T = TypeVar("T")


class UnitEncoder(SourceEncoder):
    """An encoder whose rows have unit length, so that half precision holds them."""

    def embed(
        self, batch: Mapping[str, np.ndarray], count: int
    ) -> tuple[Float[np.ndarray, "n d"], Bool[np.ndarray, "n"]]:
        """Returns rows of unit length, and which images are real."""
        values, readable = super().embed(batch, count)
        return scale_rows(values), readable


def make_unit_encoder(
    model: Pretrained, what: str | None, transform: str | None, batch_size: int | None = None
) -> UnitEncoder:
    """Makes an encoder of images by an image tower, or a dual encoder's.

    By default it takes embeddings if the model has a projection, else features; and whole images,
    resized to the model's own size: a crop would hide what was cut off.
    """
    what = what or ("embedding" if model.kind == "dual" else "features")
    if transform is None and model.image_size:
        edges = dict.fromkeys(find_edges(model.image_size))
        transform = f"resize({', '.join(map(str, edges))})"
    return UnitEncoder(*make_encoder(model, what, transform, batch_size))


class EmbeddedFiles:
    """The images of some files in their order, embedded.

    `folder` holds a folder of `data/precomputed` for each file, named after whatever its rows
    depend on. So a file that has been embedded is not read again, unless it has changed. One that
    cannot be opened has no rows, and is `unopened` with the reason. Any number of processes may
    share the folder.
    """

    def __init__(
        self,
        inputs: Inputs,
        encoder: SourceEncoder,
        folder: pathlib.Path,
        max_broken_fraction: float = 1.0,
    ):
        self.inputs, self.dim = inputs, encoder.dim
        self._encoder, self._folder, self._fraction = encoder, folder, max_broken_fraction
        self._open = functools.lru_cache(maxsize=OPEN_FOLDERS)(EmbeddingFolder)
        self._find_rows = functools.lru_cache(maxsize=2)(lambda file: FileRows(inputs.open(file)))
        self.unopened: dict[str, str] = {}
        self._folders: list[pathlib.Path | None] = [None] * len(inputs.paths)
        self._arrange(np.zeros(len(inputs.paths), np.int64))

    def _arrange(self, files: Int[np.ndarray, " files"]) -> None:
        self.files, self._offsets = files, ShardOffsets(files)
        self.count = self._offsets.count

    def embed(self, say: str = "embed") -> int:
        """Embeds what is not on disk, with whoever does so at the same time; waits for all of it.

        Returns how many images were embedded here and now.
        """
        made, sizes = 0, np.zeros(len(self.inputs.paths), np.int64)
        self._folders = [self._attempt(self._find_folder, file) for file in range(len(sizes))]
        found = [file for file, folder in enumerate(self._folders) if folder]
        units = [Unit(self._folders[file].name, (), 1) for file in found]
        with FilesWork(self._folder, units, "file", label=say) as work:
            for number in work:
                file = found[number]
                source = self._attempt(self.inputs.open, file)
                if source is None:
                    work.leave_out(number)
                    continue
                made += embed_source(
                    self._encoder, Pieces(source), self._folders[file], DTYPE,
                    {"input": self.inputs.paths[file]}, self._fraction,
                    alone=True, label=self.inputs.stems[file],
                )  # fmt: skip
                work.advance(1)
                work.finish(number)
        for number in work.done:
            sizes[found[number]] = self.open(found[number]).count
            self.unopened.pop(self.inputs.paths[found[number]], None)  # another could open it
        self._arrange(sizes)
        if not self.count:
            paths = self.inputs.paths
            name, why = next(iter(self.unopened.items()), (paths[0], "it is empty"))
            told = paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"
            raise UserError(f"there are no images in {told}; of {name}: {why}")
        return made

    def _attempt(self, act: Callable[[int], T], file: int) -> T | None:
        """Calls a function with a file; None if that cannot be opened."""
        try:
            return act(file)
        except (ValueError, OSError) as error:
            pass_unreachable(error)
            self.unopened[self.inputs.paths[file]] = tell_in_a_line(error)
            return None

    def name(self, file: int) -> str:
        """Returns a name that tells the rows of a file from all others."""
        return self._folders[file].name

    def open(self, file: int) -> EmbeddingFolder:
        """Opens the rows of a file."""
        return self._open(self._folders[file])

    def _find_folder(self, file: int) -> pathlib.Path:
        encoder, inputs = self._encoder, self.inputs
        made = [encoder.weights, encoder.what, encoder.transform, DTYPE, inputs.kind]
        path, stamp = inputs.paths[file], inputs.stamps[file]
        # a folder has no time of its own, so some of its images identify it
        which = [path, stamp] if stamp else fingerprint_images(inputs.open(file))
        text = json.dumps([made, which, inputs.arguments])
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        return self._folder / f"{inputs.stems[file][-60:]}-{digest}"

    def read(self, first: int, end: int) -> Float[np.ndarray, "n d"]:
        """Reads rows [first, end) as they are stored; those of broken images are zero."""
        pieces = [np.zeros((0, self.dim), DTYPE)]
        while first < end:
            file, row = self._offsets.locate_one(first)
            last = min(row + end - first, int(self.files[file]))
            pieces.append(self.open(file).read(row, last))
            first += last - row
        return np.concatenate(pieces)

    def take(self, numbers: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n d"]:
        """Reads chosen rows as they are stored, file by file."""
        found = np.zeros((len(numbers), self.dim), DTYPE)
        files, rows = self._offsets.locate(numbers)
        for file in np.unique(files).tolist():
            chosen = files == file
            found[chosen] = self.open(file).take(rows[chosen])
        return found

    def locate(self, number: int) -> tuple[int, int]:
        """Returns the file of an image, and its number among those of the file."""
        return self._offsets.locate_one(number)

    def count_broken(self) -> int:
        """Returns how many images could not be read."""
        return sum(self.open(file).absent for file in np.flatnonzero(self.files).tolist())

    def key(self, number: int) -> str:
        """Returns the key of an image that says which row of which file it is."""
        file, at = self.locate(number)
        skips = self.inputs.kind in SKIPPING
        return self.inputs.key(file, int(self._find_rows(file).numbers[at]) if skips else at)

    def own_key(self, number: int) -> str:
        """Returns the key that an image has in its file."""
        file, row = self.locate(number)
        folder = self.open(file)
        shard, index = folder.locate(row)
        return folder.keys(shard)[index]


class FilesWork(SharedWork):
    """Files as units; one is finished when all of the embeddings in the folder of its name are."""

    def is_finished(self, unit: Unit, names: set[str] | None = None) -> bool:
        """Returns whether all embeddings of a file are there."""
        folder = pathlib.Path(self.folder, unit.name)
        if names is not None and unit.name not in names:
            return False
        try:
            return (folder / INDEX).is_file() and not list_missing(folder, EMBEDDINGS)
        except UserError:
            return False  # what is missing is made; damage is reported when the folder is opened
