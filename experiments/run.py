"""Runs experiments: small trainings on real pictures that ask the papers' questions again.

    python experiments/run.py --list                   # all of them
    python experiments/run.py align_towers             # the tables of one
    python experiments/run.py labels --tables grocery --rows cross-entropy UniCL
    python experiments/run.py align_towers --plan      # what it would train, and how long

Trials are trained one a core at a time. Those in experiments/trials are found there, so the tables
of docs/results are printed at once; others go to OUTPUT/trials.jsonl, where the same command
continues. A row is tuned on development data with a seed of its own, then trained once a seed and
measured once on the test data. Numbers are percentages, means with the interval of 95% by Student's
t, and differences, paired by seed. All of them need $BIG_ALIGN_DATA, those of classes and tags
WordNet in $NLTK_DATA.
"""

import argparse
import os
import pathlib
import statistics
import sys
from collections.abc import Iterable

if __name__ == "__main__":  # this folder is a package of its parent
    sys.path[0] = str(pathlib.Path(__file__).resolve().parent.parent)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from big_align.core import huge_pages
from experiments import table, tables, trials
from experiments.experiment import Experiment, Found, Row, Table
from experiments.table import EXPERIMENTS
from experiments.training import ROOT, TUNING_SEED, Shared, Training
from experiments.trials import Trial


def parse_arguments() -> argparse.Namespace:
    """Reads the command line, and fills in what depends on the experiment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("name", nargs="?", choices=EXPERIMENTS, metavar="NAME", help="one of --list")
    add("--list", action="store_true", help="print the table of experiments")
    add("--tables", nargs="+", help="some tables of the experiment (all)")
    add("--rows", nargs="+", help="some rows of these tables (all)")
    add("--seeds", type=_count_seeds, help="trainings of each row, after its tuning")
    add("--output", type=pathlib.Path, help="folder (workdirs/NAME)")
    add("--plan", action="store_true", help="print what is left to train, and how long it takes")
    add("--anew", action="store_true", help="train what experiments/trials has, too")
    add("--steps", type=int, help="of every training, to try an experiment out; as --anew")
    add("--keep", action="store_true", help="keep the workdir of each trial, as OUTPUT/TRIAL")
    add("--plot", type=pathlib.Path, help="draw the numbers into a file")
    options = parser.parse_args()
    if options.list:
        return options
    if not options.name:
        parser.error("NAME is missing; --list prints all")
    experiment = EXPERIMENTS[options.name]
    if options.plot and not experiment.plot:
        parser.error(f"{options.name} has no picture for --plot")
    options.seeds = options.seeds or experiment.seeds
    options.output = (options.output or ROOT / "workdirs" / options.name).absolute()
    if options.steps:  # apart from what is trained to its end
        options.output /= f"steps{options.steps}"
    known = experiment.tables
    options.tables = _choose(parser, "tables", options.tables, known)
    rows = dict.fromkeys(row for name in options.tables for row in known[name].rows)
    options.rows = _choose(parser, "rows", options.rows, rows)
    return options


def _choose(
    parser: argparse.ArgumentParser, flag: str, given: list[str] | None, known: Iterable[str]
) -> list[str]:
    if strange := [name for name in given or () if name not in known]:
        parser.error(f"--{flag}: there is no {strange[0]!r}, but {', '.join(map(repr, known))}")
    return given or list(known)


def _count_seeds(text: str) -> int:
    """Reads a number of seeds: an interval takes two."""
    if int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text} is not 2 or more, which an interval takes")
    return int(text)


class Run:
    """The trials of an experiment: what is recorded, and what is left."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.experiment = options, EXPERIMENTS[options.name]
        self.tables = {
            name: {title: row for title, row in known.rows.items() if title in options.rows}
            for name, known in self.experiment.tables.items()
            if name in options.tables
        }
        self.rows: dict[str, Row] = {
            part.key: part
            for rows in self.tables.values()
            for row in rows.values()
            for part in row.trained
        }
        """What is trained, by key."""
        recorded = [] if options.anew or options.steps else [find_recorded(options.name)]
        self.records = trials.read_records(*recorded, options.output / trials.FILE)
        self.prepared = False

    def make_trial(self, row: Row, split: str, rate: float | None, seed: int) -> Trial:
        """Returns the trial of a training."""
        if split == "dev":
            row = row.tuned_as or row
        names = dict(key=row.key, split=split, rate=0.0 if rate is None else rate, seed=seed)
        name = self.experiment.name.format(**names)
        output = self.options.output
        keep = str(output / name) if self.options.keep else None
        given = row, split, rate, seed, str(output), self.options.steps, keep
        return Trial(name, (self.options.name, Training(*given)))

    def tune(self) -> dict[str, list[Trial]]:
        """Returns the trials that choose the learning rate of each row, by key."""
        return {
            key: [self.make_trial(row, "dev", rate, TUNING_SEED) for rate in self.experiment.rates]
            for key, row in self.rows.items()
            if self.experiment.rates
        }

    def choose(self, tuning: dict[str, list[Trial]]) -> dict[str, float | None]:
        """Returns the learning rate of each row: the best on development data, if it is tuned."""
        metrics = self.experiment.chosen_by or tuple(self.experiment.columns.values())
        rates = self.experiment.rates
        chosen = {key: row.rate for key, row in self.rows.items()}
        for key, tried in tuning.items():
            numbers = [self.records[trial.name].numbers for trial in tried]
            scores = [sum(each[metric] for metric in metrics) for each in numbers]
            chosen[key] = rates[scores.index(max(scores))]
            if chosen[key] in (min(rates), max(rates)) and len(rates) > 2:
                print(f"{key}: the best is at the edge of what was tried, {chosen[key]:g}")
        return chosen

    def measure(self, rates: dict[str, float | None]) -> dict[str, list[Trial]]:
        """Returns the trials of each row that look at the test data, by key."""
        return {
            key: [
                self.make_trial(row, "test", rates[key], seed) for seed in range(self.options.seeds)
            ]
            for key, row in self.rows.items()
        }

    def missing(self, rows: dict[str, list[Trial]]) -> list[Trial]:
        """Returns the trials that are not recorded, each once."""
        each = {trial.name: trial for row in rows.values() for trial in row}
        return [trial for name, trial in each.items() if name not in self.records]

    def train(self, rows: dict[str, list[Trial]]) -> None:
        """Runs the trials that are not recorded."""
        if not (todo := self.missing(rows)):
            return
        output = self.options.output
        output.mkdir(parents=True, exist_ok=True)
        print(f"{len(todo)} trainings, {self.estimate(todo)}", flush=True)
        if self.experiment.prepare and not self.prepared:
            given = list(self.rows.values()), output, self.options.seeds, self.options.steps
            self.experiment.prepare(Shared(self.experiment, *given))
            self.prepared = True
        self.records |= trials.run_trials(todo, table.train, output)

    def estimate(self, todo: list[Trial]) -> str:
        """Returns how long trials take by what is recorded of the same rows, or of others."""
        recorded = trials.read_records(find_recorded(self.options.name))
        if not recorded or self.options.steps:
            return "of unknown length"
        common = statistics.median(record.seconds for record in recorded.values())
        seconds = 0.0
        for trial in todo:
            key = trial.arguments[1].row.key
            own = [record.seconds for name, record in recorded.items() if key in name]
            seconds += statistics.median(own) if own else common
        cores = len(os.sched_getaffinity(0))
        return f"about {seconds / cores / 3600:.1f} hours on {cores} cores, by those recorded"

    def plan(self) -> str:
        """Returns what is left to train."""
        todo = self.missing(tuning := self.tune())
        rates = self.choose(tuning) if not todo else {key: 0.0 for key in self.rows}
        todo += self.missing(self.measure(rates))
        return f"{len(todo)} trainings, {self.estimate(todo)}" if todo else "nothing is left"

    def collect(self) -> tuple[dict[str, Found], dict[str, float | None]]:
        """Trains what is missing; returns the numbers of each seed, and the learning rates.

        The numbers are by table and row, and the rates by key.
        """
        self.train(tuning := self.tune())
        rates = self.choose(tuning)
        self.train(measured := self.measure(rates))

        def gather(row: Row) -> list:
            runs = [
                [self.records[trial.name].numbers for trial in measured[part.key]]
                for part in row.trained
            ]
            if not row.joined:
                return runs[0]
            seeds = zip(*runs, strict=True)
            return [
                self.experiment.join(dict(zip(row.joined, each, strict=True))) for each in seeds
            ]

        return {
            name: {title: gather(row) for title, row in rows.items()}
            for name, rows in self.tables.items()
        }, rates


def find_recorded(name: str) -> pathlib.Path:
    """Returns the file of the recorded trials of an experiment."""
    return trials.RECORDED / f"{name}.jsonl"


def print_found(
    experiment: Experiment, name: str, rows: dict[str, Row], found: Found, rates: dict
) -> None:
    """Prints a table with its differences."""
    known: Table = experiment.tables[name]
    columns = known.columns or experiment.columns
    chosen = {title: [rates[part.key] for part in row.trained] for title, row in rows.items()}
    form = "x {:g}" if experiment.times else "{:g}"
    told = {
        title: ", ".join(dict.fromkeys(form.format(rate) for rate in each if rate is not None))
        for title, each in chosen.items()
    }
    notes = {
        note: {title: f"{runs[0][measure]:,.0f}" for title, runs in found.items()}
        for note, measure in experiment.notes.items()
    }
    if experiment.rates and known.bare:
        print("learning rates: " + ", ".join(f"{title} {rate}" for title, rate in told.items()))
    elif experiment.rates:
        several = any(row.joined for row in rows.values())
        notes["learning rate" + "s" * several] = told
    prefix = f"{name}, " if name else ""
    seeds = len(next(iter(found.values())))
    tables.print_table(f"{prefix}{seeds} seeds", columns, found, notes)
    baselines = [next(iter(rows))] if known.baselines is None else known.baselines
    tables.print_differences(prefix, columns, found, baselines)


def print_list() -> None:
    """Prints the table of experiments, with what is recorded of each."""
    print("| experiment | paper | question | needs besides Flickr8k | recorded trainings |", end="")
    print(" core hours | answer |\n|---|---|---|---|---|---|---|")
    for name, each in EXPERIMENTS.items():
        records = trials.read_records(find_recorded(name))
        hours = f"{sum(record.seconds for record in records.values()) / 3600:.1f}"
        cells = name, each.paper, each.question, each.needs, str(len(records) or "")
        print(f"| {' | '.join(cells)} | {hours if records else ''} | {each.page} |")


def main() -> None:
    """Runs what is missing and prints the tables."""
    options = parse_arguments()
    if options.list:
        return print_list()
    run = Run(options)
    if options.plan:
        return print(run.plan())
    found, rates = run.collect()
    for name, rows in run.tables.items():
        if rows:
            print_found(run.experiment, name, rows, found[name], rates)
    if run.experiment.tell:
        run.experiment.tell(found, options.output)
    if options.plot:
        run.experiment.plot(found, options.plot)


if __name__ == "__main__":
    huge_pages.restart()
    main()
