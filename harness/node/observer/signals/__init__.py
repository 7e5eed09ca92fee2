"""Holds one file for each signal (see `harness.node.observer`)."""
