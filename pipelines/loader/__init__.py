"""From a store to batches: sampling, reader and views put together and prefetched.

`loader.Loader` feeds training, `evaluation` walks a split in order, `open.open_loader` is the
short way for programs that want the data alone.
"""
