"""Under Bagua's name: what `pelton._training.algorithms.async_model_average` holds."""

from pelton._training.algorithms.async_model_average import *  # noqa: F403
