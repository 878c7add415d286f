"""From a store to batches: sampling, reader and views combined, prefetched and put on the device.

`Loader` makes the batches of a training, `EvaluationBatches` those of an evaluation. `open_loader`
opens a loader in one call for programs that need the data alone. What a store, a reader or a view
is does not belong here.
"""

from pipelines.loader.batch import Batch
from pipelines.loader.evaluation import EvaluationBatches
from pipelines.loader.loader import Loader
from pipelines.loader.open import open_loader

__all__ = ["Batch", "EvaluationBatches", "Loader", "open_loader"]
