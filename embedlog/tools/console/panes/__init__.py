"""The tabs of the console."""
