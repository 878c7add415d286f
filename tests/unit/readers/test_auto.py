from types import SimpleNamespace

import pytest

from pipelines.errors import ConfigError
from pipelines.readers import READERS, ReaderInfo, auto
from pipelines.readers.auto import choose


def store(count, encoding="raw", formats=("ffcv", "dali")):
    info = SimpleNamespace(count=count, height=100, width=100, encoding=encoding)
    return SimpleNamespace(splits={"train": info}, formats=formats)


@pytest.fixture(autouse=True)
def free(monkeypatch):
    """Let 4 GB be free and every reader be installed."""
    monkeypatch.setattr(ReaderInfo, "installed", property(lambda kind: True))
    monkeypatch.setattr(auto, "free_memory", lambda device: 4e9)


def test_what_fits_in_a_quarter_of_the_free_memory_is_resident():
    found = choose(store(30_000), "train")
    assert found.name == "resident"
    assert "30,000 images of 100×100 take 900.0 MB of 4.0 GB of free memory" in found.sentence  # noqa: RUF001


def test_what_does_not_fit_is_streamed_and_the_sentence_says_why():
    found = choose(store(40_000), "train")
    assert found.name == "ffcv" and "streamed from disk" in found.sentence


def test_ranks_of_one_machine_share_its_memory(monkeypatch):
    assert choose(store(30_000), "train").name == "resident"
    assert choose(store(30_000), "train", world=2).name == "ffcv"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")  # the others are on other machines
    assert choose(store(30_000), "train", world=2).name == "resident"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert choose(store(30_000), "train", world=4).name == "ffcv"


def test_a_gpu_decodes_jpeg_itself():
    assert choose(store(40_000, "jpeg"), "train", device="cuda").name == "dali"
    assert choose(store(40_000, "raw"), "train", device="cuda").name == "ffcv"


def test_only_what_is_installed_and_stored_is_chosen(monkeypatch):
    assert choose(store(40_000, formats=("dali",)), "train").name == "dali"
    monkeypatch.setattr(ReaderInfo, "installed", property(lambda kind: kind.name != "ffcv"))
    assert choose(store(40_000), "train").name == "dali"
    monkeypatch.setattr(ReaderInfo, "installed", property(lambda kind: kind.name == "resident"))
    with pytest.raises(ConfigError, match="no streaming reader") as caught:
        choose(store(40_000), "train")
    assert "pip install" in caught.value.fix


def test_a_configured_reader_is_used():
    assert choose(store(40_000), "train", wanted="resident").name == "resident"
    assert choose(store(1), "train", wanted="dali").sentence.startswith("dali: as configured")


def test_config_listing_and_auto_know_a_reader_as_soon_as_it_is_registered(monkeypatch):
    from fastssl.cli.listing import readers
    from fastssl.config.schema import RunConfig

    with pytest.raises(ValueError, match="expected one of: auto, dali, ffcv, resident"):
        RunConfig(reader="zip")
    info = ReaderInfo("zip", "streams a .zip file", "nowhere:Nothing", format="zip")
    monkeypatch.setitem(READERS._items, "zip", info)
    assert RunConfig(reader="zip").reader == "zip"
    assert {"name": "zip", "installed": "yes", "what": "streams a .zip file"} in readers()
    assert choose(store(40_000, formats=("zip",)), "train").name == "zip"
