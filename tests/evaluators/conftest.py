"""Whatever an evaluator measures in these tests, it has said by name that it would.

And it leaves no thread behind, whether it ends or fails.
"""

import importlib
import re
import threading

import pytest

from big_align.config.components.tables import EVALUATORS
from big_align.training.logs.directions import CANDIDATES, CHANCE


@pytest.fixture(autouse=True)
def measured_as_said(monkeypatch):
    for path in EVALUATORS.values():
        module, _, name = path.partition(":")
        evaluator = getattr(importlib.import_module(module), name)
        measure = evaluator.__call__

        def check(self, embedder, measure=measure):
            before = set(threading.enumerate())
            try:
                results = measure(self, embedder)
            finally:
                left = [each.name for each in set(threading.enumerate()) - before]
                assert not [name for name in left if name.startswith("data")]
            facts = {name for name in results if name.endswith((CHANCE, CANDIDATES))}
            missing = set(self.numbers) - set(results)
            assert set(results) - facts <= set(self.numbers)
            # Only what any model reaches is left out: among the first k of no more candidates.
            assert all(re.search(r"(_r\d+|^top5)$", name) for name in missing)
            return results

        monkeypatch.setattr(evaluator, "__call__", check)
