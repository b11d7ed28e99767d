"""One run owns a folder: a second one that would write into it is refused.

The owner's file says who it is, and is touched while the owner is alive. On the same machine, a
dead process is recognized at once, by its process id and start time. For another machine, only
changes of the file count: clocks may differ, or be set back. So it is for a copy of the file, which
has another place on the disk than the owner wrote down.

A lock alone, as `filelock` takes, would not do: buckets have none, shared disks may not pass it on
to other hosts, and it does not tell whose it is.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from etils import epath

from big_align.core.errors import MissingCheckpoint, UserError, tell_in_a_line
from big_align.core.regular_files import check_regular, read_regular
from big_align.parallel.distributed import agreement, processes
from big_align.training.saving import step_folders

FILE = "owner.json"  # name of the owner's file in a workdir or a folder of checkpoints
BEAT_SECONDS = 10.0  # how often the owner touches its file
SILENT_SECONDS = 60.0  # after which the owner of an untouched file elsewhere counts as dead
SEEN_SECONDS = 30.0  # how long it may take until a file of one host is seen on another
SETTLE_SECONDS = 0.5  # after which two that write the file both see who wrote last


@contextlib.contextmanager
def own(*folders: str | os.PathLike, shared: Iterable[str | os.PathLike] = ()) -> Iterator[None]:
    """Owns folders while a run writes into them; every process of the run calls this.

    They are created if they are missing, and removed again if they stay empty. In those that are
    also `shared`, every process must see what another one writes.
    """
    with contextlib.ExitStack() as stack:
        refused, tokens = None, {}
        if processes.coordination().process_id == 0:
            try:
                for folder in dict.fromkeys(str(os.fspath(folder)) for folder in folders):
                    tokens[folder] = stack.enter_context(_own_folder(epath.Path(folder)))
            except UserError as error:
                refused = str(error)
            except Exception as error:  # those of buckets are of TensorFlow's, and no OSErrors
                reason = getattr(error, "strerror", None) or tell_in_a_line(error)
                place = getattr(error, "filename", None) or folder
                refused = f"{place}: the run cannot write there ({reason})"
        refused, tokens = agreement.share("owner", [refused, tokens])
        if refused:
            raise UserError(refused)
        for folder in dict.fromkeys(str(os.fspath(folder)) for folder in shared):
            _check_shared(epath.Path(folder), tokens[folder])
        yield


def check_seen(folder: epath.Path, workdir: str) -> None:
    """Checks that a folder of checkpoints is there, and that every process sees it."""
    seen = agreement.gather("checkpoints", folder.is_dir())
    if not any(seen):
        raise MissingCheckpoint(f"no checkpoints in {workdir}: train with this workdir first")
    if not all(seen):
        raise UserError(
            f"{folder}: process {seen.index(False)} does not see it, and others do; it must be on "
            "storage that all hosts share"
        )


def _check_shared(folder: epath.Path, token: str) -> None:
    """Checks that every process sees the owner's file and can write; otherwise no save succeeds."""
    if processes.coordination().num_processes > 1:
        until = time.monotonic() + SEEN_SECONDS
        while not (seen := _read(folder / FILE).get("token") == token):
            if time.monotonic() > until:
                break
            time.sleep(0.2)
        blind = [n for n, sees in enumerate(agreement.gather("sees the folder", seen)) if not sees]
        if blind:
            raise UserError(
                f"{folder}: process {blind[0]} does not see what process 0 writes there; it must "
                "be on storage that all hosts share, such as a bucket: config.checkpoint.folder"
            )
        fault = step_folders.try_writing(folder, processes.coordination().process_id)
        for process, reason in enumerate(agreement.gather("writes to the folder", fault)):
            if reason:
                raise UserError(f"process {process} cannot write to {folder} ({reason})")


@contextlib.contextmanager
def _own_folder(folder: epath.Path) -> Iterator[str]:
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path, me = folder / FILE, _describe_me()
    try:
        _take(path, me)
        stop = threading.Event()
        beat = threading.Thread(target=_beat, args=(path, me, stop), name="owner", daemon=True)
        beat.start()
        try:
            yield me["token"]
        finally:
            stop.set()
            beat.join()
            if _read(path).get("token") == me["token"]:
                path.unlink(missing_ok=True)
    finally:
        if made:
            with contextlib.suppress(OSError):  # it is not empty
                pathlib.Path(folder).rmdir()


def _take(path: epath.Path, me: dict[str, Any]) -> None:
    """Writes the owner's file of a folder, unless another owner is alive."""
    if _make(path, me):
        return
    if path.exists() and "://" not in os.fspath(path):
        check_regular(path)
    gone = _stamp(path)
    if (path.exists() and _lives(path)) or not _replace(path, gone, me):
        raise UserError(_refuse(path))
    time.sleep(SETTLE_SECONDS)
    if _read(path).get("token") != me["token"]:  # two have taken it; the last one to write owns it
        raise UserError(_refuse(path))


def _make(path: epath.Path, me: dict[str, Any]) -> bool:
    """Writes an owner's file if there is none; returns False if there is one, or in a bucket.

    Buckets cannot create a file only if it does not exist.
    """
    if "://" in os.fspath(path):
        return False
    try:
        with open(path, "x") as file:
            _write(file, me)
    except FileExistsError:
        return False
    return True


def _write(file: TextIO, me: dict[str, Any]) -> None:
    """Writes an owner and the place of its file, which distinguishes that file from copies."""
    file.write(json.dumps(me | {"place": _find_place(file.fileno())}) + "\n")


def _replace(path: epath.Path, gone: Any, me: dict[str, Any]) -> bool:
    """Replaces the file of an owner that is gone, unless another process was faster.

    Processes that want the same file queue for its lock, and check again once they have it: however
    long ago they saw that the owner was gone, they see who has taken its place since. Where nothing
    can be locked, as in a bucket, the last write counts.
    """
    try:
        file = open(path, "r+")
    except FileNotFoundError:  # the owner has left meanwhile, or it is in a bucket
        if "://" not in os.fspath(path):
            return _make(path, me)
        path.write_text(json.dumps(me) + "\n")
        return True
    with file:
        with contextlib.suppress(OSError):  # released when the file is closed, or the process dies
            fcntl.flock(file, fcntl.LOCK_EX)
        if _stamp(path) != gone:
            return False
        file.truncate()
        _write(file, me)
        return True


def _lives(path: epath.Path) -> bool:
    """Returns whether the owner of a folder is alive; waits if only its silence can show that."""
    owner, me = _read(path), _describe_me()
    if owner and all(owner.get(key) == me[key] for key in ("host", "boot", "namespace")):
        if _find_start(owner.get("pid")) != owner.get("started"):
            return False
        if owner.get("place") in (None, _find_place(path)):
            return True
        # It is a copy, or on a file system that gives places anew, where its owner touches it.
    seen, since = _stamp(path), time.monotonic()
    name = f"a run on {owner['host']}" if owner.get("host") else "another run"
    print(f"{path.parent}: waiting up to {SILENT_SECONDS:.0f} s to see if {name} is there still")
    while time.monotonic() < since + SILENT_SECONDS:
        time.sleep(min(1.0, SILENT_SECONDS / 10))
        if _stamp(path) != seen:
            return path.exists()
    return False


def _beat(path: epath.Path, me: dict[str, Any], stop: threading.Event) -> None:
    """Touches the file, which needs no space, and exits if another run has taken it."""
    while not stop.wait(BEAT_SECONDS):
        # A bucket that cannot be reached for a moment raises errors of TensorFlow, no OSErrors.
        with contextlib.suppress(Exception):
            owner = _read(path)
            if owner and owner.get("token") != me["token"]:
                print(f"error: {_refuse(path)}", file=sys.stderr, flush=True)
                os._exit(1)  # two processes would have written whatever is saved from now on
            if os.path.exists(path):
                os.utime(path)
            else:  # removed by someone, or not a local file
                path.write_text(json.dumps(me | {"beat": time.time_ns()}) + "\n")


def _refuse(path: epath.Path) -> str:
    owner = _read(path)
    who = f"process {owner.get('pid')} on {owner.get('host')}, since {owner.get('since')}"
    return (
        f"{path.parent} belongs to another run ({who if owner else 'unknown'}): wait for it, stop "
        "it, or use another --workdir"
    )


def _read(path: epath.Path) -> dict[str, Any]:
    """Reads the owner of a folder; returns an empty dictionary if it cannot be read."""
    try:
        owner = json.loads(read_regular(path))
    except Exception:  # as in `_beat`
        return {}
    return owner if isinstance(owner, dict) else {}


def _stamp(path: epath.Path) -> Any:
    """Returns a value that changes when the owner's file is touched or written."""
    try:
        return read_regular(path), os.stat(path).st_mtime_ns if os.path.exists(path) else 0
    except Exception:  # as in `_beat`
        return None


def _describe_me() -> dict[str, Any]:
    """Describes this process so that it can be distinguished from all others."""
    namespace = pathlib.Path("/proc/self/ns/pid")
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id")
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        "started": _find_start(os.getpid()),
        "boot": boot.read_text().strip() if boot.exists() else "",
        "namespace": os.readlink(namespace) if namespace.exists() else "",
        "token": uuid.uuid4().hex,
    }


def _find_place(file: int | os.PathLike) -> str | None:
    """Returns the device and the number of a file, None if it has none, as in a bucket."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return f"{found.st_dev}:{found.st_ino}"


def _find_start(pid: Any) -> str | None:
    """Returns when a process was started, in ticks since the boot; None if there is none.

    If the system does not provide this, it is "" for every process that exists.
    """
    if not isinstance(pid, int):
        return None
    if pathlib.Path("/proc/self/stat").exists():
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        except OSError:
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""
