import numpy as np
import pytest
import torch

from pipelines.errors import ConfigError
from pipelines.loader import EvaluationBatches
from pipelines.readers import ReaderInfo
from tests.installed import each
from tests.small_stores import make_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("evaluation") / "raw")


@pytest.fixture
def opened(monkeypatch):
    """Record every reader that is opened, and whether it was closed."""
    readers, real = [], ReaderInfo.open

    def record(info, *args, **kwargs):
        reader = real(info, *args, **kwargs)
        reader.closed = False
        monkeypatch.setattr(reader, "close", lambda: setattr(reader, "closed", True))
        readers.append(reader)
        return reader

    monkeypatch.setattr(ReaderInfo, "open", record)
    return readers


@pytest.mark.parametrize("reader", each("resident", "ffcv", "dali"))
def test_every_iteration_returns_the_center_of_every_image_in_order(store, reader):
    indices = np.arange(24)[::-1].copy()
    images = np.stack([store.image("test", index)[2:30, 2:30] for index in indices])
    mean, std = torch.tensor(store.mean), torch.tensor(store.std)
    expected = (torch.from_numpy(images).float() / 255 - mean) / std
    with EvaluationBatches(
        store, "test", indices, size=(28, 28), reader=reader, batch=10
    ) as batches:
        for _ in range(2):
            found = list(batches)
            assert [len(labels) for _, labels in found] == [10, 10, 4]
            assert torch.cat([labels for _, labels in found]).tolist() == (indices % 4).tolist()
            assert torch.equal(torch.cat([i for i, _ in found]).permute(0, 2, 3, 1), expected)
            assert found[0][0].is_contiguous(memory_format=torch.channels_last)


def test_the_reader_is_opened_by_the_first_iteration_and_stays_open_until_close(store, opened):
    batches = EvaluationBatches(store, "test", np.arange(4), size=(32, 32))
    assert not opened
    list(batches)
    list(batches)
    assert [reader.closed for reader in opened] == [False]
    batches.close()
    assert [reader.closed for reader in opened] == [True]
    assert len(list(batches)) == 1, "it is opened again"


def test_a_rank_without_images_opens_no_reader(store, opened):
    assert list(EvaluationBatches(store, "test", np.arange(0), size=(32, 32))) == []
    assert not opened


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_crop_that_is_larger_than_the_images_is_refused_before_anything_is_read(store, split):
    with pytest.raises(ConfigError, match=f"{split} images of .* are 32x32 pixels") as refused:
        EvaluationBatches(store, split, np.arange(4), size=(33, 32))
    assert "image_size=32" in refused.value.fix
