"""What a process counts, logs, traces and reports about itself."""
