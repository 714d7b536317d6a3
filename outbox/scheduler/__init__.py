"""Everything that knows APScheduler: the timetable, and the scheduler process."""
