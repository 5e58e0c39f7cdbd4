"""The lanes of tools/test."""
