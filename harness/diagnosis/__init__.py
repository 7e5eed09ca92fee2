"""Grades the answers of any diagnoser against the faults that were injected."""
