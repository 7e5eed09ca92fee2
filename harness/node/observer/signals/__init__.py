"""One file for each signal: see `harness.node.observer`."""
