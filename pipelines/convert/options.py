"""How a dataset is converted: every choice of a user, checked once, and the defaults."""

from dataclasses import dataclass

import pipelines.convert.ffcv as ffcv
from pipelines.convert.images import INTERPOLATIONS, RESIZES, Target
from pipelines.errors import ConfigError
from pipelines.extras import import_problem, install_line
from pipelines.sources import Source, SourceOptions, SourceSplit

FORMATS = ("ffcv", "dali")
RAW_UP_TO = 96  # pixels; larger images are stored as JPEG
QUALITY = 95
MANY = 1_000  # images; with fewer, loading the compiled resize takes longer than it saves
SIZES = range(4, 2049)  # pixels


@dataclass(frozen=True, kw_only=True)
class Options(SourceOptions):
    """The options of `convert`; None stands for what the dataset or this machine suggests."""

    formats: tuple[str, ...] | str = ("dali",)  # "ffcv,dali" is accepted as well
    size: int | None = None
    resize: str | None = None
    interpolation: str = "bicubic"  # or "bilinear"
    quality: int | None = None  # of JPEG, 1..100; 0 stores the pixels themselves
    workers: int | None = None  # processes
    on_error: str = "stop"  # or "skip"

    def __post_init__(self) -> None:
        """Refuse impossible values before any work is done."""
        super().__post_init__()
        given = self.formats.split(",") if isinstance(self.formats, str) else self.formats
        fix = f"use {' or '.join(FORMATS)}, or both with a comma between"
        for form in given:
            if form not in FORMATS:
                raise ConfigError(f"there is no format {form!r}", fix)
        if not given:
            raise ConfigError("no format is given", fix)
        # In a fixed order, so that the same choice makes the same store.
        object.__setattr__(self, "formats", tuple(form for form in FORMATS if form in given))
        if "ffcv" in given and (problem := import_problem("ffcv")):
            raise ConfigError(
                f"the format ffcv needs the package ffcv, which {problem}",
                f"{install_line('ffcv', problem)}; or use --format dali",
            )
        if self.size is not None and self.size not in SIZES:
            raise ConfigError(f"the size {self.size} is out of range", "use 4 to 2048 pixels")
        if self.resize is not None and self.resize not in RESIZES:
            raise ConfigError(f"there is no resize {self.resize!r}", f"use {', '.join(RESIZES)}")
        if self.interpolation not in INTERPOLATIONS:
            raise ConfigError(
                f"there is no interpolation {self.interpolation!r}",
                f"use {' or '.join(INTERPOLATIONS)}",
            )
        if self.quality is not None and self.quality not in range(101):
            raise ConfigError(
                f"the quality {self.quality!r} is out of range",
                "use --quality 0 for raw pixels, or 1 to 100 for JPEG",
            )
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"{self.workers} workers are too few", "use at least 1")
        if self.on_error not in ("stop", "skip"):
            raise ConfigError(f"on-error cannot be {self.on_error!r}", "use stop or skip")

    def load(self) -> None:
        """Import what the formats need, which takes seconds for ffcv."""
        if "ffcv" in self.formats:
            ffcv.load()

    def target(self, source: Source, split: SourceSplit) -> Target:
        """Return size and encoding of the stored images of a split."""
        size = self.size or split.size
        if self.quality is None:
            quality = QUALITY if size > RAW_UP_TO else None
        else:
            quality = self.quality or None
        measured = source.mean is None and split is source.splits["train"]
        many = not split.kept and split.count >= MANY
        resize = self.resize or source.resize
        return Target(size, resize, quality, measured, many, self.interpolation)
