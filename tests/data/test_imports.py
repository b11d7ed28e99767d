import subprocess
import sys

import pytest

PROGRAM = """
import sys
import numpy as np
import big_align.data
from big_align.data.labels import prompts
from big_align.core.tf_records import encode_record
from big_align.data.loading.image_pipeline import ImagePipeline
from big_align.data.loading.loader import TrainLoader
from big_align.data.loading.rows import RowStream
from big_align.data.loading.stream import ExampleStream
from big_align.data.loading.text_samplers import CaptionSampler
from big_align.data.record_encoding import encode_example
from big_align.data.sources.record_source import TFRecordSource
from big_align.data.text import tokenizers, vocabulary
from big_align.data.sources.tar_source import TarSource
from big_align.data.sources.digits import digits_source, DIGIT_WORDS

words = tokenizers.WordTokenizer(DIGIT_WORDS, 8)
tar, path = TarSource(sys.argv[1]), sys.argv[1].replace("train-{00000..00003}.tar", "a.tfrecord")
example = tar.read(0, 0)
made = encode_example({"image": [example.image], "caption": [example.captions[0].encode()]})
with open(path, "wb") as file:
    file.write(encode_record(made) * 8)
for source in (tar, TFRecordSource(path), digits_source("test")):
    parts = ExampleStream(source, 4), CaptionSampler(words), ImagePipeline("resize(8)")
    with TrainLoader(RowStream(*parts)) as batches:
        assert batches.batch(0)["image"].shape == (4, 8, 8, 3)
print([name for name in ("tensorflow", "jax") if name in sys.modules])
"""


@pytest.mark.slow
def test_tar_records_and_arrays_need_neither_tensorflow_nor_jax(shards):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, shards], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("module", ["main", "big_align.runs.build"])
def test_nothing_else_imports_tensorflow(module):
    code = f"import sys, {module}; print('tensorflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr


def test_pipelines_import_neither_tensorflow_nor_jax_before_they_are_called():
    code = "import sys, big_align.runs.pipelines, big_align.data.tf_data.dataset_loader"
    code += "; print([name for name in ('tensorflow', 'jax') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
