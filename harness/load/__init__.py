"""Load and proxies: programs of their own that faults start beside the job. `users.locust` is a Locust file."""
