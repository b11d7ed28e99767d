"""Rows of the tables and figures of IDEA, iCLIP and ALIGN, as arguments of their configs."""

GRID = [f"image={i},text={t}" for i in ("b1", "b3", "b5", "b7", "l2")
        for t in ("mini", "medium", "base", "large")]  # fmt: skip
YFCC = "scale=imagenet21k_yfcc14m"
IDEA = (  # Tables 1 to 5, Figure 6
    *("", "method=itc", "method=recognition", "method=mlr"),
    "evaluate=idea9",
    *(f"method=recognition{head},loss=weighted_bce" for head in (",head=cls", "")),
    *("method=mlr,tags=all", "method=tag2text,tags=all", "method=rm_top_freq"),
    *(f"{method}init=none,probe=yes" for method in ("method=itc,", "method=mlr,", "")),
    *("method=itc,figure=6", "figure=6"),
)
ROWS = {
    "align_b5_ablation.py": (
        *GRID,  # Figure 3, and of Tables 9 and 10 the full data
        *("dim=320", "dim=160", "dim=80", "negatives=0.5", "negatives=0.25"),
        *("temperature=128", "temperature=64", "temperature=32"),
        *(f"image=b7,data={data}" for data in ("tenth", "cc3m", "12m", "6m", "3m")),
        *(f"image=b3,text=mini,data={data}" for data in ("tenth", "cc3m")),
    ),
    "idea_coco.py": IDEA,
    "idea_cc3m.py": ("", "method=itc", "data=blip", "data=blip,method=itc"),  # Tables 1, 6
    "iclip.py": (
        *("method=sup_only", "method=cosine", "data=labels,names=only", "data=labels"),  # Table 1
        "scale=imagenet22k_yfcc14m,method=vl_only",  # Table 2
        *(f"{YFCC},half=yes,names=only", f"{YFCC},half=yes", f"{YFCC},names=only", YFCC),
        *("scale=imagenet22k_yfcc14m,names=only", "scale=imagenet22k_yfcc14m"),
        *("method=vl_only", "method=multitask", "names=only", ""),  # Table 3
        *(f"scale=imagenet22k_laion400m{of}" for of in (",method=sup_only", ",method=vl_only", "")),
        *("text_to_image=none", "text_to_image=all"),  # eq. 6 as printed, and what it leaves open
    ),
}
SHORT = {
    *("text=medium", "text=base", "image=b5"),  # between the ends of the grid that a table names
    *("evaluate=idea9", "text_to_image=none", "text_to_image=all"),  # of no row, but of a column
}
