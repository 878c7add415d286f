"""A converted dataset on disk: manifest, index, images by index, and the check for damage.

Nothing here converts; `pipelines.convert` writes stores.
"""
