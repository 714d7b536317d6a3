"""What a process counts, logs and traces, and what it reports about itself."""
