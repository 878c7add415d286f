"""Functions that several algorithms share: losses, the curriculum (CPL), mixup, random numbers.

They are functions of tensors and settings. What only one algorithm uses stays in its file.
"""
