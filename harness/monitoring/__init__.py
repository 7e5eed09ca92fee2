"""Provides live metrics of a running job for monitoring systems that people already have."""
