"""Where real images lie, if they do: beside the project, never inside it."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
CIFAR10 = SHARED / "cifar-10-batches-py.tar.xz"
PHOTOS = SHARED / "photos.tar"

needs_cifar10 = pytest.mark.skipif(not CIFAR10.exists(), reason="the real CIFAR-10 is not here")
needs_photos = pytest.mark.skipif(not PHOTOS.exists(), reason="the real photographs are not here")
