"""Rows of the tables and figures of the five papers, as configs; docs/papers.md has the same."""

from collections.abc import Iterable
from itertools import product


def join(name: str, *arguments: str) -> str:
    """Returns NAME.py:ARGUMENT; an empty argument is left out."""
    return ":".join(filter(None, (f"{name}.py", ",".join(filter(None, arguments)))))


def name_rows(name: str, *arguments: str) -> tuple[str, ...]:
    """Returns a row of the same config for each argument."""
    return tuple(join(name, argument) for argument in arguments)


def name_cells(name: str, *choices: Iterable[str]) -> tuple[str, ...]:
    """Returns a row for each combination of arguments; an empty one is the config's default."""
    return tuple(join(name, *chosen) for chosen in product(*choices))


ABLATION, HALF = "align_b5_ablation", "labels=imagenet21k,half=yes"
YFCC21, YFCC22 = "scale=imagenet21k_yfcc14m", "scale=imagenet22k_yfcc14m"
LAION = "scale=imagenet22k_laion400m"
METHODS = ("method=cross_entropy", "method=supcon", "method=supcon_classifier", "")
RESNETS = ("image=resnet50", "image=resnet101")
IDEAS = {
    "CLIP": "method=itc",
    "MLR": "method=recognition",
    "IDEA*": "method=mlr",
    "IDEA": "",
}
CLUSTERS_OF_IMAGENET = [
    f"clusters={k}" if k else ""  # 320,000 is the default
    for k in (500, 1000, 2000, 4000, 8000, 20000, 40000, 80000, 160000, 0, 500000)
]

ALIGN = {
    "Table 1": ("align_l2.py", *name_rows("align_finetune", "", "data=coco")),
    "Table 2": name_rows("align_finetune", "data=coco"),
    "Table 3": name_rows("align_finetune", "data=coco"),
    "Table 4": ("align_l2.py",),
    "Table 5": name_rows("align_finetune", "data=imagenet,stage=head", "data=imagenet"),
    "Table 7": name_cells(
        "align_finetune",
        [f"data={name}" for name in ("flowers102", "pets", "stanford_cars", "food101")],
    ),
    "Figure 3": name_cells(
        ABLATION,
        ("image=b1", "image=b3", "", "image=b7", "image=l2"),
        ("text=mini", "text=medium", "", "text=large"),
    ),
    "Table 8": name_rows(
        ABLATION,
        *("", "dim=320", "dim=160", "dim=80", "negatives=0.5", "negatives=0.25"),
        *("temperature=128", "temperature=64", "temperature=32"),
    ),
    "Table 9": name_cells(
        ABLATION, ("image=b7", "image=b3,text=mini"), ("", "data=tenth", "data=cc3m")
    ),
    "Table 10": name_cells(ABLATION, ["image=b7"], ("data=12m", "data=6m", "data=3m", "data=cc3m")),
    "Table 11": ("align_l2.py", "align_multilingual.py:l2"),
    "Table 12": ("align_l2.py",),
    "Figure 4": ("align_l2.py",),
    "Figure 5": ("align_l2.py",),
}
UNICL = {
    "Table 2": (
        *name_cells("unicl_imagenet", ("data=cifar10", "data=cifar100"), RESNETS, METHODS),
        *name_cells("unicl_imagenet", (*RESNETS, ""), METHODS),
        *name_cells("unicl_imagenet", ["mixing=yes"], ("method=cross_entropy", "")),
        "unicl_imagenet.py:image=resnet50,optimizer=sgd",  # another reading of B.1
    ),
    "Table 3": name_rows(
        "unicl_imagenet", "", "method=unicl_table", "method=unicl_table_one_direction"
    ),
    "Table 4": name_cells(
        "unicl_imagenet", ("batch=1024", "batch=2048", ""), ("", "method=unicl_table")
    ),
    "Table 5": (
        *name_rows("unicl_imagenet", *METHODS),
        *name_cells("unicl_captions", ["labels=imagenet"], ("captions=gcc3m", "captions=gcc15m")),
        "unicl_captions.py:labels=imagenet",
    ),
    "Table 6": (
        *name_rows("unicl_captions", "labels=none", "labels=imagenet21k,captions=none"),
        *name_cells("unicl_captions", [HALF], ("method=multitask", "")),
        *name_rows("unicl_captions", "labels=imagenet21k", "captions=none"),
        *name_cells("unicl_captions", ("", "captions=gcc15m"), ("method=multitask", "")),
    ),
    "Table 8": name_cells(
        "unicl_captions",
        ["image=swin_base"],
        ("labels=none", "labels=imagenet21k,captions=none", HALF, "labels=imagenet21k"),
    ),
    "Table 9": name_rows(
        "unicl_captions",
        *("labels=none", "labels=imagenet21k,captions=none", HALF, "labels=imagenet21k"),
    ),
    "Figure 4": ("unicl_imagenet.py", "unicl_captions.py:labels=imagenet,captions=gcc15m"),
    "Figure 5": name_rows("unicl_captions", "labels=none", HALF),
    "Figure 6": name_rows("unicl_captions", "labels=none", HALF),
    "Figure 9": ("unicl_imagenet.py", "unicl_captions.py:labels=imagenet,captions=gcc15m"),
    "Figure 10": ("unicl_imagenet.py", "unicl_captions.py:labels=imagenet,captions=gcc15m"),
}
UNICL["Figure 7"] = ("unicl_imagenet.py", *UNICL["Table 5"][-3:])
ICLIP = {
    "Table 1": name_rows(
        "iclip", "method=sup_only", "method=cosine", "data=labels,names=only", "data=labels"
    ),
    "Table 2": (
        join("iclip", YFCC22, "method=vl_only"),
        *name_cells("iclip", (f"{YFCC21},half=yes", YFCC21, YFCC22), ("names=only", "")),
    ),
    "Table 3": (
        *name_rows("iclip", "method=sup_only", "method=vl_only", "method=multitask"),
        *name_rows("iclip", "names=only", ""),
    ),
    "Table 4": (
        *name_rows("unicl_captions", HALF, "labels=imagenet21k", ""),
        *name_rows("iclip", f"{YFCC21},half=yes", YFCC21, YFCC22),
    ),
    "Table 5": name_cells("iclip", [LAION], ("method=sup_only", "method=vl_only", "")),
    "equation 6": name_cells("iclip", ("text_to_image=none", "text_to_image=all")),
}
ICLIP["Figure 4"] = ICLIP["Table 5"]
IDEA = {
    "Table 1": (
        *name_rows("idea_coco", *IDEAS.values()),
        *name_rows("idea_cc3m", "method=itc", ""),
    ),
    "Table 2": (
        *name_cells("idea_coco", ("method=itc", ""), ["evaluate=idea9"]),
        *name_cells("idea_cc3m", ("method=itc", ""), ["evaluate=idea9"]),
    ),
    "Table 3": name_cells(
        "idea_coco", ["method=recognition"], ("head=cls,loss=weighted_bce", "loss=weighted_bce", "")
    ),
    "Table 4": name_rows(
        "idea_coco",
        *("method=itc", "method=mlr,tags=all", "method=tag2text,tags=all"),
        *("method=rm_top_freq", ""),
    ),
    "Table 5": name_cells("idea_coco", ("method=itc", "method=mlr", ""), ["init=none,probe=yes"]),
    "Table 6": name_cells("idea_cc3m", ("", "data=blip"), ("method=itc", "")),
    "Figure 5": ("idea_coco.py", "idea_cc3m.py"),
    "Figure 6": name_cells("idea_coco", ("method=itc", ""), ["figure=6"]),
    "Figure 7": name_rows("idea_coco", "method=itc", ""),
    "Figure 10": ("idea_coco.py", "idea_cc3m.py"),
}
STAGES = ("mlcd.py:image=l14", "mlcd.py:image=l14,stage=text")
MLCD = {
    "Table 1": name_cells("mlcd", ["image=l14"], ("loss=unicom", "")),
    "Table 2": STAGES,
    "Table 3": STAGES,
    "Table 4": STAGES,
    "Table 5a": name_cells(
        "mlcd",
        ["epochs=5"],
        [f"clusters={k}" if k else "" for k in (100000, 200000, 500000, 0, 2000000, 5000000)],
    ),
    "Table 5b": name_cells(
        "mlcd",
        ["epochs=5"],
        ["ratio=0.01", "ratio=0.05", "", "ratio=0.2", "ratio=0.5", "ratio=1.0"],
    ),
    "Table 5c": name_cells(
        "mlcd", ["epochs=5"], [f"labels={n}" if n else "" for n in (1, 2, 4, 0, 16, 32)]
    ),
    "Table 5d": name_cells(
        "mlcd",
        ["epochs=5"],
        [f"min_similarity={c}" for c in (0.95, 0.93, 0.91, 0.89, 0.87, 0.85)],
    ),
    "Table 6": name_rows("mlcd", "loss=mlc", "", "stage=text"),
    "Table 7": name_cells("mlcd", ("loss=unicom", ""), ("", "data=coyo700m")),  # ViT-B/32
    "Table 9": name_rows("mlcd", "", "image=b16", "image=l14", "stage=text"),
    "Table 10": name_rows("mlcd", "", "stage=text"),
    "Table 12": name_cells("mlcd_imagenet", ("loss=unicom", ""), CLUSTERS_OF_IMAGENET),
    "Table 13": name_rows("mlcd_imagenet", "clusters=1000", "clusters=160000", ""),
    "Figure 3": name_rows("mlcd", "loss=mlc", ""),
    "Figure 4": (*name_cells("mlcd", ["image=l14"], ("loss=unicom", "")), STAGES[1]),
    "Figure 5": name_rows("mlcd", "", "image=b16", "image=l14"),
    "Figure 6": ("mlcd.py:image=l14",),
}
PAPERS = {"ALIGN": ALIGN, "UniCL": UNICL, "iCLIP": ICLIP, "IDEA": IDEA, "MLCD": MLCD}
"""By the paper and its table or figure; a run has one name, so a default is never written out."""


def list_rows() -> dict[str, tuple[str, ...]]:
    """Returns all rows of each config file, once each."""
    rows: dict[str, list[str]] = {}
    for tables in PAPERS.values():
        for row in dict.fromkeys(row for table in tables.values() for row in table):
            of_file = rows.setdefault(row.partition(":")[0], [])
            if row not in of_file:
                of_file.append(row)
    return {name: tuple(of_file) for name, of_file in rows.items()}
