"""Capacity reports: due by schedule, issued once, archived and mailed."""
