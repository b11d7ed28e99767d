"""Rows of the tables and figures of the five papers, as configs: those of docs/papers/README.md.

In a pattern `{a,b}` stands for each of a and b, as in a shell.
"""

import re
from itertools import product

DEFAULTS = {
    "align_b5_ablation.py": "image=b5 text=base dim=640 negatives=1 data=full",
    "iclip.py": "scale=imagenet_gcc3m method=iclip data=both direction=image_to_text",
    "idea_cc3m.py": "method=retain head=ml_decoder loss=splc",
    "idea_coco.py": "method=retain head=ml_decoder loss=splc",
    "mlcd.py": "image=b32 data=laion400m stage=image epochs=32 loss=mlcd clusters=1000000 "
    "ratio=0.1 labels=8",
    "mlcd_imagenet.py": "loss=mlcd clusters=320000",
    "unicl_captions.py": "labels=imagenet22k captions=yfcc14m method=unicl image=swin_tiny",
    "unicl_imagenet.py": "method=unicl image=swin_tiny data=imagenet batch=4096",
}
"""Arguments that change nothing, and no run's name has: so a run has one name."""
HALF = "labels=imagenet21k,half=yes"
YFCC21, YFCC22 = "scale=imagenet21k_yfcc14m", "scale=imagenet22k_yfcc14m"
LAION = "scale=imagenet22k_laion400m"
METHODS = "method={cross_entropy,supcon,supcon_classifier,unicl}"
CONCEPTS = ("unicl_imagenet.py", "unicl_captions.py:labels=imagenet,captions=gcc15m")
HALVES = ("unicl_captions.py:labels=none", f"unicl_captions.py:{HALF}")
STAGES = "mlcd.py:image=l14,stage={image,text}"
PATTERNS = {
    "ALIGN": {
        "Table 1": ("align_l2.py", "align_finetune.py", "align_finetune.py:data=coco"),
        "Table 2": ("align_finetune.py:data=coco",),
        "Table 3": ("align_finetune.py:data=coco",),
        "Table 4": ("align_l2.py",),
        "Table 5": (
            "align_finetune.py:data=imagenet,stage=head",
            "align_finetune.py:data=imagenet",
        ),
        "Table 7": ("align_finetune.py:data={flowers102,pets,stanford_cars,food101}",),
        "Table 8": (
            "align_b5_ablation.py:dim={640,320,160,80}",
            "align_b5_ablation.py:negatives={0.5,0.25}",
            "align_b5_ablation.py:temperature={128,64,32}",
        ),
        "Table 9": (
            "align_b5_ablation.py:image=b7,data={full,tenth,cc3m}",
            "align_b5_ablation.py:image=b3,text=mini,data={full,tenth,cc3m}",
        ),
        "Table 10": ("align_b5_ablation.py:image=b7,data={12m,6m,3m,cc3m}",),
        "Table 11": ("align_l2.py", "align_multilingual.py:l2"),
        "Table 12": ("align_l2.py",),
        "Figure 3": ("align_b5_ablation.py:image={b1,b3,b5,b7,l2},text={mini,medium,base,large}",),
        "Figure 4": ("align_l2.py",),
        "Figure 5": ("align_l2.py",),
    },
    "UniCL": {
        "Table 2": (
            "unicl_imagenet.py:data={cifar10,cifar100},image={resnet50,resnet101}," + METHODS,
            "unicl_imagenet.py:image={resnet50,resnet101,swin_tiny}," + METHODS,
            "unicl_imagenet.py:mixing=yes,method={cross_entropy,unicl}",
            "unicl_imagenet.py:image={resnet50,resnet101},optimizer=sgd",  # another reading of B.1
        ),
        "Table 3": (
            "unicl_imagenet.py:method={unicl,unicl_table}",
            "unicl_imagenet.py:method=unicl_table,direction={image_to_text,text_to_image}",
        ),
        "Table 4": (
            "unicl_imagenet.py:batch={1024,2048,4096},method={unicl,unicl_table}",
            "unicl_imagenet.py:batch={1024,2048},rate=scaled,method={unicl,unicl_table}",
        ),
        "Table 5": (
            "unicl_imagenet.py:" + METHODS,
            "unicl_captions.py:labels=imagenet,captions={gcc3m,yfcc14m,gcc15m}",
        ),
        "Table 6": (
            "unicl_captions.py:labels=none",
            "unicl_captions.py:labels={imagenet21k,imagenet22k},captions=none",
            "unicl_captions.py:" + HALF + ",method={multitask,unicl}",
            "unicl_captions.py:labels=imagenet21k",
            "unicl_captions.py:captions={yfcc14m,gcc15m},method={multitask,unicl}",
        ),
        "Table 8": (
            "unicl_captions.py:image=swin_base,labels=none",
            "unicl_captions.py:image=swin_base,labels=imagenet21k,captions={none,yfcc14m}",
            f"unicl_captions.py:image=swin_base,{HALF}",
        ),
        "Table 9": (
            "unicl_captions.py:labels=none",
            "unicl_captions.py:labels=imagenet21k,captions={none,yfcc14m}",
            f"unicl_captions.py:{HALF}",
        ),
        "Figure 4": CONCEPTS,
        "Figure 5": (*HALVES, "unicl_captions.py:labels=imagenet21k,captions=none"),
        "Figure 6": HALVES,
        "Figure 7": (
            "unicl_imagenet.py",
            "unicl_captions.py:labels=imagenet,captions={gcc3m,yfcc14m,gcc15m}",
        ),
        "Figure 9": CONCEPTS,
        "Figure 10": CONCEPTS,
    },
    "iCLIP": {
        "Table 1": (
            "iclip.py:method={sup_only,cosine}",
            *("iclip.py:data=labels,names=only", "iclip.py:data=labels"),
        ),
        "Table 2": (
            *(f"iclip.py:{YFCC22},method=vl_only", "unicl_captions.py:labels=none"),
            *(f"iclip.py:{YFCC21},half=yes,names=only", f"iclip.py:{YFCC21},half=yes"),
            *(f"iclip.py:{scale},names=only" for scale in (YFCC21, YFCC22)),
            *(f"iclip.py:{scale}" for scale in (YFCC21, YFCC22)),
        ),
        "Table 3": ("iclip.py:method={sup_only,vl_only,multitask,iclip}", "iclip.py:names=only"),
        "Table 4": (
            *(f"unicl_captions.py:{HALF}", "unicl_captions.py:labels={imagenet21k,imagenet22k}"),
            *(f"iclip.py:{YFCC21},half=yes", f"iclip.py:{YFCC21}", f"iclip.py:{YFCC22}"),
        ),
        "Table 5": ("iclip.py:" + LAION + ",method={sup_only,vl_only,iclip}",),
        "Figure 4": ("iclip.py:" + LAION + ",method={sup_only,vl_only,iclip}",),
        "Equation 2": ("iclip.py:method={vl_only,multitask},direction={image_to_text,both}",),
        "Equation 6": ("iclip.py:direction={image_to_text,both,all}",),
    },
    "IDEA": {
        "Table 1": (
            "idea_coco.py:method={itc,recognition,retain}",
            "idea_coco.py:method={recognition,mlr},tags=all",
            "idea_cc3m.py:method={itc,retain}",
        ),
        "Table 2": (
            "idea_coco.py:evaluate=idea9,method={itc,retain}",
            "idea_cc3m.py:evaluate=idea9,method={itc,retain}",
        ),
        "Table 3": (
            "idea_coco.py:method=recognition,head={cls,ml_decoder},loss=weighted_bce",
            "idea_coco.py:method=recognition",
        ),
        "Table 4": (
            "idea_coco.py:method={itc,rm_top_freq,retain}",
            "idea_coco.py:method={mlr,tag2text},tags=all",
        ),
        "Table 5": (
            "idea_coco.py:init=none,probe=yes,method={itc,retain}",
            "idea_coco.py:init=none,probe=yes,method=mlr,tags=all",
        ),
        "Table 6": (
            "idea_cc3m.py:method={itc,retain}",
            "idea_cc3m.py:data=blip,method={itc,retain}",
        ),
        "Figure 5": ("idea_coco.py", "idea_cc3m.py"),
        "Figure 6": ("idea_coco.py:figure=6,method={itc,retain}",),
        "Figure 7": ("idea_coco.py:method={itc,retain}",),
        "Figure 8": ("idea_coco.py",),
        "Figure 10": ("idea_coco.py", "idea_cc3m.py"),
    },
    "MLCD": {
        "Table 1": ("mlcd.py:image=l14,loss={unicom,mlcd}",),
        "Table 2": (STAGES,),
        "Table 3": (STAGES,),
        "Table 4": (STAGES,),
        "Table 5a": ("mlcd.py:epochs=5,clusters={100000,200000,500000,1000000,2000000,5000000}",),
        "Table 5b": ("mlcd.py:epochs=5,ratio={0.01,0.05,0.1,0.2,0.5,1.0}",),
        "Table 5c": ("mlcd.py:epochs=5,labels={1,2,4,8,16,32}",),
        "Table 5d": ("mlcd.py:epochs=5,min_similarity={0.95,0.93,0.91,0.89,0.87,0.85}",),
        "Table 6": ("mlcd.py:loss={mlc,mlcd}", "mlcd.py:stage=text"),
        "Table 7": ("mlcd.py:loss={unicom,mlcd},data={laion400m,coyo700m}",),  # ViT-B/32
        "Table 9": ("mlcd.py:image={b32,b16,l14},stage={image,text}",),
        "Table 10": ("mlcd.py:image={b32,b16,l14},stage={image,text}",),
        "Table 12": (
            "mlcd_imagenet.py:loss={unicom,mlcd},clusters="
            "{500,1000,2000,4000,8000,20000,40000,80000,160000,320000,500000}",
        ),
        "Table 13": ("mlcd_imagenet.py:clusters={1000,160000,320000}",),
        "Figure 3": ("mlcd.py:figure=3,loss={mlc,mlcd}",),
        "Figure 4": ("mlcd.py:image=l14,loss={unicom,mlcd}", "mlcd.py:image=l14,stage=text"),
        "Figure 5": ("mlcd.py:figure=5,image={b32,b16,l14}",),
        "Figure 6": ("mlcd.py:image=l14",),
    },
}
"""By the paper and its table or figure."""


def expand(pattern: str) -> list[str]:
    """Returns what a pattern stands for: one text for each combination of its choices."""
    pieces = re.split(r"\{([^{}]*)\}", pattern)
    choices = [piece.split(",") if n % 2 else [piece] for n, piece in enumerate(pieces)]
    return ["".join(chosen) for chosen in product(*choices)]


def name_run(row: str) -> str:
    """Returns the name of a row's run: arguments in order, without those that change nothing."""
    name, _, argument = row.partition(":")
    changes = set(argument.split(",")) - {"", *DEFAULTS.get(name, "").split()}
    return f"{name}:{','.join(sorted(changes))}" if changes else name


TABLES = {
    paper: {
        table: tuple(dict.fromkeys(name_run(row) for text in patterns for row in expand(text)))
        for table, patterns in tables.items()
    }
    for paper, tables in PATTERNS.items()
}
"""Names of runs."""
ROWS: dict[str, list[str]] = {}
"""All runs of each config file, once each."""
for run in dict.fromkeys(r for tables in TABLES.values() for runs in tables.values() for r in runs):
    ROWS.setdefault(run.partition(":")[0], []).append(run)
