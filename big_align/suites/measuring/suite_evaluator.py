"""A suite of named data sets as an evaluator of a run, which reports their mean."""

from big_align.core.nodes import Node
from big_align.data.text.tokenizers import Tokenizer
from big_align.evaluators.embedder import Embedder
from big_align.evaluators.exhibits.exhibit import Measured
from big_align.suites import catalog
from big_align.suites.measuring.evaluator import NamedBenchmark
from big_align.suites.measuring.means import average_results
from big_align.suites.measuring.plans import EQUAL_CLASSES


class NamedSuite:
    """What a paper reports of a suite: its measure on each data set, and the mean of them.

    Args:
      suite: name of the suite.
      data: the folder with all data sets.
      transform: image operations, without randomness.
      tokenizer: the one that the model was trained with.
      task: a task that fits all of its data sets, as in `NamedBenchmark`.
      shots: images per class for few-shot classification.
      draws: number of draws for few-shot classification.
      equal_classes: as in `NamedBenchmark`.
      max_broken_fraction: the fraction of broken examples above which evaluation stops.

    Raises:
      UserError: there is no such suite, data are missing, or the task does not fit a data set.
    """

    @classmethod
    def needs(cls, settings: Node) -> tuple[str, ...]:
        """Returns the methods of an objective that it calls."""
        task = settings.get("task", "zero_shot")
        called = [
            method
            for name in catalog.read_suite(str(settings["suite"])).names
            for method in NamedBenchmark.needs({"benchmark": name, "task": task})
        ]
        return tuple(dict.fromkeys(called))

    def __init__(
        self,
        suite: str,
        data: str,
        transform: str,
        tokenizer: Tokenizer,
        task: str = "zero_shot",
        shots: tuple[int, ...] = (1, 2, 4, 8, 16),
        draws: int = 3,
        equal_classes: str = EQUAL_CLASSES[0],
        max_broken_fraction: float = 0.01,
    ):
        self.suite = catalog.read_suite(suite)
        given = data, transform, tokenizer, task, shots, draws, equal_classes
        self.benchmarks = {
            name: NamedBenchmark(name, *given, self.suite.templates.get(name), max_broken_fraction)
            for name in self.suite.names
        }

    @property
    def numbers(self) -> tuple[str, ...]:
        """The names of the numbers it returns: means, and after them those of each data set."""
        all_names = [each.numbers for each in self.benchmarks.values()]
        shared = [name for name in all_names[0] if all(name in names for names in all_names)]
        each = [f"{name}/{number}" for name, x in self.benchmarks.items() for number in x.numbers]
        return "score", *shared, *each

    @property
    def lower_is_better(self) -> tuple[str, ...]:
        """Those that are errors."""
        return tuple(name for name in self.numbers if name.endswith("ece"))

    def __call__(self, embedder: Embedder) -> dict[str, float]:
        """Measures all data sets and returns their numbers and means."""
        return self.measure(embedder).numbers

    def measure(self, embedder: Embedder) -> Measured:
        """Measures all data sets, one after the other; pictures are those of each."""
        numbers, rows, shows = {}, [], []
        for name, each in self.benchmarks.items():
            outcome, show = each.find(embedder)
            metric = outcome.metric or each.benchmark.metric
            rows.append({"metric": metric, "score": outcome.score, "metrics": outcome.numbers})
            numbers |= {f"{name}/{number}": value for number, value in outcome.numbers.items()}
            shows.append(show)
        mean = average_results(rows, self.suite.measure)
        means = {"score": mean["score"], **mean["metrics"]}
        return Measured(means | numbers, lambda: [shown for show in shows for shown in show()])
