"""Compares the answers of any diagnoser (a program that says what broke in a job) with the faults that were
injected."""
