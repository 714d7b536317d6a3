"""Run the suite on other Pythons and other servers than this checkout's own: `python3 dev.py matrix`."""
