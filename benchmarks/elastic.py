"""Kills and stops processes that share work, again and again, and compares with one left alone.

Eight processes, which take each other for hosts, run the same command. At seeded moments one is
killed (SIGKILL) and started again a while later, or stopped (SIGSTOP) for longer than the term of
its leases, and goes on. Then every file must be that of a single undisturbed process, byte for
byte; each unit of work must have been taken once, but for those that a killed or stopped process
had; and nothing else may be left.

  python benchmarks/elastic.py --workdir=/tmp/elastic
  python benchmarks/elastic.py --workdir=/tmp/elastic --tool=find_duplicates

Images, model and leases are small: a unit takes half a second, most of which is a pause, so that
two cores do for all.
"""

import collections
import importlib
import io
import os
import pathlib
import random
import shutil
import signal
import socket
import sys
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"

import numpy as np
from PIL import Image

from benchmarks import measuring

TERM = 2.0  # seconds of a lease
STOPPED = 4  # of so many processes one is stopped; the others are killed
IMAGES = 8  # of a shard, and of a batch
UNITS_A_KILL = 26  # so that the work lasts until the last one
AWAY = (0.0, 3.0)  # seconds until a killed process comes back
IMPORTED = (
    "big_align.tools.embed",
    "big_align.tools.find_duplicates",
    "big_align.runs.workdir",
    "big_align.runs.embedding.embed_source",
    "big_align.use.duplicates.twin_page",
    "big_align.config.components.source_flags",
    "big_align.data.sources.tar_source",
    "big_align.weights.hub.download",
)


def draw_shard(seed: int, path: pathlib.Path) -> None:
    """Writes a shard of images of a few colors."""
    draw = np.random.default_rng(seed)
    with tarfile.open(path, "w") as tar:
        for number in range(IMAGES):
            pixels = np.kron(draw.integers(0, 256, (2, 2, 3)), np.ones((4, 4, 1)))
            file = io.BytesIO()
            Image.fromarray(pixels.astype(np.uint8)).save(file, "PNG")
            member = tarfile.TarInfo(f"{seed}-{number}.png")
            member.size = len(file.getvalue())
            tar.addfile(member, io.BytesIO(file.getvalue()))


def write_inputs(folder: pathlib.Path, shards: int) -> None:
    """Writes a tiny model, shards of images, and shards of test images."""
    import flax.linen as nn
    import jax

    from big_align import weights
    from big_align.weights.formats.preprocessing import Preprocessing
    from big_align.weights.formats.pretrained import Pretrained

    node = {"name": "resnet", "variant": "18", "width": 8, "depths": (1, 1), "stem": "small"}
    model = Pretrained(node, {}).model
    variables = jax.jit(model.init)(jax.random.key(0), np.zeros((1, 8, 8, 3), np.float32))
    variables = jax.tree.map(np.asarray, nn.meta.unbox(variables))
    seen = Preprocessing(8, 8, keep_aspect=False)
    weights.save(folder / "model", Pretrained(node, variables, 8, seen), "big_align")
    for number in range(shards):
        draw_shard(number, folder / f"train-{number:05d}.tar")
    for number in range(2):  # the second is that of some training images
        draw_shard(10**6 * (1 - number), folder / f"test{chr(97 + number)}.tar")


def list_flags(tool: str, inputs: pathlib.Path, output: pathlib.Path) -> list[str]:
    """Returns the flags of a command."""
    model = [f"--model={inputs / 'model'}", f"--batch_size={IMAGES}"]
    if tool == "embed":
        return [*model, f"--source={inputs}/train-*.tar", f"--output={output}"]
    return [
        *model, f"--input={inputs}/train-*.tar", "--input_argument=caption=",
        f"--against={inputs}/test*.tar", "--threshold=0.99",
        f"--output={output / 'drop.jsonl'}", f"--work={output / 'work'}",
    ]  # fmt: skip


class Log:
    """A file to which all processes add lines."""

    def __init__(self, path: pathlib.Path):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.path = path

    def add(self, *words: Any) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def read(self) -> list[list[str]]:
        return [line.split(" ") for line in self.path.read_text().splitlines()]


def fork(act: Callable[[], int], output: pathlib.Path | None = None) -> int:
    """Calls a function in a new process, which says what it says in a file; returns its number."""
    sys.stdout.flush()
    if child := os.fork():
        return child
    status = 1
    try:
        if output:
            file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            for number in (1, 2):
                os.dup2(file, number)
        status = act()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def wait(process: int) -> int:
    """Returns the status of a process that has ended."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def work(tool: str, flags: list[str], host: str, log: Log, pause: float) -> int:
    """Runs a command as if on a host; returns its status."""
    from big_align.data.precomputed import shared_shards
    from big_align.data.shared import leases
    from big_align.data.shared.shared_work import SharedWork
    from big_align.runs.embedding import embed_source
    from big_align.use.duplicates import twins

    take, finish, find = SharedWork.take, SharedWork.finish, twins.NearestFinder.find
    embed = embed_source._embed_batch

    def take_and_log(self: SharedWork) -> Iterator[int]:
        for number in take(self):
            if self._leases is not None:
                log.add("take", os.getpid(), f"{self.folder}/{self.units[number].name}")
            yield number

    def finish_and_log(self: SharedWork, number: int) -> None:
        finish(self, number)
        if self._leases is not None:
            log.add("finish", os.getpid(), f"{self.folder}/{self.units[number].name}")

    def embed_slowly(*arguments: Any) -> Any:
        time.sleep(pause)
        return embed(*arguments)

    def find_slowly(self: twins.NearestFinder, rows: Any) -> Any:
        time.sleep(pause)
        return find(self, rows)

    SharedWork.take, SharedWork.finish = take_and_log, finish_and_log
    embed_source._embed_batch, twins.NearestFinder.find = embed_slowly, find_slowly
    leases.SECONDS, shared_shards.LEAST = TERM, 1
    socket.gethostname = lambda: host
    return importlib.import_module(f"big_align.tools.{tool}").main(flags)


class Hosts:
    """The processes that share the work, by the numbers of their hosts."""

    def __init__(self, start: Callable[[int], int], count: int, log: Log):
        self._start, self._log, self._began = start, log, time.monotonic()
        self.running = {host: start(host) for host in range(count)}
        self._back: dict[int, float] = {}  # when a killed one comes back
        self._on: dict[int, float] = {}  # when a stopped one goes on
        self.failed: list[int] = []

    def list_disturbable(self) -> list[int]:
        return [host for host in self.running if host not in self._on]

    def disturb(self, number: int, draw: random.Random) -> None:
        """Kills a process or stops it."""
        host = draw.choice(self.list_disturbable())
        process, had = self.running[host], self._list_held()
        names = [pathlib.Path(name).name for name in had[process]]
        held = f"{len(names)} units, {names[0]} the first" if names else "nothing"
        if number % STOPPED == 0:
            os.kill(process, signal.SIGSTOP)
            self._log.add("disturb", process)
            self._on[host] = time.monotonic() + TERM * draw.uniform(1.5, 2.5)
            self._say(f"{number:3d}: host {host} is stopped, which has {held}")
            return
        os.kill(process, signal.SIGKILL)
        wait(process)
        self._log.add("disturb", process)
        del self.running[host]
        self._back[host] = time.monotonic() + draw.uniform(*AWAY)
        self._say(f"{number:3d}: host {host} is killed, which has {held}")

    def follow(self) -> bool:
        """Starts and continues processes when it is time; returns whether any is left."""
        now = time.monotonic()
        for host in [host for host, moment in self._back.items() if moment < now]:
            del self._back[host]
            self.running[host] = self._start(host)
            self._say(f"     host {host} is back")
        for host in [host for host, moment in self._on.items() if moment < now]:
            del self._on[host]
            os.kill(self.running[host], signal.SIGCONT)
            self._say(f"     host {host} goes on")
        for host, process in list(self.running.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                del self.running[host]
                self._on.pop(host, None)
                self._say(f"     host {host} has ended, status {status}")
                self.failed += [status] if status else []
        return bool(self.running or self._back)

    def _list_held(self) -> dict[str, list[str]]:
        held: dict[int, list[str]] = collections.defaultdict(list)
        for verb, process, *name in self._log.read():
            if verb == "take":
                held[int(process)].append(name[0])
            elif verb == "finish" and name[0] in held[int(process)]:
                held[int(process)].remove(name[0])
        return held

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s {text}", flush=True)


def count_taken(log: Log) -> tuple[dict[str, int], dict[str, int]]:
    """Counts how often each unit was taken, and by processes that were then left alone."""
    all_of, kept = collections.Counter(), collections.Counter()
    held: dict[str, set[str]] = collections.defaultdict(set)
    for verb, process, *name in log.read():
        if verb == "take":
            all_of[name[0]] += 1
            kept[name[0]] += 1
            held[process].add(name[0])
        elif verb == "finish":
            held[process].discard(name[0])
        else:
            kept.subtract(held.pop(process, ()))
    return all_of, kept


def read_files(folder: pathlib.Path) -> dict[str, bytes]:
    """Returns all files below a folder, hidden ones too."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def compare(whole: pathlib.Path, shared: pathlib.Path, log: Log) -> list[str]:
    """Lists what differs, and what was done twice without need."""
    one, many = read_files(whole), read_files(shared)
    faults = [f"{name} is missing" for name in sorted(one.keys() - many)]
    faults += [f"{name} is left" for name in sorted(many.keys() - one)]
    faults += [f"{name} differs" for name in sorted(one.keys() & many) if one[name] != many[name]]
    all_of, kept = count_taken(log)
    again = {name: count for name, count in kept.items() if count > 1}
    faults += [f"{name} was taken {n} times by those left alone" for name, n in again.items()]
    twice = sum(1 for n in all_of.values() if n > 1)
    print(f"{len(many)} files; {len(all_of)} units, of which {twice} were taken more than once")
    return faults


def main() -> None:
    """Prints a line for each kill, and what differs."""
    given = dict(hosts=8, kills=30, seed=0, pause=0.4)
    parser = measuring.make_parser(__doc__, **given)
    parser.add_argument("--workdir", type=pathlib.Path, required=True)
    parser.add_argument("--tool", choices=("embed", "find_duplicates"), default="embed")
    options = parser.parse_args()
    draw, root = random.Random(options.seed), options.workdir.absolute()
    shutil.rmtree(root, ignore_errors=True)
    inputs = root / "inputs"
    inputs.mkdir(parents=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(root / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    for name in IMPORTED:  # once for all processes
        importlib.import_module(name)
    shards = UNITS_A_KILL * options.kills
    if wait(fork(lambda: write_inputs(inputs, shards) or 0)):
        sys.exit("the inputs cannot be made")

    def start(folder: pathlib.Path, host: int, pause: float, log: Log) -> int:
        folder.mkdir(exist_ok=True)
        flags = list_flags(options.tool, inputs, folder)
        act = lambda: work(options.tool, flags, f"host-{host}", log, pause)  # noqa: E731
        return fork(act, root / f"host-{host}.txt")

    began = time.monotonic()
    if wait(start(root / "whole", 0, 0.0, Log(root / "whole.log"))):
        told = (root / "host-0.txt").read_text()
        sys.exit(f"the command that nobody disturbs has failed:\n{told}")
    print(f"undisturbed, without pauses: {shards} shards in {time.monotonic() - began:.0f} s")
    log = Log(root / "shared.log")
    hosts = Hosts(lambda host: start(root / "shared", host, options.pause, log), options.hosts, log)
    kills, moment, began = 0, time.monotonic() + 3, time.monotonic()
    while hosts.follow():
        if kills < options.kills and time.monotonic() > moment and hosts.list_disturbable():
            kills += 1
            hosts.disturb(kills, draw)
            moment = time.monotonic() + draw.uniform(0.2, 2.5)
        time.sleep(0.02)
    print(f"{kills} times disturbed in {time.monotonic() - began:.0f} s")
    faults = compare(root / "whole", root / "shared", log)
    faults += [f"a process has ended with status {status}" for status in hosts.failed]
    faults += [f"only {kills} of {options.kills} kills"] * (kills < options.kills)
    print("\n".join(faults) or "every file as of one process; each unit once, but for those lost")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
