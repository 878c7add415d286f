"""What the system refuses outside of training: two lines and exit 5; old files stay whole."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fastssl import errors
from fastssl.cli import command
from fastssl.distributed.process_group import join
from fastssl.errors import DataError, ResourceError
from fastssl.inference import contact_sheet, label, pseudo_label
from fastssl.inference.prediction_files import predict
from fastssl.inference.predictor import Predictor
from fastssl.tracking.metrics import trim
from fastssl.tracking.run_dir import RunFolder
from pipelines.errors import system_error
from pipelines.files import open_atomic
from pipelines.store.store import open_store
from tests.process_output import PATIENCE

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")


def typed(*words: str, out: Path | None = None) -> tuple[int, list[str]]:
    """Run the real command; return its exit code and what it said on stderr."""
    with (out or Path(os.devnull)).open("w") as file:
        done = subprocess.run(
            [sys.executable, "-m", "fastssl", *words],
            stdout=file, stderr=subprocess.PIPE, text=True, timeout=PATIENCE,
        )  # fmt: skip
    return done.returncode, done.stderr.strip().splitlines()


@needs_full
def test_predictions_that_do_not_fit_on_the_disk(trained: Path, data: Path) -> None:
    code, lines = typed("predict", str(trained), str(data / "digits"), "--csv", str(FULL))
    assert code == 5, lines
    assert lines == [
        "error: /dev/full can't be used: No space left on device",
        "  fix: free space or permissions there, then type the same line again",
    ]


@needs_full
def test_a_full_disk_behind_stdout() -> None:
    code, lines = typed("list", "configs", out=FULL)
    assert code == 5 and len(lines) == 2 and "No space left" in lines[0], lines


def test_any_error_of_the_system_is_reported(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def fail(*words: object, **more: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/some/log.txt")

    monkeypatch.setattr(command, "app", fail)
    monkeypatch.setattr(command, "discard_stdout", lambda: None)
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 5
    message = capsys.readouterr().err.splitlines()
    assert (
        message[0] == "error: /some/log.txt can't be used: Permission denied" and len(message) == 2
    )
    noted = []
    with pytest.raises(OSError), join().contact(lambda *failure: noted.append(failure)):
        fail()
    assert noted[0][1].exit_code == 5


def test_a_missing_file_is_not_blamed_on_space_or_permissions() -> None:
    error = system_error(FileNotFoundError(errno.ENOENT, "No such file or directory", "/a.npz"))
    assert "/a.npz" in error.what and error.fix.startswith("check that the path exists")


def test_metrics_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.mkdir()
    with pytest.raises(ResourceError, match=r"metrics\.jsonl"):
        trim(folder.metrics, 3)


def test_an_interrupted_file_leaves_the_old_one(tmp_path: Path) -> None:
    out = tmp_path / "new" / "predictions.csv"
    with open_atomic(out) as file:
        file.write("old\n")
    link = tmp_path / "link.csv"
    link.symlink_to(out)
    for path in (out, link):
        with pytest.raises(KeyboardInterrupt), open_atomic(path) as file:
            file.write("half")
            file.flush()
            raise KeyboardInterrupt
        assert out.read_text() == "old\n"
    with open_atomic(link) as file:
        file.write("new\n")
    assert link.is_symlink() and out.read_text() == "new\n"
    assert [path.name for path in out.parent.iterdir()] == ["predictions.csv"]
    with open_atomic(Path(os.devnull)) as file:  # a device is no file to be replaced
        file.write("gone")
    assert not Path(os.devnull).is_file()


def test_predictions_that_are_interrupted_leave_the_old_file(
    trained: Path, data: Path, tmp_path: Path
) -> None:
    model, out = Predictor(trained), tmp_path / "predictions.csv"
    out.write_text("old\n")

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(model, [str(data / "digits")], table=out, progress=stop)
    with pytest.raises(DataError):
        predict(model, [], table=out)
    assert out.read_text() == "old\n" and len(list(tmp_path.iterdir())) == 1


def test_labels_and_sheets_that_do_not_fit_leave_the_old_files(
    trained: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pseudo_labels = pseudo_label.pseudo_label(Predictor(trained), open_store(data / "digits"))
    files = [tmp_path / name for name in ("pseudo.csv", "pseudo.html", "pseudo.png")]
    for file in files:
        file.write_text("old\n")

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError, match=r"pseudo\.csv can't be used: No space left"):
        label.write(pseudo_labels, pseudo_labels.trusted, files[0])
    for file in files[1:]:
        with pytest.raises(ResourceError, match=f"{file.name} can't be written: No space left"):
            contact_sheet.write_sheet(pseudo_labels, file)
    assert all(file.read_text() == "old\n" for file in files)
    assert sorted(tmp_path.iterdir()) == sorted(files)


def test_a_bug_is_not_taken_for_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda kind: (resource.RLIM_INFINITY,) * 2)
    assert errors.memory_error(RuntimeError("a bug")) is None
    assert errors.memory_error(MemoryError()) is not None
    monkeypatch.setattr("resource.getrlimit", lambda kind: (1 << 50, 1 << 50))
    assert errors.memory_error(RuntimeError("a bug")) is None  # the limit is far away
    monkeypatch.setattr("resource.getrlimit", lambda kind: (1 << 20, 1 << 20))
    found = errors.memory_error(RuntimeError("could not create a primitive"))
    assert found is not None and found.exit_code == 5 and "ulimit -v" in found.fix
