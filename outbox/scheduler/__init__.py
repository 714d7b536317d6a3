"""The scheduler process and its timetable. Only this package uses APScheduler."""
