"""Measurements on real servers and real processes, always beside something to compare with."""
