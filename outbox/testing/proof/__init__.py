"""Prove that a handler is safe: when called again, twice at the same time, and killed after each of its statements.

Every call runs in a process of its own, on a throw-away copy of the database, and the tables are compared with those
after one call.
"""
