"""Runs scripts written for Bagua or BlueFog, unchanged.

    python -m pelton.compat script.py [arguments]      or: -m package.module [arguments]
    PYTHONPATH=$(python -m pelton.compat --path) ...   for a launcher, whose children import by themselves

Both put a folder with the alias packages `bagua` and `bluefog` on the path. Their modules are Pelton's own:
`bagua.torch_api is pelton.torch_api`. Where the real package is installed they refuse.
"""
