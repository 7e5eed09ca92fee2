"""Holds one module, called a signal, for each observer (see `harness.node.observer`)."""
