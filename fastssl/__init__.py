"""fastssl: image classifiers from a handful of labels, with data that never waits."""
