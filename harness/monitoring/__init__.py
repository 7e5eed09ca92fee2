"""Provides live metrics of a job, and exports of runs to common monitoring tools."""
