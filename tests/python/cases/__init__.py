"""What ranks do in tests: functions that run on every rank of a job and check themselves."""
