"""What monitoring that people already have can see of a job: metrics while it runs."""
