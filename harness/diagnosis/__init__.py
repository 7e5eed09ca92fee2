"""The diagnosis: the answers of any diagnoser, graded against the faults that were injected."""
