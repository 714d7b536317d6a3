"""What a user would pick instead, each in an environment of its own and in its fast configuration."""
