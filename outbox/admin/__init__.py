"""Everything that operators use: queries, the overview, metrics, the doctor and the dashboard.

It is the layer below the command line; the changes that operators make are in `outbox.operations`.
"""
