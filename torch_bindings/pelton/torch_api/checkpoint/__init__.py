"""Checkpoints of wrapped models, with Bagua's files and names: `save_checkpoint` and `load_checkpoint`."""

from pelton.torch_api.checkpoint.checkpointing import load_checkpoint, save_checkpoint

__all__ = ["load_checkpoint", "save_checkpoint"]
