"""Bagua's tuning service: parameters for training jobs, searched for and handed out over HTTP."""
