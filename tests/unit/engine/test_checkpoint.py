"""Checkpoints: checked, skipped where damaged, pruned only after the new one is there."""

import gc
import hashlib
import os
import random
import sys
import threading
import tracemalloc
import zipfile

import pytest
import torch

from fastssl.engine import checkpoint
from fastssl.errors import DataError, ResourceError
from fastssl.tracking.run_dir import RunFolder
from tests.runs import whole_content

PREPROCESSING = whole_content(1, {})["preprocessing"]


@pytest.fixture
def folder(tmp_path):
    found = RunFolder(tmp_path / "run")
    found.checkpoints.mkdir(parents=True)
    return found


def content(step):
    return whole_content(step, {"w": torch.full((50,), float(step))})


def write(folder, *steps, begun=None):
    writer = checkpoint.Writer(folder, begun)
    for step in steps:
        writer.save(checkpoint.step_name(step), content(step))
        writer.wait()
    writer.close()


def test_the_newest_is_loaded_and_the_last_two_are_kept(folder):
    write(folder, 1, 2, 3, 4)
    assert [path.name for path in checkpoint.files(folder)] == [
        "step-00000004.ckpt",
        "step-00000003.ckpt",
    ]
    found = checkpoint.newest(folder, print)
    assert found["trip"]["step"] == 4
    assert torch.equal(found["model"]["w"], content(4)["model"]["w"])


def test_a_damaged_one_is_named_and_skipped_wherever_the_damage_is(folder):
    write(folder, 1, 2)
    newest = folder.checkpoints / "step-00000002.ckpt"
    good = newest.read_bytes()
    dice = random.Random(0)
    skipped = 0
    for kind in range(60):
        data = bytearray(good)
        place = dice.randrange(len(data)) if kind > 10 else kind
        if kind % 2:
            data[place] ^= 1 << dice.randrange(8)
        else:
            data = data[:place]
        newest.write_bytes(data)
        messages = []
        found = checkpoint.newest(folder, messages.append)
        if messages:
            assert "step-00000002.ckpt" in messages[0] and found["trip"]["step"] == 1
            skipped += 1
        else:  # a flipped bit in the padding of the archive harms nothing
            assert torch.equal(found["model"]["w"], content(2)["model"]["w"])
    assert skipped > 40


def test_a_flipped_bit_in_a_weight_is_found(folder):
    write(folder, 7)
    (path,) = checkpoint.files(folder)
    data = bytearray(path.read_bytes())
    data[data.index(torch.full((50,), 7.0).numpy().tobytes()) + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="checksum does not hold"):
        checkpoint.read(path)


def test_torch_load_opens_a_checkpoint(folder):
    write(folder, 7)
    (path,) = checkpoint.files(folder)
    assert torch.load(path, weights_only=True)["trip"] == {"step": 7}


def sealed(body):
    """Return a checkpoint file as version 0.1.0 wrote it."""
    digest = hashlib.sha256(body).hexdigest()
    return f"fastssl-checkpoint-1 {digest} {len(body)}\n".encode() + body


def test_a_sealed_file_of_version_0_1_0_is_read_and_its_seal_is_checked(folder):
    path = folder.checkpoints / "step-00000007.ckpt"
    data = bytearray(sealed(bytes(checkpoint.pack(content(7)))))
    path.write_bytes(data)
    assert checkpoint.read(path)["trip"] == {"step": 7}
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="checksum does not hold"):
        checkpoint.read(path)


def test_parts_that_claim_more_than_the_file_holds_are_refused(folder):
    path = folder.checkpoints / "step-00000001.ckpt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(2**22))
    with pytest.raises(DataError, match="is damaged"):
        checkpoint.read(path)


def test_packing_holds_the_bytes_once():
    large = {"w": torch.zeros(2**22)}  # 16 MiB
    tracemalloc.start()
    checkpoint.pack(large)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 1.0 < peak / 2**24 < 1.5


def test_packed_bytes_are_freed_in_a_cycle_without_an_error(monkeypatch):
    errors = []
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    cycle = [checkpoint.pack({"w": torch.zeros(1)})]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert not errors


def test_none_valid_is_an_error_and_none_at_all_is_a_start(folder):
    assert checkpoint.newest(folder, print) is None
    (folder.checkpoints / "step-00000001.ckpt").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="no checkpoint"):
        checkpoint.newest(folder, print)
    assert (folder.checkpoints / "step-00000001.ckpt").read_bytes() == b"nonsense"


def test_pruning_never_follows_a_link(folder, tmp_path):
    precious = tmp_path / "step-00000000.ckpt"
    precious.write_bytes(b"mine")
    link = folder.checkpoints / "step-00000000.ckpt"
    link.symlink_to(precious)
    write(folder, 1, 2, 3)
    assert link.is_symlink() and precious.read_bytes() == b"mine"


def names(folder):
    return [path.name for path in checkpoint.files(folder)]


def test_pruning_counts_only_what_is_older_than_the_new_one(folder):
    write(folder, 6)
    for step in (8, 10):
        (folder.checkpoints / checkpoint.step_name(step)).write_bytes(b"damaged")
    write(folder, 7)
    assert names(folder) == [checkpoint.step_name(step) for step in (10, 8, 7, 6)]
    assert checkpoint.newest(folder, print)["trip"]["step"] == 7
    write(folder, 11)
    assert names(folder) == [checkpoint.step_name(step) for step in (11, 10)]


def test_a_damaged_one_does_not_count_as_kept(folder):
    write(folder, 6)
    for step in (8, 10):
        (folder.checkpoints / checkpoint.step_name(step)).write_bytes(b"damaged")
    write(folder, 9, begun=6)
    assert names(folder) == [checkpoint.step_name(step) for step in (10, 9, 6)]
    write(folder, 10, 12, begun=9)
    assert names(folder) == [checkpoint.step_name(step) for step in (12, 10)]
    assert checkpoint.read(folder.checkpoints / checkpoint.step_name(10))["trip"]["step"] == 10


def test_one_from_before_the_start_counts_as_kept(folder, monkeypatch):
    write(folder, 4, 6)
    monkeypatch.setattr(checkpoint, "KEEP", 3)
    write(folder, 9, begun=6)
    assert names(folder) == [checkpoint.step_name(step) for step in (9, 6, 4)]


def test_the_best_prunes_nothing(folder):
    write(folder, 1, 2)
    (folder.checkpoints / checkpoint.step_name(0)).write_bytes(b"old")
    writer = checkpoint.Writer(folder)
    writer.save(checkpoint.BEST, content(3))
    writer.close()
    assert len(names(folder)) == 3


def test_pruning_never_works_in_a_linked_folder(tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    for name in ("step-00000000.ckpt", "step-00000001.ckpt", ".step-00000002.ckpt.new"):
        (precious / name).write_bytes(b"mine")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    folder.checkpoints.symlink_to(precious, target_is_directory=True)
    write(folder, 3, 4)
    assert len(list(precious.iterdir())) == 5


def test_steps_are_numbers_and_not_words(folder):
    write(folder, 99_999_999, 100_000_000)
    assert checkpoint.newest(folder, print)["trip"]["step"] == 100_000_000


def test_a_slow_disk_piles_up_no_snapshots(folder, monkeypatch):
    real, begun, go = checkpoint.write_atomic, threading.Event(), threading.Event()

    def slow(path, data):
        begun.set()
        go.wait(60)
        real(path, data)

    monkeypatch.setattr(checkpoint, "write_atomic", slow)
    writer = checkpoint.Writer(folder)
    writer.save(checkpoint.step_name(1), content(1))
    assert begun.wait(60)
    for step in range(2, 30):
        writer.save(checkpoint.BEST, content(step))
        writer.save(checkpoint.step_name(step), content(step))
        assert len(writer._waiting) <= 2
    go.set()
    writer.wait()
    writer.close()
    assert names(folder) == [checkpoint.step_name(step) for step in (29, 1)]
    assert checkpoint.best(folder)["trip"]["step"] == 29


def test_a_file_with_code_in_it_is_not_run(folder, capsys):
    class Evil:
        def __reduce__(self):
            return (print, ("executed",))

    path = folder.checkpoints / "step-00000001.ckpt"
    torch.save({"x": Evil()}, path)
    with pytest.raises(DataError, match="is refused"):
        checkpoint.read(path)
    assert not capsys.readouterr().out


def test_a_failed_write_is_told_and_the_old_one_stays(folder, monkeypatch):
    write(folder, 1)

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_atomic", full)
    writer = checkpoint.Writer(folder)
    writer.save(checkpoint.step_name(2), content(2))
    with pytest.raises(ResourceError, match="No space left"):
        writer.wait()
    writer.close()
    assert checkpoint.newest(folder, print)["trip"]["step"] == 1


def test_nothing_is_written_after_a_failed_write(folder, monkeypatch):
    begun, go = threading.Event(), threading.Event()

    def failing(path, data):
        begun.set()
        go.wait(60)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_atomic", failing)
    writer = checkpoint.Writer(folder)
    writer.save(checkpoint.step_name(1), content(1))
    assert begun.wait(60)
    writer.save(checkpoint.BEST, content(1))
    begun.clear()
    go.set()
    writer.close()
    assert not begun.is_set()


def test_what_a_killed_run_was_writing_may_be_gone_already(folder, monkeypatch):
    gone = folder.checkpoints / ".step-00000001.ckpt.new"
    monkeypatch.setattr(type(gone), "glob", lambda folder, pattern: [gone])
    checkpoint.Writer(folder).close()


def test_the_thread_ends_with_the_writer(folder):
    writer = checkpoint.Writer(folder)
    writer.save(checkpoint.step_name(1), content(1))
    writer.wait()
    (thread,) = writer._thread._threads
    assert thread.is_alive()
    writer.close()
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", None),
        ("ema", {"w": 3}),
        ("classes", [1, 2]),
        ("classes", None),
        ("preprocessing", {"size": "large"}),
        ("preprocessing", {**PREPROCESSING, "size": []}),
        ("preprocessing", {**PREPROCESSING, "size": [-1, 8]}),
        ("preprocessing", {**PREPROCESSING, "size": [20_000, 20_000]}),
        ("preprocessing", {**PREPROCESSING, "mean": [0.5, 0.5]}),
        ("preprocessing", {**PREPROCESSING, "mean": [float("nan")] * 3}),
        ("preprocessing", {**PREPROCESSING, "std": [0.0, 1.0, 1.0]}),
        ("preprocessing", {**PREPROCESSING, "stored": 0}),
        ("preprocessing", {**PREPROCESSING, "stored": 10**6}),
        ("preprocessing", {**PREPROCESSING, "resize": "stretch"}),
        ("preprocessing", {**PREPROCESSING, "interpolation": "nearest"}),
        ("trip", None),
        ("trip", {"step": "many"}),
        ("trip", {"step": -1}),
        ("store", 7),
        ("inputs", {"model": 5}),
        ("quality", "none"),
    ],
)
def test_a_checkpoint_with_missing_or_wrong_entries_is_refused(folder, key, value):
    made = content(1)
    if value is None:
        del made[key]
    else:
        made[key] = value
    path = folder.checkpoints / "step-00000001.ckpt"
    torch.save(made, path)
    with pytest.raises(DataError, match=f"is refused.*{key}"):
        checkpoint.read(path)
    torch.save([made], path)
    with pytest.raises(DataError, match="is refused"):
        checkpoint.read(path)


def test_a_pipe_in_the_place_of_a_checkpoint_is_refused(folder):
    os.mkfifo(folder.checkpoints / "best.ckpt")
    with pytest.raises(DataError, match="is not a file"):
        checkpoint.best(folder)
