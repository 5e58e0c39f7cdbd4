"""Under Bagua's name: what `pelton._training.checkpoint` holds."""

from pelton._training.checkpoint import Snapshots as Snapshots
from pelton._training.checkpoint import load_checkpoint as load_checkpoint
from pelton._training.checkpoint import save_checkpoint as save_checkpoint
from pelton.torch_api.checkpoint import checkpointing as checkpointing
from pelton.torch_api.checkpoint import snapshots as snapshots
