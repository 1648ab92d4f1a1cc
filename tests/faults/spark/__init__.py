"""Tasks, commits and drivers of Spark under crashes and errors."""
