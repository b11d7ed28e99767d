"""The tiny config, in which the disk of one process, or of all, fails or stalls."""

import errno
import os
import pathlib
import sys
import time
from concurrent.futures import Future

from big_align.training.saving import handlers, step_folders
from tests import tiny_config

STALL_SECONDS = 600


def get_config(argument: str):
    """Returns the config; a file `fault` in the workdir tells when the fault has been met.

    Args:
      argument: `PROCESS,FAULT,TIMES`. The fault is the name of an error number, met by what a save
        writes in the background, or "stall", where this takes forever; with "probe_" before, the
        small file before a save meets it, and with "start_" that at the start. TIMES is how many
        saves meet it, 0 for all.
    """
    process, fault, times = argument.split(",")
    spoiled = {handlers.make_state_handler.__module__, step_folders.try_writing.__module__}
    again = not spoiled <= {handlers.__name__, step_folders.__name__}  # a config is read twice
    if os.environ.get("JAX_PROCESS_ID") == process and not again:
        place, _, kind = fault.rpartition("_")
        met = []

        def meet() -> None:
            if int(times) and len(met) >= int(times):
                return
            met.append(None)
            (workdir,) = (x for x in sys.argv if x.startswith("--workdir="))
            folder = pathlib.Path(workdir.partition("=")[2])
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "fault").touch()
            if kind == "stall":
                time.sleep(STALL_SECONDS)
            number = getattr(errno, kind)
            raise OSError(number, os.strerror(number))

        if place:
            _spoil_probes(meet, place == "start")
        else:
            _spoil_saves(meet)
    return tiny_config.get_config()


def _spoil_saves(meet) -> None:
    make = handlers.make_state_handler

    def make_spoiled(complete):
        handler = make(complete)
        save = handler.async_save

        class Spoiled(Future):
            def result(self, timeout=None):
                meet()

        async def async_save(*args, **kwargs):
            return [*await save(*args, **kwargs), Spoiled()]

        handler.async_save = async_save
        return handler

    handlers.make_state_handler = make_spoiled


def _spoil_probes(meet, at_start: bool) -> None:
    probe = step_folders.try_writing

    def try_writing(folder, process):
        if (folder.name == step_folders.FOLDER) != at_start:
            try:
                meet()
            except OSError as error:
                return step_folders.find_reason(error)
        return probe(folder, process)

    step_folders.try_writing = try_writing
