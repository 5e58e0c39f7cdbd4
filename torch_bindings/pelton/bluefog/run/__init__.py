"""BlueFog's launchers, as far as scripts import them; `bfrun` and `ibfrun` themselves are programs."""
