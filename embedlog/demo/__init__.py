"""The demo program: `python -m embedlog.demo`. It uses only the public package."""
