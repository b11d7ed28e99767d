"""Processes of a run as threads of one, which agree through a store as in a run."""

import concurrent.futures
import threading
import types

from big_align.parallel.distributed import agreement, processes
from big_align.training.saving import rounds

PATIENCE_SECONDS = 3


class Waiting(Exception):
    """A process waits for what no other process will say."""


class Store:
    """The store of JAX's coordination service, whose readers do not wait forever."""

    def __init__(self):
        self._values, self._changed = {}, threading.Condition()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def blocking_key_value_get(self, key, _):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, PATIENCE_SECONDS):
                raise Waiting(key)
            return self._values[key]

    def key_value_dir_get(self, prefix):
        return [(k, v) for k, v in sorted(self._values.items()) if k.startswith(prefix)]

    def key_value_delete(self, prefix):
        with self._changed:
            self._values = {k: v for k, v in self._values.items() if not k.startswith(prefix)}


def run_both(monkeypatch, act, count=2):
    """Calls `act` with the number of each process; returns what it returns, or the exceptions."""
    own, store, outcomes = threading.local(), Store(), [None] * count

    class Numbers:
        def __next__(self):
            own.number += 1
            return own.number

    def run(process):
        own.number = 0
        own.state = types.SimpleNamespace(process_id=process, num_processes=count, client=store)
        try:
            outcomes[process] = act(process)
        except Exception as error:
            outcomes[process] = error

    alone = processes.coordination()
    with monkeypatch.context() as patch:
        patch.setattr(processes, "coordination", lambda: getattr(own, "state", alone))
        for module in (agreement, rounds):
            patch.setattr(module, "_NUMBERS", Numbers())
        threads = [threading.Thread(target=run, args=(process,)) for process in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return outcomes


def run_together(act, count):
    """Calls `act` with the number of each of some processes that know nothing of each other."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(act, range(count)))
