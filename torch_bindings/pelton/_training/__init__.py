"""What training needs of Pelton in Python: joining a job, groups, collectives, and models that are wrapped.

Nothing here changes a class of torch's. `pelton.init` and `pelton.wrap` stand on it, and so do `pelton.bluefog`,
`pelton.distributed`, and `pelton.torch_api`, which adds Bagua's names and methods.
"""
