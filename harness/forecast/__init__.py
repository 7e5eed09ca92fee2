"""Forecasts the cost of a large training job from measured recoveries and published failure rates, by simulation."""
