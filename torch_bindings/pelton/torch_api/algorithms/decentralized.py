"""Under Bagua's name: what `pelton._training.algorithms.decentralized` holds."""

from pelton._training.algorithms.decentralized import *  # noqa: F403
