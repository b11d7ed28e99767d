"""Package metadata. The whole set of versions known to work is in requirements.lock."""

from setuptools import find_packages, setup

setup(
    name="big_align",
    version="0.1.0",
    description="Training of image-text dual encoders in JAX: ALIGN, UniCL, iCLIP, IDEA, MLCD",
    license="Apache-2.0",
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=["big_align", "big_align.*"]),
    package_data={"big_align.data": ["class_names/*.json", "class_names/LICENSE"]},
    install_requires=[
        "absl-py>=2.1",
        "beartype>=0.18",
        "clu>=0.0.12",
        "einops>=0.8",
        "etils[epath]>=1.7",
        "flax>=0.12,<0.13",
        "fsspec>=2024.2",
        "jax>=0.10,<0.13",
        "jaxtyping>=0.2.30",
        "matplotlib>=3.8",
        "ml_collections>=1.0",
        "ml_dtypes>=0.4",
        "nltk>=3.8",
        "numpy>=1.26",
        "optax>=0.2.6,<0.3",
        "orbax-checkpoint>=0.11.30,<0.13",
        "pillow>=10.3",
        "scann==1.4.2",
        "scikit-learn>=1.4",
        "scipy>=1.11",
        "tensorboardX>=2.6",
        "tensorboard>=2.19",
        "tensorflow-datasets>=4.9.9",
        # scann fails to import with tensorflow 2.19 and 2.21 (undefined symbol).
        "tensorflow==2.20.*",
        "tensorflow-text==2.20.*",
        "tqdm>=4.66",
    ],
    extras_require={
        "test": ["ipykernel>=6.29", "nbclient>=0.10", "pytest>=8", "ruff>=0.6", "safetensors>=0.4"],
        "interop": [
            "open_clip_torch>=3.2",
            "safetensors>=0.4",
            "timm>=1.0.20",
            "torch>=2.4",
            "transformers>=5.0",
        ],
        "cuda": ["jax[cuda12]"],
        "tpu": ["jax[tpu]"],
    },
)
