"""What each name in a config refers to: "module:attribute", imported on first use."""

IMAGE_TOWERS = {
    "efficientnet": "big_align.models.efficientnet:EfficientNet",
    "resnet": "big_align.models.resnet:ResNet",
    "swin": "big_align.models.swin:Swin",
    "vit": "big_align.models.vit:ViT",
}
TEXT_TOWERS = {
    "bert": "big_align.models.bert:Bert",
    "clip_text": "big_align.models.clip_text:ClipText",
    "embedding_table": "big_align.models.embedding_table:EmbeddingTable",
    "roberta": "big_align.models.bert:Roberta",
}
TOWERS = {"image": IMAGE_TOWERS, "text": TEXT_TOWERS}
OBJECTIVES = {
    "align": "big_align.objectives.align:Align",
    "clip": "big_align.objectives.clip:Clip",
    "cross_entropy": "big_align.objectives.cross_entropy:CrossEntropy",
    "iclip": "big_align.objectives.iclip:Iclip",
    "idea": "big_align.objectives.idea:Idea",
    "lit": "big_align.objectives.lit:Lit",
    "mlcd": "big_align.objectives.mlcd:Mlcd",
    "multitask": "big_align.objectives.multitask:MultiTask",
    "siglip": "big_align.objectives.siglip:Siglip",
    "supcon": "big_align.objectives.supcon:SupCon",
    "unicl": "big_align.objectives.unicl:Unicl",
}
TOKENIZERS = {
    "wordpiece": "big_align.data.text.tokenizers:WordPieceTokenizer",
    "clip": "big_align.data.text.tokenizers:ClipTokenizer",
    "roberta": "big_align.data.text.roberta_tokenizer:RobertaTokenizer",
    "words": "big_align.data.text.tokenizers:WordTokenizer",
    "class_names": "big_align.data.text.tokenizers:ClassNameTokenizer",
    "none": "big_align.data.text.tokenizers:NoTokenizer",
}
SOURCES = {
    "tar": "big_align.data.sources.tar_source:TarSource",
    "tfrecord": "big_align.data.sources.record_source:TFRecordSource",
    "tfds": "big_align.data.sources.record_source:TFDSSource",
    "folder": "big_align.data.sources.folder_source:FolderSource",
    "csv": "big_align.data.sources.rows_source:RowsSource",
    "imagefolder": "big_align.data.sources.rows_source:RowsSource",
    "coco": "big_align.data.sources.coco_source:CocoSource",
    "files": "big_align.data.sources.file_pairs:FilePairsSource",
    "images": "big_align.data.sources.folder_source:ImageFiles",
    "parquet": "big_align.data.sources.parquet_source:ParquetSource",
    "huggingface": "big_align.data.sources.hub_source:HubSource",
    "npz": "big_align.data.sources.array_source:read_npz",
    "held_out": "big_align.data.derived.split_source:held_out_source",
    "digits": "big_align.data.sources.digits:digits_source",
    "benchmark": "big_align.suites.opening:open_named",
}
EVALUATORS = {
    "benchmark": "big_align.suites.measuring.evaluator:NamedBenchmark",
    "suite": "big_align.suites.measuring.evaluator:NamedSuite",
    "classification": "big_align.evaluators.classification:Classification",
    "few_shot": "big_align.evaluators.few_shot:FewShot",
    "few_shot_text": "big_align.evaluators.text_tuning:FewShotText",
    "found_tags": "big_align.evaluators.found_tags:FoundTags",
    "knn": "big_align.evaluators.knn:KNN",
    "linear_probe": "big_align.evaluators.linear_probe:LinearProbe",
    "retrieval": "big_align.evaluators.retrieval:Retrieval",
    "tag_recognition": "big_align.evaluators.tag_recognition:TagRecognition",
    "zero_shot": "big_align.evaluators.zero_shot:ZeroShot",
}
