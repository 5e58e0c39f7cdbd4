"""BlueFog's names, over Pelton; see docs/coming_from/bluefog.md."""
