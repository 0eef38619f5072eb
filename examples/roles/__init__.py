"""What heads of real models do: measured, and written as docs/results/roles.md."""
