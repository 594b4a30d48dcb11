"""From files on a disk to normalised batches: `module.ImageData` is the way in.

Nothing is imported here, so that a worker process that decodes images does not load Lightning
first.
"""
