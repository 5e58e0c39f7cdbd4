"""The rules of this repository, as a test."""
