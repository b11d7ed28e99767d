"""Configs have the numbers that ALIGN, UniCL and iCLIP publish; rows: `test_paper_rows`."""

import pytest

from big_align.config.overrides import load_config

PUBLISHED = {
    "align_l2.py": {  # ALIGN §5
        "batch_size": 16384,
        "total_steps": 1_200_000,
        "data.transform": "resize(346)|random_crop(289)|flip_horizontal",
        "tokenizer.length": 64,
        "model.text.vocab_size": 100_000,
        "objective.temperature": 1.0,
        "objective.label_smoothing": 0.1,
        "optimizer.name": "lamb",
        "optimizer.weight_decay": 1e-5,
        "schedule.decay": "linear",
        "schedule.learning_rate": 1e-3,
        "schedule.warmup_steps": 10_000,
        "schedule.end_value": 0.0,
    },
    "align_b7.py": {"total_steps": 1_000_000},  # §6.1
    "align_b5_ablation.py:image=b7,data=cc3m": {"total_steps": 100_000},  # §6.2, a tenth of §6.1's
    "align_b5_ablation.py:image=b7,data=cc3m,default_steps=1.2m": {"total_steps": 120_000},  # §5's
    "align_finetune.py": {
        "batch_size": 2048,
        "total_steps": 3000,
        "schedule.learning_rate": 1e-5,
    },  # §5.1
    "align_finetune.py:data=coco": {"batch_size": 2048, "total_steps": 6000},
    "align_finetune.py:data=imagenet": {  # §5.3
        "batch_size": 1024,
        "optimizer.momentum": 0.9,
        "optimizer.weight_decay": 0.0,
        "schedule.learning_rate": 0.01,
        "schedule.decay_rate": 0.2,
        "schedule.decay_every": round(30 * 1_281_167 / 1024),
        "total_steps": round(100 * 1_281_167 / 1024),
        "first.schedule.learning_rate": 0.1,
        "data.transform": "random_resized_crop(475)|flip_horizontal",
        "first.data.transform": "random_resized_crop(289)|flip_horizontal",
        "optimizer.rates": ("model/image=0.1",),
        "evaluators.imagenet.transform": "resize_small(686)|central_crop(600)",
    },
    "align_finetune.py:data=pets": {
        "batch_size": 256,
        "total_steps": 20_000,
        "schedule.decay": "cosine",
        "schedule.learning_rate": 1e-3,
        "first.schedule.learning_rate": 1e-2,
        "optimizer.weight_decay": 1e-5,
        "evaluators.pets.transform": "resize_small(411)|central_crop(360)",
    },
    "unicl_imagenet.py": {  # UniCL B.1
        "batch_size": 4096,
        "total_steps": round(500 * 1_281_167 / 4096),
        "schedule.warmup_steps": round(20 * 1_281_167 / 4096),
        "optimizer.weight_decay": 0.05,
        "schedule.learning_rate": 0.002,
        "objective.label_smoothing": 0.1,  # Swin's
        "model.text_projection": True,
    },
    "unicl_imagenet.py:image=resnet50,optimizer=sgd": {"objective.label_smoothing": 0.1},
    "unicl_imagenet.py:method=unicl_table": {  # §4.1: "a simple linear embedding layer"
        "model.text_projection": False,
        "model.text.width": 512,
        "model.embedding_dim": 512,
        "objective.direction": "both",
    },
    "unicl_imagenet.py:method=unicl_table,direction=text_to_image": {  # eq. 3
        "objective.direction": "text_to_image"
    },
    "unicl_imagenet.py:batch=1024": {"schedule.learning_rate": 0.002},
    "unicl_imagenet.py:batch=1024,rate=scaled": {  # the released code's rule
        "schedule.learning_rate": 0.0005,
        "total_steps": round(500 * 1_281_167 / 1024),
    },
    "unicl_imagenet.py:batch=2048,rate=scaled,method=unicl_table": {
        "schedule.learning_rate": 0.001
    },
    "unicl_imagenet.py:image=resnet50,method=cross_entropy": {
        "optimizer.weight_decay": 1e-4,
        "optimizer.momentum": 0.9,
        "schedule.warmup_steps": round(5 * 1_281_167 / 4096),
    },
    "unicl_captions.py": {
        "batch_size": 4096,
        "schedule.warmup_steps": 5000,
        "optimizer.weight_decay": 0.1,
        "objective.label_smoothing": 0.0,
    },  # B.2
    "unicl_captions.py:labels=imagenet,captions=gcc3m": {"objective.label_smoothing": 0.1},
    "iclip.py": {  # iCLIP §4.1
        "batch_size": 1024,
        "schedule.learning_rate": 2e-4,
        "optimizer.weight_decay": 0.01,
        "model.image.drop_path": 0.1,
        "schedule.warmup_steps": round(5 * 1_281_167 / 512),
        "total_steps": round(100 * 1_281_167 / 512),
        "data.mixture.captions.weight": 0.5,
        "objective.template": "a photo of a {}, {description}",
    },
    "iclip.py:scale=imagenet21k_yfcc14m": {  # each for 32 epochs, as in UniCL
        "total_steps": round(32 * (14.2e6 - 1_281_167 + 14e6) / 8192),
        "data.mixture.captions.weight": pytest.approx(14 / (14.2 - 1.281167 + 14)),
        "batch_size": 8192,
        "schedule.learning_rate": 8e-4,
        "optimizer.weight_decay": 0.05,
    },
    "iclip.py:scale=imagenet22k_laion400m": {
        "batch_size": 12_288,
        "total_steps": 100_000,
        "schedule.learning_rate": 1e-3,
        "schedule.warmup_steps": 16_700,
        "optimizer.weight_decay": 0.05,
        "model.image.drop_path": 0.2,
        "data.mixture.captions.weight": pytest.approx(128 / 192),
    },
}


@pytest.mark.parametrize("row", PUBLISHED)
def test_a_config_has_the_numbers_of_its_paper(row):
    config = load_config(f"configs/{row}")
    for path, number in PUBLISHED[row].items():
        value = config
        for name in path.split("."):
            value = value[name]
        assert value == number, path
