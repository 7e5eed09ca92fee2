"""What a training stack will cost at scale: measured recoveries, published failure rates, and a simulator between them.

runs ─► measured_inputs ─┐
failure_rates.yaml ──────┼─► job_model ─► simulator ─► answer ─► page, JSON, terminal
--set, --what-if ────────┘                          └► money, spot_policies
"""
