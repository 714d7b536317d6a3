"""The scheduler process: `python -m scheduler`."""
