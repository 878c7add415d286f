"""What frozen features are good for: a probe in minutes, and which images to label first.

The features of a store are computed once (`features.py`). Classifiers on them belong here, and so
does the choice of images; training a network does not.
"""
