"""Pure: when a report is due, and what it says."""
