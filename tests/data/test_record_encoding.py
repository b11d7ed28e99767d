"""The messages of records are those of TensorFlow."""

import random

import pytest

from big_align.data.record_encoding import Example, encode_example

KINDS = ("bytes_list", "int64_list", "float_list")


def test_messages_are_read_and_written_as_tensorflow_does():
    train = pytest.importorskip("tensorflow").train
    rng = random.Random(0)
    makers = (
        lambda count: train.Feature(bytes_list={"value": map(rng.randbytes, range(count))}),
        lambda count: train.Feature(
            int64_list={"value": [rng.randint(-(2**63), 2**63 - 1) for _ in range(count)]}
        ),
        lambda count: train.Feature(float_list={"value": [rng.random() for _ in range(count)]}),
        lambda count: train.Feature(),
    )
    for _ in range(300):
        names = {"".join(rng.choices("abé/ ", k=rng.randint(0, 5))) for _ in range(5)}
        features = {name: rng.choice(makers)(rng.randint(0, 3)) for name in names}
        theirs = train.Example(features={"feature": features})
        data = theirs.SerializeToString(deterministic=True)
        ours = Example.FromString(data)
        assert ours.SerializeToString(deterministic=True) == data
        for name, feature in features.items():
            found = ours.features.feature[name]
            for kind in KINDS:
                assert found.HasField(kind) == feature.HasField(kind)
                assert list(getattr(found, kind).value) == list(getattr(feature, kind).value)


def test_features_are_encoded_but_empty_ones():
    train = pytest.importorskip("tensorflow").train
    data = encode_example({"image": [b"\xff", b""], "label": [-1, 2**40], "none": []})
    features = train.Example.FromString(data).features.feature
    assert set(features) == {"image", "label"}
    assert list(features["image"].bytes_list.value) == [b"\xff", b""]
    assert list(features["label"].int64_list.value) == [-1, 2**40]
