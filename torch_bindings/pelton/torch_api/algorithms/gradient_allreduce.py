"""Under Bagua's name: what `pelton._training.algorithms.gradient_allreduce` holds."""

from pelton._training.algorithms.gradient_allreduce import *  # noqa: F403
