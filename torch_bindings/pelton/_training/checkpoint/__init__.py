"""Checkpoints of wrapped models, with Bagua's files and names, and snapshots in memory for ranks that are restarted."""

from pelton._training.checkpoint.checkpointing import load_checkpoint, save_checkpoint
from pelton._training.checkpoint.snapshots import Snapshots

__all__ = ["Snapshots", "load_checkpoint", "save_checkpoint"]
