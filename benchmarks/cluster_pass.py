"""A pass of `tools.cluster` in two processes: its time against its products, and its memory.

    python benchmarks/cluster_pass.py           # 500,000 and 2,000,000 x 256, 20,000 centers
    python benchmarks/cluster_pass.py --rows=200000 --k=2000 --dim=128

Rows are drawn around twice as many middles as there are centers, and written as `tools.embed` does,
a fourth of them and all. Each folder is then clustered by two processes, as on two hosts, in so
many iterations. The bound of a pass is 2 n k d FLOPs at the rate of a large product that has all
cores, measured before. Memory is the largest of a process's own, which leaves out pages of files:
these the system drops where others need the memory. It should not grow with the rows, except for
the 8 bytes that a device holds of each.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np

from benchmarks import measuring
from big_align.data.precomputed import shard_files
from big_align.data.precomputed.shard_files import EMBEDDINGS, Shard
from big_align.use.clusters.kmeans_init import scale_rows

SHARD = 50_000
NOISE = 1.0


def write_rows(folder: pathlib.Path, count: int, k: int, dim: int) -> None:
    """Writes a folder of embeddings, a shard at a time."""
    sizes = [min(SHARD, count - first) for first in range(0, count, SHARD)]
    shards = [Shard(f"{n}.tar", f"{n:06d}", size) for n, size in enumerate(sizes)]
    index = {"dim": dim, "dtype": "float16", "unit_length": True}
    index |= {"shards": [shard._asdict() for shard in shards], "made_by": {"weights": "drawn"}}
    shard_files.claim_folder(folder, index, write=True)
    middles = scale_rows(np.random.default_rng(7).standard_normal((2 * k, dim), np.float32))
    for number, shard in enumerate(shards):
        rng = np.random.default_rng(number)
        rows = rng.standard_normal((shard.count, dim), np.float32) * (NOISE / np.sqrt(dim))
        rows = scale_rows(rows + middles[rng.integers(0, len(middles), shard.count)])
        keys = shard_files.join_keys(f"{number}-{n}" for n in range(shard.count))
        shard_files.write_shard(folder, shard, EMBEDDINGS, np.float16(rows), keys)


def read_own(process: int) -> int:
    """Returns the bytes of a process that are not those of files; 0 if it has ended."""
    try:
        text = pathlib.Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"^RssAnon:\s+(\d+)", text, re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


def list_children(process: int) -> list[int]:
    """Lists the processes that a process has started, and those that these have."""
    path = pathlib.Path(f"/proc/{process}/task/{process}/children")
    children = [int(number) for number in path.read_text().split()] if path.exists() else []
    return children + [each for child in children for each in list_children(child)]


def cluster(embeddings: pathlib.Path, output: pathlib.Path, options) -> tuple[list[float], int]:
    """Clusters in two processes; returns seconds of passes, and the most bytes of a process."""
    command = ["launch/local.sh", "2", "--", sys.executable, "-m", "big_align.tools.cluster"]
    command += ["--distributed", f"--embeddings={embeddings}", f"--output={output}"]
    command += [f"--k={options.k}", f"--iterations={options.iterations}", "--tolerance=0"]
    command += ["--start=sampled"]
    most = 0
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=printed, stderr=subprocess.STDOUT, text=True
        )
        while process.poll() is None:
            most = max([most, *map(read_own, list_children(process.pid))])
            time.sleep(0.2)
        printed.seek(0)
        text = printed.read()
    if process.returncode:
        raise RuntimeError(text[-3000:])
    found = re.findall(r"iteration \d+: mean cosine ([\d.]+).*?, ([\d.]+) s", text)
    print(f"{output.name}: mean cosines {', '.join(cosine for cosine, _ in found)}", flush=True)
    return [float(seconds) for _, seconds in found], most


def main() -> None:
    """Prints the table."""
    given = dict(rows=2_000_000, k=20_000, dim=256, iterations=3)
    options = measuring.make_parser(__doc__, **given).parse_args()
    rate = measuring.measure_matmul()
    table = []
    with tempfile.TemporaryDirectory() as name:
        for rows in (options.rows // 4, options.rows):
            folder = pathlib.Path(name) / str(rows)
            write_rows(folder, rows, options.k, options.dim)
            seconds, most = cluster(folder, folder.with_name(f"{rows} rows"), options)
            flops = 2.0 * rows * options.k * options.dim
            last = min(seconds[1:] or seconds)  # the first compiles
            bound = flops / rate
            table.append((f"{rows:,}", last, bound, f"{bound / last:.0%}", most / measuring.MIB))
    title = f"k = {options.k}, d = {options.dim}, float32, two processes, {measuring.CORES} cores"
    columns = "rows", "a pass, s", "its products, s", "of the bound", "a process, MiB"
    measuring.print_table(columns, table, title)


if __name__ == "__main__":
    main()
