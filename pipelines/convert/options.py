"""How a source is stored: what the user may say, and what is chosen where they do not."""

from dataclasses import dataclass

from pipelines.convert import ffcv
from pipelines.convert.images import RESIZES, Target
from pipelines.errors import ConfigError
from pipelines.sources import Source, SourceSplit

FORMATS = ("ffcv", "dali")
RAW_UP_TO = 96  # pixels; above, JPEG
QUALITY = 95
MANY = 1_000  # pictures; with fewer, loading a compiled resize takes longer than it saves
SIZES = range(4, 2049)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a source is stored; None stands for what the data set or this machine suggests."""

    formats: tuple[str, ...] | None = None
    size: int | None = None
    resize: str | None = None
    quality: int | str | None = None  # "raw", or 1..100 of JPEG
    workers: int | None = None
    on_error: str = "stop"  # or "skip"

    def check(self) -> None:
        """Refuse what cannot be, before any work is done."""
        for form in self.formats or ():
            if form not in FORMATS:
                raise ConfigError(f"no format is named {form!r}", f"take {' or '.join(FORMATS)}")
        if self.formats is not None and not self.formats:
            raise ConfigError("no format was named", f"take {' or '.join(FORMATS)}")
        if "ffcv" in (self.formats or ()) and not ffcv.installed():
            raise ConfigError(
                "the format ffcv needs the package ffcv, which is not installed",
                "pip install 'fastssl[ffcv]', or --format dali",
            )
        if self.size is not None and self.size not in SIZES:
            raise ConfigError(f"the size {self.size} is out of range", "take 4 to 2048 pixels")
        if self.resize is not None and self.resize not in RESIZES:
            raise ConfigError(f"no resize is named {self.resize!r}", f"take {', '.join(RESIZES)}")
        raw = self.quality in (None, "raw")
        if not raw and not (isinstance(self.quality, int) and 1 <= self.quality <= 100):
            raise ConfigError(
                f"no quality is named {self.quality!r}", "take --quality 0 for RAW, or 1 to 100"
            )
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"{self.workers} workers do nothing", "take at least 1")
        if self.on_error not in ("stop", "skip"):
            raise ConfigError(f"on-error cannot be {self.on_error!r}", "take stop or skip")

    def chosen_formats(self) -> tuple[str, ...]:
        """Return the formats to write, in a fixed order."""
        wanted = self.formats or (FORMATS if ffcv.installed() else ("dali",))
        return tuple(form for form in FORMATS if form in wanted)

    def load(self) -> None:
        """Import what the formats need."""
        if "ffcv" in self.chosen_formats():
            ffcv.load()

    def target(self, source: Source, split: SourceSplit) -> Target:
        """Return what the images of a split become."""
        size = self.size or split.size
        quality: int | None
        if isinstance(self.quality, int):
            quality = self.quality
        else:
            quality = QUALITY if self.quality is None and size > RAW_UP_TO else None
        measured = source.mean is None and split is source.splits["train"]
        many = not split.kept and split.count >= MANY
        return Target(size, self.resize or source.resize, quality, measured, many)
