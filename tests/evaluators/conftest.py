"""Whatever an evaluator measures in these tests, it has said by name that it would.

And it leaves no thread behind, whether it ends or fails.
"""

import importlib
import threading

import pytest

from big_align.config.components.tables import EVALUATORS


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
            assert set(results) == set(self.numbers)
            return results

        monkeypatch.setattr(evaluator, "__call__", check)
