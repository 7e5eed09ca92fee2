"""Forecasts the cost of a training stack at scale: measured recoveries, published failure rates, and a simulator.

runs ─► measured_inputs ─┐
failure_rates.yaml ──────┼─► job_model ─► simulator ─► answer ─► page, JSON, terminal
--set, --what-if ────────┘                          └► money, spot_policies
"""
