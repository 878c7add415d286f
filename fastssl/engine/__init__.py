"""The training loop and its parts: building a run, optimizer, EMA, checkpoints, evaluation.

`launch.run_training` starts or resumes a run, `build` makes its parts, and `loop` trains. What an
algorithm computes belongs to `fastssl.algorithms`, what is recorded to `fastssl.tracking`.
"""
