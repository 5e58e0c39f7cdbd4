"""What training needs of Pelton in Python: joining a job, groups, collectives, and models that are wrapped.

Nothing here changes a class of torch's but for algorithms that a user has written (`AlgorithmImpl`'s hooks), whose
tensors get Bagua's methods when a model is wrapped with one. `pelton.init` and `pelton.wrap` stand on it, and so do
`pelton.bluefog`, `pelton.distributed`, and `pelton.torch_api`, which adds Bagua's names and methods.
"""
