"""Where pickles of models with a SyncBatchNorm or experts look for it: see `pelton._training._portable`."""

from pelton._training._portable import *  # noqa: F403
