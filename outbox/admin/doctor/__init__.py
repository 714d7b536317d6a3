"""`outbox doctor`: checks that find problems of a deployment, and say what to do about each.

`run_checks.py` lists the checks and runs them; each other module holds the checks of one area.
"""
