"""What is read from a bucket that fails: runs, embeddings and indexes are those of local files."""

import pytest

from big_align.config.overrides import load_config
from big_align.data.remote import retries
from big_align.runs import train
from big_align.tools import embed, index
from tests import labeled_digits, s3_server
from tests.data.samples import write_tar
from tests.prepare.raw_pairs import write_parquet
from tests.run_main import TINY, Run, read_losses
from tests.use.inference.test_loaded_model import folder as model  # noqa: F401  (a fixture)
from tests.use.search.indexes import assert_same, read, write_table

pytestmark = pytest.mark.slow
PASSING = [kind for kind in s3_server.KINDS if kind != "forbidden"]
WORDS = "zero one two three four five six seven eight nine".split()
SHARDS, SHARD_SIZE = 3, 32
SOURCES = {
    "tar": ("digits-*.tar",),
    "parquet": ("raw-*.parquet", "--config.data.source.image=jpg"),
}


@pytest.fixture
def local(bucket, tmp_path, monkeypatch):
    """A folder of digits, photographs and a table of them, which are in the bucket too."""
    monkeypatch.setattr(retries, "PAUSES", (0.0, 0.0, 0.0))
    bucket.slowness = 0.05
    digits = labeled_digits.draw_digits(SHARDS * SHARD_SIZE)
    pairs = [(image, f"the number {WORDS[label]}") for label, image in digits]
    write_parquet(tmp_path / "data", pairs, SHARDS, 8)
    for shard in range(SHARDS):
        members = []
        for number in range(shard * SHARD_SIZE, (shard + 1) * SHARD_SIZE):
            image, text = pairs[number]
            members += [(f"{number:04d}.png", image), (f"{number:04d}.txt", text.encode())]
        write_tar(tmp_path / f"data/digits-{shard}.tar", members)
    write_table(tmp_path / "data/photos", 20)
    s3_server.make_client(bucket).put(f"{tmp_path}/data/", "pairs/data/", recursive=True)
    return tmp_path / "data"


def list_flags(kind, where):
    files, *more = SOURCES[kind]
    source = f"--config.data.source.name={kind}", f"--config.data.source.path={where}/{files}"
    return [*source, *more, "--config.evaluators={}"]


@pytest.mark.parametrize(("kind", "processes"), [("tar", 0), ("tar", 2), ("parquet", 0)])
def test_a_run_has_the_losses_of_local_files(bucket, local, tmp_path, kind, processes):
    train.run(load_config(TINY, *list_flags(kind, local)), str(tmp_path / "local"))
    bucket.plan(seed=4, rate=0.2, kinds=PASSING)
    flags = [*list_flags(kind, "s3://pairs/data"), f"--config.data.num_processes={processes}"]
    if processes:  # with the pauses that there are
        run = Run(tmp_path / "remote", *flags)
        assert run.wait() == 0, run.err
    else:
        train.run(load_config(TINY, *flags), str(tmp_path / "remote"))
    assert len(bucket.taken) > 3
    assert read_losses(tmp_path / "remote") == read_losses(tmp_path / "local")


def test_a_bucket_that_is_gone_ends_a_run_in_a_line_and_the_same_command_goes_on(
    bucket, local, tmp_path, monkeypatch
):
    train.run(load_config(TINY, *list_flags("tar", local)), str(tmp_path / "local"))
    flags, steps = [*list_flags("tar", "s3://pairs/data"), "--config.checkpoint.every=2"], []
    config = load_config(TINY, *flags)
    inner = s3_server.Bucket.take_fault

    def take_fault(self, request):
        if len(read_losses(tmp_path / "remote")) >= 3:
            return "slow_down"
        return inner(self, request)

    monkeypatch.setattr(s3_server.Bucket, "take_fault", take_fault)
    with pytest.raises(OSError, match=r"^s3://pairs/data/digits-\d.tar: .*SlowDown.* \(tried 4 "):
        train.run(config, str(tmp_path / "remote"))
    steps = [step for step, _ in read_losses(tmp_path / "remote")]
    assert 3 <= steps[-1] < config.total_steps
    monkeypatch.undo()
    s3_server.use(bucket, monkeypatch)
    train.run(config, str(tmp_path / "remote"))
    assert read_losses(tmp_path / "remote") == read_losses(tmp_path / "local")


def test_embeddings_are_those_of_local_files(bucket, local, model, tmp_path, capsys):  # noqa: F811
    def run(where, name):
        output = tmp_path / name
        status = embed.main(
            [f"--model={model}", f"--source={where}/digits-*.tar", f"--output={output}"]
        )
        found = {path.name: path.read_bytes() for path in output.glob("*")}
        return status, {name: found[name] for name in found if name.endswith((".npy", ".txt"))}

    expected = run(local, "local")
    assert expected[0] == 0 and len(expected[1]) >= SHARDS
    bucket.plan(seed=5, rate=0.1, kinds=PASSING)
    assert run("s3://pairs/data", "remote") == expected and bucket.taken
    bucket.fail("GET /pairs/data/digits-1", "cut", times=10**6)
    capsys.readouterr()
    assert run("s3://pairs/data", "cut")[0] == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and "s3://pairs/data/digits-1.tar: the connection" in error
    bucket.heal()
    bucket.faults.clear()
    assert run("s3://pairs/data", "cut") == expected


def test_an_index_is_that_of_local_files(bucket, local, model, tmp_path, capsys):  # noqa: F811
    def run(where, name):
        flags = [f"--model={model}", f"--source={where}/photos/photos.csv"]
        return index.main([*flags, f"--output={tmp_path / name}"])

    assert run(local, "local") == 0
    bucket.plan(seed=6, rate=0.1, kinds=PASSING)
    assert run("s3://pairs/data", "remote") == 0 and bucket.taken
    bucket.heal()
    bucket.fail("GET /pairs/data/photos/11.jpg", "internal_error", times=10**6)
    capsys.readouterr()
    assert run("s3://pairs/data", "cut") == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: s3://pairs/data/photos/11.jpg: the server answers 500")
    bucket.heal()
    assert run("s3://pairs/data", "cut") == 0
    here, there = (read(tmp_path / name) for name in ("local", "remote"))
    assert_same(tmp_path / "remote", tmp_path / "cut")
    for name in here.vectors:
        assert (here.vectors[name] == there.vectors[name]).all()
