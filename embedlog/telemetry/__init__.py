"""What the library tells of its own work: `log_messages` and `metrics`."""
