"""Stores of keys and values."""
