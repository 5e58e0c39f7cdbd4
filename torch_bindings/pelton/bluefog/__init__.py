"""BlueFog's names, over Pelton; see docs/bluefog.md."""
