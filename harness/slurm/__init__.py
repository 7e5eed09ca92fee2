"""Parts of the Slurm backend: the batch script it submits, and the Slurm commands it gives."""
