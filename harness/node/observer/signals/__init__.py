"""Holds one module for each observer, called a signal (see `harness.node.observer`)."""
