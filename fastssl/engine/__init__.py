"""The one training loop and its parts: building a run, optimizer, EMA, checkpoints, evaluation.

`launch.train` starts or resumes a run, `build` makes its parts and `loop` trains. What an
algorithm computes belongs to `fastssl.algorithms`, what is written down to `fastssl.tracking`.
"""
