"""Programs that Bagua has under this name."""
