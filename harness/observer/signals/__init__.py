"""One file for each signal: see `harness.observer`."""
