"""What BlueFog has in common for all frameworks."""
