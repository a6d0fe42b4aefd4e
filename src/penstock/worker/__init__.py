"""Workers: a supervisor, and runners that claim, run and settle. `work(plan, registry)` is `penstock work`."""
