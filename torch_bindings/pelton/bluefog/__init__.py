"""BlueFog's names, over Pelton. So far its graphs; see docs/graphs.md."""
