"""What an experiment is: a question, rows of overrides, seeds, and measures."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from experiments import training

Numbers = Mapping[str, float]
"""What a training is measured by."""
RECALLS = {
    "image to text R@10": "retrieval/image_to_text_r10",
    "text to image R@10": "retrieval/text_to_image_r10",
}
"""Measures of most, by their titles."""
Found = Mapping[str, list[Numbers]]
"""The numbers of each seed, by row."""


class Row(NamedTuple):
    """A row of a table: what is trained.

    Texts in changes may name {data}, the folder of data sets, {output}, that of the experiment,
    {seed}, {split}, which is measured, and {trained}, the splits of Flickr8k that come before it.
    In a path of a change, `*` is every child.

    Attributes:
      key: what the names of its trials begin with; rows of equal keys are the same trainings.
      config: the name of a config, and its argument.
      changes: values by their path in the config.
      dev: further changes of the trainings that choose a learning rate.
      rate: the learning rate, of a row that is not tuned; None for that of the config.
      before: what is trained first; its image tower is where this one starts.
      tuned_as: the row that chooses the learning rate, if it is another.
      joined: rows that are shown side by side in this one, by name.
    """

    key: str
    config: str = ""
    changes: Mapping[str, Any] = {}
    dev: Mapping[str, Any] = {}
    rate: float | None = None
    before: "Row | None" = None
    tuned_as: "Row | None" = None
    joined: "Mapping[str, Row]" = {}

    @property
    def trained(self) -> "tuple[Row, ...]":
        """The rows whose trainings this one shows."""
        return tuple(self.joined.values()) or (self,)


class Table(NamedTuple):
    """Rows that are compared.

    Attributes:
      rows: by their titles.
      baselines: rows from which the others' differences are shown; None for the first.
      columns: measures by their titles; None for those of the experiment.
      bare: whether numbers are all that is shown, without learning rates.
    """

    rows: Mapping[str, Row]
    baselines: tuple[str, ...] | None = None
    columns: Mapping[str, str] | None = None
    bare: bool = False


class Experiment(NamedTuple):
    """Trainings that answer a question.

    Attributes:
      question: in one line.
      paper: which of its tables or figures asks it.
      page: where the answer is, with its heading.
      needs: packages and data besides Flickr8k.
      tables: by name; "" for the only one.
      columns: measures by their titles.
      seeds: trainings of each row that are measured.
      rates: learning rates that each row is tried with, on development data; () for no tuning.
      times: whether rates are multiples of the config's.
      chosen_by: measures by whose mean a rate is chosen; () for those of `columns`.
      changes: of every row, as in `Row`.
      dev: the same of `Row.dev`.
      name: of a trial.
      notes: measures that are shown once for each row, by their titles.
      change: adapts a config as no path of it says; given the config, the row and the names that
        texts may hold.
      prepare: makes what trainings share.
      train: trains and measures a row.
      measure: returns the numbers of a training, given what its evaluation found, its workdir and
        the measured split; None for those of `columns`.
      join: returns the numbers of joined rows, given those of a seed by name.
      tell: prints what tables do not have, given the numbers of each table, and the folder.
      plot: draws the numbers of each table into a file.
    """

    question: str
    paper: str
    page: str
    tables: Mapping[str, Table]
    columns: Mapping[str, str]
    needs: str = ""
    seeds: int = 5
    rates: tuple[float, ...] = ()
    times: bool = False
    chosen_by: tuple[str, ...] = ()
    changes: Mapping[str, Any] = {}
    dev: Mapping[str, Any] = {}
    name: str = "{key}-{split}-{rate:g}-{seed}"
    notes: Mapping[str, str] = {}
    change: Callable[..., None] | None = None
    prepare: Callable[[training.Shared], None] | None = None
    train: Callable[..., Numbers] = training.train
    measure: Callable[..., Numbers] | None = None
    join: Callable[[Mapping[str, Numbers]], Numbers] | None = None
    tell: Callable[..., None] | None = None
    plot: Callable[..., None] | None = None

    @property
    def measures(self) -> list[str]:
        """All measures that a table shows."""
        shown = [self.columns, *(table.columns or {} for table in self.tables.values())]
        return list(dict.fromkeys(measure for columns in shown for measure in columns.values()))
