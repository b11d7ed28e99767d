"""Traces and compiles the programs of a job for a machine, in a process of its own.

Describing a machine changes the process that does it, so `plan_job` starts
  python -m big_align.planning.jobs.tracing FOLDER
FOLDER/request.json says what to do. The report goes to FOLDER/report.json, and what is wrong with
the request to FOLDER/failed.json.
"""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from big_align.core.errors import UserError
from big_align.planning.jobs.requests import JobRequest

ROOT = pathlib.Path(__file__).resolve().parents[3]


def plan_job(request: JobRequest, price: float | None = None) -> dict[str, Any]:
    """Compiles what a job runs; returns its report. The price is of a chip-hour, in dollars."""
    request.check()
    # libtpu must not look for chips, and libraries should not print greetings.
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    path = (os.getcwd(), str(ROOT), os.environ.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        asked = {"request": dataclasses.asdict(request), "price": price}
        (folder / "request.json").write_text(json.dumps(asked))
        done = subprocess.run(
            [sys.executable, "-m", __name__, name],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        )  # fmt: skip
        if (folder / "failed.json").exists():
            raise UserError(json.loads((folder / "failed.json").read_text()))
        if done.returncode:
            raise RuntimeError(f"the job could not be planned:\n{done.stdout[-5000:]}")
        return json.loads((folder / "report.json").read_text())


def main(folder: pathlib.Path) -> int:
    """Plans one job; returns the exit status."""
    from big_align.planning.jobs.cluster_job import trace_clusters
    from big_align.planning.jobs.duplicates_job import trace_duplicates
    from big_align.planning.jobs.embed_job import trace_embedding
    from big_align.planning.jobs.report import make_report
    from big_align.planning.machines import find_machine

    asked = json.loads((folder / "request.json").read_text())
    request = JobRequest(**asked["request"])
    try:
        machine = find_machine(request.topology, request.slices)
        traced = {
            "embed": lambda: trace_embedding(request, machine, folder),
            "cluster": lambda: trace_clusters(request, machine),
            "duplicates": lambda: trace_duplicates(request, machine),
        }[request.job]()
        report = make_report(request, machine, traced, asked["price"])
    except UserError as error:
        (folder / "failed.json").write_text(json.dumps(str(error)))
        return 1
    (folder / "report.json").write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
