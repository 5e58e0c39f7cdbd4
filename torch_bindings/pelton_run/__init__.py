"""The launcher behind `pelton run`. It stands beside `pelton` because importing that imports torch."""
