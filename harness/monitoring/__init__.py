"""Provides live metrics and exports of runs for common monitoring tools."""
